"""Steps of a recurrent drafter by the kernels in C++, beside ordinary operations."""

from pathlib import Path

import pytest
import torch
from decoder_toys import CPU, FITS_ROWS, Tiny, greedy, random_cell
from effort import examples
from gguf_toys import save_gguf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.head import KernelSteps, RecurrentHead
from decoders.backends.weights.packed import Rounding
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.sampling.argmax import likeliest
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.race import CellTokens
from decoders.sampling.randomness import Generator
from decoders.zoo import from_gguf

pytestmark = pytest.mark.instructions

NAMES = [*range(15, -1, -1)]  # the head's rows the other way round


def made(
    tiny: Tiny, names: list[int], blocks: int = 2, rounding: Rounding | None = "int4"
) -> tuple[LlamaBackend, RecurrentHead]:
    folder = tiny("qwen2", **FITS_ROWS)
    target = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=rounding, blocked=True)
    cell = random_cell(target.state_size, 1, torch.bfloat16, width=64, blocks=blocks)
    return target, RecurrentHead(target, cell, DraftVocab(names, 16))


def by_operations(head: RecurrentHead, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    state = head.advance(state, token)
    return state, head.score(state)


@examples(30)
@given(
    rows=st.integers(1, 40),
    blocks=st.integers(1, 3),
    rounding=st.sampled_from(["int4", None]),
    seed=st.integers(0, 99),
)
def test_steps_are_those_of_ordinary_operations(
    kernel: None, tiny: Tiny, rows: int, blocks: int, rounding: Rounding | None, seed: int
) -> None:
    """To bfloat16's rounding, which adds up over blocks; a row's bits do not depend on others."""
    _, head = made(tiny, NAMES, blocks, rounding)
    assert head.kernels is not None
    chance = torch.Generator().manual_seed(seed)
    state = torch.randn(rows, head.config.hidden, generator=chance).bfloat16()
    tokens = torch.randint(0, 16, (rows,), generator=chance)
    before = state.clone()
    mine, theirs = head.step(state, tokens), by_operations(head, state, tokens)
    assert torch.equal(state, before)
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        apart = (one.float() - other.float()).norm()
        assert apart < 0.05 * other.float().norm()
    row = seed % rows
    alone = head.step(state[row : row + 1], tokens[row : row + 1])
    assert all(torch.equal(one[row : row + 1], own) for one, own in zip(mine, alone, strict=True))


@pytest.mark.parametrize("unread", [[5], [5, 0, 15]])
def test_a_draft_is_a_step_after_the_other(kernel: None, tiny: Tiny, unread: list[int]) -> None:
    target, head = made(tiny, NAMES)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter = RecurrentDrafter(target, head)
    target.prefill(prompt)
    drafter.reset(prompt)
    drafted = drafter.propose([*prompt, *unread], greedy(4)).ids.tolist()
    assert drafter.calls == len(unread) + 3
    state, expected = target.final_states(7, 8), list[int]()
    for token in unread:
        state, logits = head.step(state, torch.tensor([token]))
    for _ in range(4):
        expected.append(NAMES[int(likeliest(logits))])
        state, logits = head.step(state, torch.tensor(expected[-1:]))
    assert drafted == expected


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_a_drawn_draft_is_a_step_after_the_other(
    kernel: None, tiny: Tiny, temperature: float
) -> None:
    """The same tokens for the same seed."""
    prompt, unread, sampling = [3, 1, 4, 1, 5, 9, 2, 6], [5], Sampling(temperature)
    target, head = made(tiny, NAMES)
    whole, steps = RecurrentDrafter(target, head), RecurrentDrafter(target, head)
    steps._whole = None
    target.prefill(prompt)
    for seed in range(20):
        one, other = (
            drafter.propose([*prompt, *unread], DraftRequest(6, sampling, Generator(CPU, seed)))
            for drafter in (whole, steps)
        )
        assert one.ids.tolist() == other.ids.tolist()
    assert whole.calls == steps.calls


def test_a_filtered_draft_is_drawn_from_what_is_left(kernel: None, tiny: Tiny) -> None:
    target, head = made(tiny, NAMES)
    drafter = RecurrentDrafter(target, head)
    target.prefill([3, 1])
    asked = DraftRequest(4, Sampling(1.0, top_k=2), Generator(CPU, 1), needs_probs=True)
    probs = drafter.propose([3, 1, 4], asked).probs
    assert probs is not None and (probs > 0).sum(-1).tolist() == [2] * 4


def test_of_equal_chances_the_first_is_drafted(kernel: None, tiny: Tiny) -> None:
    target, head = made(tiny, NAMES)
    target.weights.embedding.zero_()
    flat = RecurrentHead(target, random_cell(target.state_size, 1, torch.bfloat16), head.vocab)
    assert flat.kernels is not None
    state = torch.ones(1, target.state_size, dtype=torch.bfloat16)
    drafted = flat.kernels.draft(state, torch.tensor([3]), CellTokens(2))
    assert drafted.tolist() == [NAMES[0]] * 2


def test_a_head_that_does_not_fit_takes_ordinary_operations(kernel: None, tiny: Tiny) -> None:
    _, head = made(tiny, NAMES[:9])
    assert head.kernels is None
    state, tokens = torch.randn(2, head.config.hidden).bfloat16(), torch.tensor([1, 2])
    for one, other in zip(
        head.step(state, tokens), by_operations(head, state, tokens), strict=True
    ):
        assert torch.equal(one, other)


def test_drafters_share_what_they_read_of_a_file_s_embedding(
    kernel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path))
    folder = from_gguf(save_gguf(tmp_path / "m.gguf"))
    target = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding="file", blocked=True)
    cell = random_cell(target.state_size, 1, torch.bfloat16, width=64)
    read = [RecurrentHead(target, cell, DraftVocab(NAMES, 100)).kernels for _ in range(2)]
    assert read[0] is not None and read[1] is not None
    assert read[0]._embedding is read[1]._embedding


def test_wrong_shapes_are_refused(kernel: None, tiny: Tiny) -> None:
    _, head = made(tiny, NAMES)
    steps = head.kernels
    assert isinstance(steps, KernelSteps)
    state, token = torch.randn(1, head.config.hidden).bfloat16(), torch.tensor([3])
    assert steps.step(state[:0], token[:0])[1].shape == (0, 16)
    for wrong in [
        (state.float(), token), (state[:, 1:], token), (state, token.int()),
        (state, torch.tensor([3, 4])), (state, token + 13), (state, token - 4),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError):
            steps.step(*wrong)
        if len(wrong[1]) == 1:
            for wanted in (CellTokens(2), CellTokens(2, 1.0, 7, 0)):
                with pytest.raises(RuntimeError):
                    steps.draft(*wrong, wanted)
    for ids, k in [(token[:0], 2), (token, 0)]:
        with pytest.raises(RuntimeError):
            steps.draft(state, ids, CellTokens(k))
