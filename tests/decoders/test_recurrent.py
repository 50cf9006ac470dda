"""The recurrent drafter: steps beside the trained cell's, rounds beside those from scratch,
distributions, recordings, verifiers, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import make
from decoder_toys import (
    CPU,
    FITS_INT4,
    Tiny,
    greedy,
    native,
    random_cell,
    recorded,
    recurrent,
    save_cell,
)
from effort import slow_after
from engine_toys import arms
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.cuda.recorded import cuda_graphs
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.cell import CELL, RecurrentCell
from decoders.backends.recurrent.head import RecurrentHead
from decoders.backends.weights.int4 import Int4Weight
from decoders.backends.weights.int8 import Int8Weight
from decoders.common.errors import Damaged, DraftpickError
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.models.drafts import MappedBackend
from decoders.protocols import DraftRequest, StateBackend
from decoders.records import Proposal, Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.race import CellTokens, key_of, pick
from decoders.sampling.randomness import Generator
from decoders.testing.toys import ListedLengths, autoregressive, run, speculative

LONGER = [3, 1, 4, 1, 5, 9, 2, 6]
PLAIN = Sampling()


def close(one: Tensor, other: Tensor, near: float = 1e-9) -> None:
    torch.testing.assert_close(one.double(), other.double(), atol=near, rtol=near)


# -- the cell's steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [[1, 4, 9], [*range(16)]])
def test_steps_are_the_trained_cell_s(vocab: list[int], tiny: Tiny) -> None:
    """On packed matrices, of several sequences at once and of one."""
    target, drafted = native(tiny()), DraftVocab(vocab, 16)
    cell = random_cell(32, 1, torch.float32)
    head = RecurrentHead(target, cell, drafted)
    state, tokens = torch.randn(5, 32), torch.tensor([3, 0, 7, 7, 15])
    expected = cell(state, target.embed(tokens))
    after, logits = head.step(state, tokens)
    close(after, expected, 1e-4)
    close(logits, cell.read(expected) @ target.weights.embedding[drafted.to_target].T, 1e-4)
    for row in range(5):
        one = head.step(state[row : row + 1], tokens[row : row + 1])
        close(one[0], after[row : row + 1], 1e-5)
        close(one[1], logits[row : row + 1], 1e-5)
    assert head.parameters == sum(p.numel() for p in cell.parameters()) + len(vocab) * 32


@pytest.mark.parametrize(("precision", "kind"), [("int8", Int8Weight), ("int4", Int4Weight)])
def test_weights_are_rounded_as_the_target_s(precision: Any, kind: type, tiny: Tiny) -> None:
    """The head to int8 at most; and a width that int4 cannot have is rounded to int8."""
    folder = tiny(**FITS_INT4)
    target = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding=precision)
    cell, vocab = random_cell(32, 1, torch.bfloat16), DraftVocab([*range(16)], 16)
    head = RecurrentHead(target, cell, vocab)
    for block in head.blocks:
        assert isinstance(block.gate_up, kind) and isinstance(block.down, kind)
    assert isinstance(head.head, Int8Weight)
    state, tokens = torch.randn(1, 32, dtype=torch.bfloat16), torch.tensor([3])
    after, logits = head.step(state, tokens)
    expected = cell(state, target.embed(tokens))
    assert (after - expected).norm() < (0.03 if precision == "int8" else 0.3) * expected.norm()
    rows = target.weights.embedding[vocab.to_target]
    assert logits.shape == (1, 16) and rows.shape == (16, 32)
    narrow = random_cell(32, 1, torch.bfloat16, width=24)
    assert isinstance(RecurrentHead(target, narrow, vocab).blocks[0].down, Int8Weight)


def test_a_saved_cell_is_the_cell_at_work(tiny: Tiny, tmp_path: Path) -> None:
    target, vocab = native(tiny()), DraftVocab([2, 3, 5], 16)
    save_cell(tmp_path, random_cell(32, 4), vocab)
    head = RecurrentHead.load(tmp_path, target, vocab)
    cell = RecurrentCell.load(tmp_path, CPU, torch.float32)
    state, token = torch.randn(1, 32), torch.tensor([9])
    close(head.step(state, token)[0], cell(state, target.embed(token)), 1e-4)


def test_a_cell_in_int8_is_half_as_large_and_nearly_the_same(tmp_path: Path) -> None:
    cell = random_cell(64, 2, torch.bfloat16, width=64)
    sizes = []
    for int8 in (False, True):
        cell.save(tmp_path, int8)
        sizes.append((tmp_path / CELL).stat().st_size)
        again = RecurrentCell.load(tmp_path, CPU, torch.float32)
        for kept, made in zip(cell.parameters(), again.parameters(), strict=True):
            assert made.dtype == torch.float32
            close(made, kept.float(), 0.01 if int8 and kept.ndim == 2 else 1e-9)
    assert sizes[1] < 0.6 * sizes[0]


def test_int8_without_its_steps_is_damaged(tmp_path: Path) -> None:
    random_cell(32, 2, torch.bfloat16).save(tmp_path, int8=True)
    held = load_file(tmp_path / CELL)
    held.pop("down.1.step")
    save_file(held, tmp_path / CELL)
    with pytest.raises(Damaged, match=r"lacks down\.1\.step"):
        RecurrentCell.load(tmp_path, CPU, torch.float32)


# -- rounds beside those from scratch -------------------------------------------------------------

BACKENDS = (
    "toy",
    "native-float64",
    "native-with-exit",
    "native-recorded",
    "native-int4-rows",
    "hf",
    "hf-seq2seq",
    "hf-seq2seq-with-exit",
    "native-recorded-with-exit",  # the slowest
)


class Beside:
    """A recurrent drafter that drafts again from scratch each time, on a target that reads all of
    the sequence anew, and finds the same."""

    def __init__(self, inner: RecurrentDrafter, fresh: StateBackend, near: float) -> None:
        self.inner, self.near = inner, near
        self.again = RecurrentDrafter(fresh, inner.head)
        self.parameters, self.context = inner.parameters, inner.context
        self.drafts = 0

    @property
    def calls(self) -> int:
        return self.inner.calls

    def reset(self, prompt_ids: list[int]) -> None:
        self.inner.reset(prompt_ids)
        self.again.target.prefill(prompt_ids)
        self._start = self.again.target.length

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        made = self.inner.propose(context, asked)
        fresh, read = self.again.target, self.inner.target.length
        fresh.truncate(self._start)
        again = context[self._start : read]
        at_once = 1 if fresh.dtype == torch.bfloat16 else max(len(again), 1)
        for at in range(0, len(again), at_once):
            fresh.extend(torch.tensor(again[at : at + at_once]))
        close(self.inner.target.final_states(0, read), fresh.final_states(0, read), self.near)
        other = self.again.propose(context, asked)
        assert other.ids.tolist() == made.ids.tolist()
        self.drafts += 1
        return made

    def commit(self, context: list[int]) -> None:
        self.inner.commit(context)


@pytest.mark.every(3)
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("kind", slow_after(8, BACKENDS))
def test_every_draft_is_that_from_scratch(kind: str, tree: bool, tiny: Tiny, tiny_t5: Tiny) -> None:
    """After rounds that were accepted, rejected and sat out, after trees whose side branches were
    accepted, and at every length: so do the states of all that is accepted."""
    target = make(kind, tiny, tiny_t5)
    fresh = make(kind.replace("-recorded", ""), tiny, tiny_t5)
    near = 0.1 if target.dtype == torch.bfloat16 else 1e-4
    beside = Beside(recurrent(target, 3), fresh, near)
    drafter: Any = WidenedDrafter(beside, (5, 3), target.context) if tree else beside
    strategy = speculative(drafter, ListedLengths([3, 0, 1, 4]))
    made = run(target, strategy, LONGER, Request(28))
    plain = run(fresh, autoregressive(), LONGER, Request(28))
    assert made.ids == plain.ids and beside.drafts > 5
    assert made.accepted < made.drafted
    if tree:
        assert made.accepted > 0  # of a random cell's, mostly siblings


@pytest.mark.parametrize("kind", ["toy", "native-float64", "hf", "hf-seq2seq"])
def test_where_nothing_was_read_the_state_is_zero(kind: str, tiny: Tiny, tiny_t5: Tiny) -> None:
    target = make(kind, tiny, tiny_t5)
    drafter = recurrent(target, 3)
    target.prefill([5])
    target.truncate(0)
    proposal = drafter.propose([5], greedy(2))
    zero = torch.zeros(1, target.state_size, dtype=target.dtype)
    state, logits = drafter.head.step(zero, torch.tensor([5]))
    second = drafter.head.step(state, logits.argmax(-1))[1].argmax(-1)
    assert proposal.ids.tolist() == [int(logits.argmax()), int(second)]
    assert drafter.calls == 2


def test_more_than_one_unread_token(tiny: Tiny) -> None:
    """As inside cascades: each takes a step, and the draft goes on from the last."""
    target = native(tiny(), torch.float64)
    drafter = recurrent(target, 3)
    target.prefill(LONGER)
    drafter.reset(LONGER)
    unread = [7, 0, 11]
    made = drafter.propose([*LONGER, *unread], greedy(3))
    assert drafter.calls == 5
    state, logits = target.final_states(7, 8), torch.empty(0)
    for token in unread:
        state, logits = drafter.head.step(state, torch.tensor([token]))
    drafted: list[int] = []
    while len(drafted) < 3:
        drafted.append(int(logits.argmax()))
        state, logits = drafter.head.step(state, torch.tensor(drafted[-1:]))
    assert made.ids.tolist() == drafted


# -- recorded -------------------------------------------------------------------------------------


SEVERAL: dict[str, tuple[Sampling, float]] = {
    "greedy": (PLAIN, 0.0),
    "sampled": (Sampling(0.8, top_k=9, repetition_penalty=1.1), 0.0),
    "penalty": (Sampling(repetition_penalty=1.3), 0.0),
    "confident": (PLAIN, 0.4),
}


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("case", slow_after(2, SEVERAL))
def test_recorded_answers_and_counts_are_the_ordinary_ones(
    case: str, tree: bool, tiny: Tiny
) -> None:
    sampling, bar = SEVERAL[case]
    results = []
    for target in (recorded(tiny())[0], native(tiny(), torch.float64)):
        drafter: Any = recurrent(target, 3, DraftVocab([0, 2, 3, 5, 8, 9, 12, 15], 16))
        if tree:
            drafter = WidenedDrafter(drafter, (4, 2), target.context)
        lengths = ListedLengths([3, 0, 1])
        lengths.min_confidence = bar
        results.append(
            run(target, speculative(drafter, lengths), LONGER, Request(16, sampling, seed=3))
        )
    one, other = results
    fields = ["ids", "rounds", "drafted", "accepted_per_position"]
    if case != "greedy" or tree:  # else it may draft beyond the answer's end
        fields.append("draft_calls")
    for field in fields:
        assert getattr(one, field) == getattr(other, field), field


@pytest.mark.parametrize("unread", [[7], [7, 2], [7, 2, 11], [i % 16 for i in range(20)]])
def test_a_greedy_draft_is_one_recording(unread: list[int], tiny: Tiny) -> None:
    """However long the sequence is; and it outlives the next one. After more unread tokens than a
    recording reads, as after a long cascade of copies, the steps are replayed one by one."""
    target, recorder = recorded(tiny())
    plain = native(tiny(), torch.float64)
    one, other = recurrent(target, 3), recurrent(plain, 3)
    made, expected = [], []
    ours = 0
    for prompt in (LONGER, LONGER[:3], LONGER * 3):
        for model in (target, plain):
            model.prefill(prompt)
        before = recorder.recorded
        made.append(one.propose([*prompt, *unread], greedy(4)).ids)
        ours += recorder.recorded - before
        expected.append(other.propose([*prompt, *unread], greedy(4)).ids.tolist())
    assert [ids.tolist() for ids in made] == expected
    assert len({*map(tuple, expected)}) > 1
    assert one.calls == other.calls
    assert len(unread) > 3 or ours == 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 99))
def test_drafts_for_several_are_those_for_each(tiny: Tiny, counts: list[int], seed: int) -> None:
    """Of different lengths, and every other one drawn by clocks of its own."""
    target = native(tiny(), torch.float64)
    drafter = recurrent(target, 3, DraftVocab([0, 2, 3, 5, 8, 9, 12, 15], 16))
    states = torch.randn(len(counts), 32, generator=torch.Generator().manual_seed(seed)).double()
    tokens = torch.arange(seed, seed + len(counts)) % 16
    wanted = [
        CellTokens(count, (i + seed) % 2 * 0.9, key_of(seed, i), 7 * i)
        for i, count in enumerate(counts)
    ]
    made, names = drafter.head.drafts(states, tokens, wanted), drafter.head.vocab.to_target
    for state, token, own, ids in zip(states, tokens, wanted, made, strict=True):
        alone, state, token = list[int](), state.unsqueeze(0), token.unsqueeze(0)
        while len(alone) < own.k:
            state, logits = drafter.head.step(state, token)
            at = own.place + len(alone)
            token = names[pick(logits, own.temperature, own.key, at, names)[:, 0]]
            alone.append(int(token))
        assert ids.tolist() == alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_graphs_on_cuda_draft_what_ordinary_steps_draft(precision: str, tiny: Tiny) -> None:
    cuda, dtypes = torch.device("cuda"), {"float32": torch.float32}
    rounding: Any = precision if precision.startswith("int") else None
    folder, dtype = tiny(**FITS_INT4), dtypes.get(precision, torch.bfloat16)
    target = LlamaBackend.load(folder, cuda, dtype, rounding=rounding)
    cell, vocab = random_cell(32, 3, dtype).to(cuda), DraftVocab([*range(14)], 16).to(cuda)
    ordinary = RecurrentDrafter(target, RecurrentHead(target, cell, vocab))
    target.record_passes(cuda_graphs())
    graphs = RecurrentDrafter(target, ordinary.head)
    for prompt in (LONGER, LONGER[:3], LONGER * 2):
        target.prefill(prompt)
        for unread in ([5], [5, 2], [9]):
            context = [*prompt, *unread]
            greedy, drawn = (
                [
                    d.propose(context, DraftRequest(3, sampling, Generator(cuda, 1)))
                    for d in (graphs, ordinary)
                ]
                for sampling in (PLAIN, Sampling(0.9))
            )
            assert greedy[0].ids.tolist() == greedy[1].ids.tolist()
            assert drawn[0].ids.tolist() == drawn[1].ids.tolist()


# -- recipes and engines --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cell(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cell")
    save_cell(folder, random_cell(32, 1), DraftVocab([*range(1, 15)], 16))
    return folder


def built(target: Any, folder: Path | str, **body: Any) -> Any:
    made = recipe(kind="recurrent", name="a", drafter=str(folder), **body)
    return made.make_drafter(target, None)


def test_the_target_is_told_before_it_reads_a_prompt(tiny: Tiny, cell: Path) -> None:
    """Also where the drafter is inside a cascade; a prompt's reading may be shared by arms."""
    inner = {"kind": "recurrent", "drafter": str(cell)}
    copy = {"kind": "max_gram"}
    bodies: dict[str, dict[str, Any]] = {
        "alone": inner,
        "row": {"kind": "horizontal", "parts": [copy, inner]},
        "verified": {"kind": "vertical", "review": str(tiny(seed=5)), "inner": inner},
        "three": {"kind": "hierarchy", "middle": str(tiny(seed=5)), "small": inner},
        "token": {"kind": "token_cascade", "alpha": 0.5, "drafter": inner},
        "beams": {"kind": "sampled_beams", "beams": 2, "drafter": inner},
    }
    for name, body in bodies.items():
        engine = Engine(native(tiny()), arms({name: body}))
        read = engine.prefill(LONGER)
        made = engine.decode(name, LONGER, Request(14), read)
        if engine.arms[name].lossless:
            again = engine.decode("autoregressive", LONGER, Request(14), engine.prefill(LONGER))
            assert made.ids == again.ids
        assert made.drafted > 0


