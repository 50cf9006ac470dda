"""Early exits: an encoder-decoder drafts with its first decoder layers, and runs none twice."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_toys import close
from decoder_toys import CPU, Tiny, edited, native, watched
from engine_toys import arms
from t5_toys import cut_model, from_scratch, generate_t5, lens_exit, seq2seq, seq2seq_model

from decoders import Engine
from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.transformers.seq2seq_exit import LensHead, plain_lens
from decoders.common.errors import DraftpickError
from decoders.lengths import FixedLength
from decoders.records import Request
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.toys import ListedLengths, run, speculative

SOURCE = [3, 1, 4, 1, 5, 9, 1]
KINDS = ("t5", "mt5", "umt5")
LAYERS = 3


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tiny_t5: Tiny) -> Path:
    return tiny_t5(request.param, seed=4, num_decoder_layers=LAYERS)


# -- the drafter ----------------------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize("pattern", [[4], [2, 0, 0, 1, 0], [0, 0, 3]])
@pytest.mark.parametrize("layer", [1, 2])
def test_untrained_it_is_the_model_cut_off_after_its_layer(
    folder: Path, layer: int, pattern: list[int]
) -> None:
    """With the target's own norm and head; drafts do not depend on the rounds before, also where it
    sat out some."""
    target = seq2seq(folder, torch.float64)
    drafter = lens_exit(target, layer, noise=0)
    seen, cut = watched(drafter), from_scratch(cut_model(folder, layer, torch.float64), SOURCE)
    result = run(target, speculative(drafter, ListedLengths(pattern)), SOURCE, Request(30))
    assert result.ids == generate_t5(seq2seq_model(folder), SOURCE, 30)
    assert len(seen) > 3
    for context, _, made in seen:
        for token in made.ids.tolist():
            assert token == int(cut(context).argmax())
            context.append(token)
    assert 0 < result.accepted < result.drafted


def test_a_lens_is_a_norm_and_a_map(tiny_t5: Tiny) -> None:
    target = seq2seq(tiny_t5(), torch.float64)
    vocab = DraftVocab([1, 5, 9, 12], 16)
    lens = plain_lens(target, 1).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    lens.norm.copy_(torch.rand(32, generator=generator))
    lens.lens.copy_(torch.randn(32, 32, generator=generator))
    states = torch.randn(3, 32, dtype=torch.float64, generator=generator)
    head = LensHead(target, lens, vocab)
    normed = states[2] / (states[2].square().mean() + 1e-6).sqrt() * lens.norm
    rows = target.model.lm_head.weight[vocab.to_target]
    close(head.score(head.read(states, 5)), rows @ (lens.lens @ normed) * 32**-0.5, 1e-10)
    assert head.adapter_parameters == 32 + 32 * 32
    assert head.parameters == 32 + 32 * 32 + 4 * 32  # with the head's rows of four draft tokens


@pytest.mark.parametrize("layer", [1, 2])
def test_an_exit_counts_the_weights_that_it_reads(folder: Path, layer: int) -> None:
    """Blocks below it without what reads the encoder's states, the lens, and the whole head."""
    target = seq2seq(folder)
    below = [p for b in target.model.decoder.block[:layer] for p in b.named_parameters()]
    read = [p.numel() for name, p in below if "EncDecAttention.k" not in name]
    kept = [p.numel() for name, p in below if "EncDecAttention.v" in name]
    lens, head = 32 + 32 * 32, target.model.lm_head.weight.numel()
    drafter = lens_exit(target, layer)
    assert drafter.parameters == sum(read) - sum(kept) + lens + head
    assert lens + head < drafter.parameters < target.parameters
    result = run(target, speculative(drafter, FixedLength(3)), SOURCE, Request(12))
    drafting = result.draft_calls - 1  # the first call reads the start token, by the lens alone
    assert result.draft_work == drafting * drafter.parameters + lens


def test_no_layer_runs_a_position_twice(folder: Path) -> None:
    """Only what was rejected is run again, as another token. So keys and values are there once."""
    target = seq2seq(folder)
    drafter = lens_exit(target, 1, noise=0)
    runs: list[Counter[int]] = [Counter() for _ in range(LAYERS)]
    for number, block in enumerate(target.model.decoder.block):

        def noted(_: Any, given: Any, number: int = number) -> None:
            runs[number][given[0].shape[1]] += 1

        block.register_forward_pre_hook(noted)
    result = run(target, speculative(drafter, 3), SOURCE, Request(28))
    assert 0 < result.accepted < result.drafted
    positions = [sum(t * times for t, times in widths.items()) for widths in runs]
    # the start token; then each round the newest token and all that was drafted
    assert positions == [1 + result.rounds + result.drafted] * LAYERS
    assert sum(runs[1].values()) == sum(runs[2].values()) == result.target_calls
    # below, one token a pass: the last drafted one in the verification, the others while it drafted
    assert set(runs[0]) == {1} and max(runs[1]) == 4


# -- arms -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Path, Tiny, Tiny], Any], str]] = {
    "of another width": (
        lambda folder, tiny, tiny_t5: plain_lens(seq2seq(tiny_t5(d_model=16)), 1).save(folder),
        r"'odd': .* hidden states of 16, this target's have 32",
    ),
    "of another vocabulary": (
        lambda folder, tiny, tiny_t5: DraftVocab([1, 2], 99).save(folder),
        "vocabulary of 99, this target has 16",
    ),
    "with layers of a Llama": (
        lambda folder, tiny, tiny_t5: Adapter.begin(native(tiny()), AdapterConfig(1)).save(folder),
        r"'odd': .*1 layer\(s\) of a decoder-only target",
    ),
    "after the last layer": (
        lambda folder, tiny, tiny_t5: edited(folder, exit_layer=2),
        "1 to 1, not 2",
    ),
    "on a decoder": (lambda *_: None, "native backend, .* or a T5-like target"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_does_not_fit(case: str, tiny: Tiny, tiny_t5: Tiny, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    plain_lens(seq2seq(tiny_t5()), 1).save(tmp_path)
    change(tmp_path, tiny, tiny_t5)
    target = HFBackend.load(tiny(), CPU, torch.float32) if "decoder" in case else seq2seq(tiny_t5())
    engine = Engine(target, arms(odd={"kind": "early_exit", "drafter": str(tmp_path)}))
    with pytest.raises(DraftpickError, match=words):
        engine.decode("odd", SOURCE, Request(3))
    assert engine.decode("autoregressive", SOURCE, Request(3)).ids  # the rest still works