def test_a_drafter_of_another_target_is_refused(tiny: Tiny, cell: Path, tmp_path: Path) -> None:
    wide = native(tiny(hidden_size=48, num_attention_heads=6))
    with pytest.raises(DraftpickError, match=r"^arm 'a': .*states of 32, this target's have 48"):
        built(wide, cell)
    with pytest.raises(DraftpickError, match=r"^arm 'a': .*vocabulary of 16, this target has 20"):
        built(native(tiny(vocab_size=20)), cell)
    small = MappedBackend(native(tiny()), DraftVocab([*range(16)], 16))
    with pytest.raises(DraftpickError, match=r"^arm 'a': .* MappedBackend does not return"):
        built(small, cell)


@pytest.mark.parametrize("missing", ["recurrent.safetensors", "config.json", "draft_vocab.json"])
def test_a_folder_without_a_file_is_refused(missing: str, tiny: Tiny, tmp_path: Path) -> None:
    save_cell(tmp_path, random_cell(32, 1), DraftVocab([1, 2], 16))
    assert built(native(tiny()), tmp_path).parameters > 0
    (tmp_path / missing).unlink()
    with pytest.raises(DraftpickError, match=rf"^arm 'a': .* holds no {missing}"):
        built(native(tiny()), tmp_path)


def test_a_shipped_model_of_another_kind_is_refused(tiny: Tiny) -> None:
    with pytest.raises(DraftpickError, match=r"^arm 'a': .*exit-2 holds no recurrent\.safetensors"):
        built(native(tiny()), "exit-2")


def test_what_does_not_fit_is_told_before_anything_is_loaded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decoders.models import targets

    save_cell(tmp_path, random_cell(24, 1), DraftVocab([1, 2], 16))
    made = arms(a={"kind": "recurrent", "drafter": str(tmp_path)})
    monkeypatch.setattr(targets, "load_backend", None)
    monkeypatch.setattr(targets, "load_tokenizer", lambda folder: None)
    with pytest.raises(DraftpickError, match=r"^arm 'a': .*states of 24, this target's have 32"):
        Engine.load(str(tiny()), made, only=["a"], dtype="float32", device="cpu")


# -- collection -----------------------------------------------------------------------------------


def test_the_card_says_what_a_step_reads(tiny: Tiny, cell: Path) -> None:
    """The engine's count of an arm is the cell's and the head's rows."""
    engine = Engine(native(tiny()), arms(a={"kind": "recurrent", "drafter": str(cell)}))
    config = json.loads((cell / "config.json").read_text())
    d, w = config["hidden"], config["width"]
    assert engine.arm_parameters("a") == 2 * w * 2 * d + 2 * w * d + 2 * d * w + 4 * d + 14 * d
