"""D18 on D22: an encoder-decoder drafts with its first decoder layers, and runs none twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native, watched
from t5_toys import (
    EXIT_T5,
    cut_model,
    from_scratch,
    generate_t5,
    lens_exit,
    seq2seq,
    seq2seq_model,
)
from torch import Tensor

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.exit_adapter import Adapter
from decoders.backends.llama.exit_head import AdapterConfig
from decoders.backends.transformers.hf import HFBackend
from decoders.backends.transformers.hf_seq2seq import HFSeq2SeqBackend
from decoders.backends.transformers.seq2seq_exit import LensHead, plain_lens
from decoders.common.errors import ContextTooLong, DraftpickError
from decoders.lengths import FixedLength
from decoders.protocols import DraftLength, ExitBackend
from decoders.records import Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import ListedLengths, run, speculative

SOURCE = [3, 1, 4, 1, 5, 9, 1]
KINDS = ("t5", "mt5", "umt5")
LAYERS = 3


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tiny_t5: Tiny) -> Path:
    return tiny_t5(request.param, seed=4, num_decoder_layers=LAYERS)


def opened(folder: Path, layer: int = 1) -> HFSeq2SeqBackend:
    target = seq2seq(folder, torch.float64)
    target.open_exit(layer)
    return target


def ids(*tokens: int) -> Tensor:
    return torch.tensor(tokens)


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


# -- the target's layers --------------------------------------------------------------------------


def test_is_an_exit_backend(folder: Path) -> None:
    assert isinstance(seq2seq(folder), ExitBackend)


@pytest.mark.every(2)
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_running_ahead_changes_nothing(folder: Path, ahead: int, layer: int) -> None:
    plain, target = seq2seq(folder, torch.float64), opened(folder, layer)
    same(target.prefill(SOURCE).logits, plain.prefill(SOURCE).logits)
    for token in (9, 2, 6)[:ahead]:
        target.lower(layer, ids(token))
    assert (target.ahead, target.length) == (1 + ahead, 1)
    same(target.extend(ids(9, 2, 6)), plain.extend(ids(9, 2, 6)))
    assert target.ahead == target.length == 4
    same(target.extend(ids(1)), plain.extend(ids(1)))


def test_what_ran_ahead_is_rolled_back(folder: Path) -> None:
    plain, target = seq2seq(folder, torch.float64), opened(folder)
    plain.prefill(SOURCE)
    target.prefill(SOURCE)
    target.lower(1, ids(15, 15))
    target.truncate(1)
    assert target.ahead == target.length == 1
    same(target.extend(ids(3, 4)), plain.extend(ids(3, 4)))
    target.lower(1, ids(9, 9, 9))  # more than the pass then reads
    same(target.extend(ids(9)), plain.extend(ids(9)))
    assert target.ahead == target.length == 4
    target.lower(1, ids(7))
    same(target.prefill(SOURCE).logits, plain.prefill(SOURCE).logits)
    assert target.ahead == 1


def test_states_at_the_exit_are_transformers_own(folder: Path) -> None:
    with torch.no_grad():
        out = seq2seq_model(folder, torch.float64)(
            input_ids=ids(*SOURCE)[None],
            decoder_input_ids=ids(0, 9, 2)[None],
            output_hidden_states=True,
        )
    target = opened(folder, 2)
    target.prefill(SOURCE)
    same(target.lower(2, ids(9, 2)), out.decoder_hidden_states[2][0, 1:])
    same(target.exit_hidden(2, 0, 3), out.decoder_hidden_states[2][0])


TOKENS, PARENTS = [9, 6, 2, 11, 7], [-1, 0, 1, -1, 0]  # the first three follow each other


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_a_tree_over_what_ran_ahead(folder: Path, ahead: int) -> None:
    plain, target, chain = seq2seq(folder, torch.float64), opened(folder), opened(folder)
    for backend in (plain, target, chain):
        backend.prefill(SOURCE)
    if ahead:
        target.lower(1, ids(*TOKENS[:ahead]))
    same(target.extend(ids(*TOKENS), PARENTS), plain.extend(ids(*TOKENS), PARENTS))
    target.keep([0, 4])
    chain.extend(ids(9, 7))
    assert target.ahead == target.length == 3
    same(target.exit_hidden(1, 0, 3), chain.exit_hidden(1, 0, 3))
    same(target.lower(1, ids(1)), chain.lower(1, ids(1)))
    same(target.extend(ids(1, 5)), chain.extend(ids(1, 5)))


def test_a_token_may_leave_early_where_an_exit_is_open(folder: Path) -> None:
    """CALM after a draft that was not verified: as on a target without an exit."""
    plain, target = seq2seq(folder, torch.float64), opened(folder)
    for backend in (plain, target):
        backend.prefill(SOURCE)
    target.lower(1, ids(5, 5))
    for token in (4, 2):
        states = [
            b.extend_until(token, lambda h, below, depth: depth == 2)[0] for b in (plain, target)
        ]
        same(*states)
    assert target.ahead == target.length == 3
    same(target.extend(ids(8)), plain.extend(ids(8)))


def test_an_exit_opened_again_and_one_that_cannot_be(folder: Path) -> None:
    target = opened(folder)
    target.prefill(SOURCE)
    before = target.exit_hidden(1, 0, 1).clone()
    target.open_exit(1)
    assert torch.equal(target.exit_hidden(1, 0, 1), before)  # a prompt may have been read since
    for layer in (0, 3):
        with pytest.raises(DraftpickError, match=f"1 to 2, not {layer}"):
            seq2seq(folder).open_exit(layer)


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 2, 1), (2, 1, 2)])
def test_exits_take_turns(folder: Path, order: tuple[int, ...]) -> None:
    """Whichever ran ahead, and whichever before it, the target and both exits see the same."""
    plain, target = seq2seq(folder, torch.float64), opened(folder, 2)
    target.open_exit(1)
    whole = seq2seq_model(folder, torch.float64)
    for backend in (plain, target):
        backend.prefill(SOURCE)
    for layer in order:
        target.lower(layer, ids(5))  # another exit's is forgotten
        target.truncate(1)
    for layer in order:
        target.lower(layer, ids(9, 2))
    same(target.extend(ids(9, 2, 6)), plain.extend(ids(9, 2, 6)))
    with torch.no_grad():
        out = whole(
            input_ids=ids(*SOURCE)[None],
            decoder_input_ids=ids(0, 9, 2, 6)[None],
            output_hidden_states=True,
        )
    for layer in (1, 2):
        same(target.exit_hidden(layer, 0, 4), out.decoder_hidden_states[layer][0])


def test_the_context_is_not_overrun(folder: Path) -> None:
    target = opened(folder)
    target.prefill(SOURCE)
    target.extend(ids(*[2] * (target.context - 2)))
    target.lower(1, ids(3))
    with pytest.raises(ContextTooLong):
        target.lower(1, ids(3))
    assert target.extend(ids(3)).shape == (1, 16)


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
    same(head.score(head.read(states, 5)), rows @ (lens.lens @ normed) * 32**-0.5)
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


# -- sampled: every draw and every acceptance walked ----------------------------------------------

SAMPLINGS = {
    "plain": Sampling(1.0),
    "all": Sampling(1.3, top_k=2, top_p=0.9, repetition_penalty=1.7),
}
LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "fixed": lambda: FixedLength(2),
    "confident": lambda: FixedLength(2, min_confidence=0.36),
    "sits-out": lambda: ListedLengths([0, 2, 1]),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("sampling", "length", "kept", "eos"),
    [
        ("all", "fixed", None, (1,)),  # few outcomes
        ("plain", "confident", None, (1,)),
        ("plain", "sits-out", None, ()),
        ("all", "sits-out", None, ()),
        ("plain", "fixed", None, ()),
        ("plain", "fixed", [0, 2], ()),
    ],
)
def test_the_distribution_is_the_target_s(
    sampling: str, length: str, kept: list[int] | None, eos: tuple[int, ...], tiny_t5: Tiny
) -> None:
    folder, source = tiny_t5(seed=11, **EXIT_T5), [2, 1, 2, 0, 1]
    target, request = seq2seq(folder, torch.float64), Request(4, SAMPLINGS[sampling])
    vocab = None if kept is None else DraftVocab(kept, 3)
    strategy = speculative(lens_exit(target, 1, seed=2, vocab=vocab, noise=0.3), LENGTHS[length]())
    distribution = loop_distribution(target, strategy, source, request, eos)
    logits = from_scratch(seq2seq_model(folder, torch.float64), source)
    truth = reference_distribution(logits, [target.start_id], request, eos)
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(distribution, truth) < 1e-9
    assert max(truth.values()) < 0.9  # there is something to get wrong


# -- arms -----------------------------------------------------------------------------------------

EXIT: dict[str, Any] = {"kind": "early_exit"}
SOURCES = [SOURCE, [3], [7, 11, 7, 11, 1], [*range(2, 16), 1]]
CASCADES = {"token": ("token_cascade", 0.5), "oracle": ("oracle_cascade", 0.0)}


@pytest.fixture(scope="module")
def model(tiny_t5: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 that is sure of itself, with a final norm that an adapter's file holds unrounded."""
    made = seq2seq_model(tiny_t5(tie_word_embeddings=False))
    norm = made.decoder.final_layer_norm.weight.data
    norm.copy_(norm.bfloat16())
    folder = tmp_path_factory.mktemp("sure")
    made.save_pretrained(folder)
    return folder


def engine_of(target: Any, **bodies: dict[str, Any]) -> Engine:
    bodies["autoregressive"] = {"kind": "autoregressive"}
    return Engine(target, {name: recipe(name=name, **body) for name, body in bodies.items()})


@pytest.mark.parametrize("name", CASCADES)
def test_cascades_from_scratch(name: str, model: Path, tmp_path: Path) -> None:
    plain_lens(seq2seq(model), 1).save(tmp_path)
    kind, alpha = CASCADES[name]
    drafter = {**EXIT, "drafter": str(tmp_path)}
    engine = engine_of(seq2seq(model), a={"kind": kind, "alpha": alpha, "drafter": drafter})
    large, small = seq2seq_model(model), cut_model(model, 1)
    deferred = 0
    for source in SOURCES:
        p, q = from_scratch(large, source), from_scratch(small, source)
        context = [0]
        for token in engine.decode("a", source, Request(16, eos_ids=())).ids:
            sure = float(q(context).softmax(-1).max())
            bar = 1 - alpha if name == "token" else float(p(context).softmax(-1).max()) - alpha
            deferred += sure < bar
            assert token == int((p if sure < bar else q)(context).argmax())
            context.append(token)
    assert 0 < deferred < 16 * len(SOURCES)


def layer_2(folder: Path, tiny: Tiny, tiny_t5: Tiny) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"exit_layer": 2}))


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
    "after the last layer": (layer_2, "1 to 1, not 2"),
    "on a decoder": (lambda *_: None, "native backend, .* or a T5-like target"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_does_not_fit(case: str, tiny: Tiny, tiny_t5: Tiny, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    plain_lens(seq2seq(tiny_t5()), 1).save(tmp_path)
    change(tmp_path, tiny, tiny_t5)
    target = HFBackend.load(tiny(), CPU, torch.float32) if "decoder" in case else seq2seq(tiny_t5())
    engine = engine_of(target, odd={**EXIT, "drafter": str(tmp_path)})
    with pytest.raises(DraftpickError, match=words):
        engine.decode("odd", SOURCE, Request(3))
    assert engine.decode("autoregressive", SOURCE, Request(3)).ids  # the rest still works


def test_two_layers_of_one_target(tiny_t5: Tiny, tmp_path: Path) -> None:
    target = seq2seq(tiny_t5(num_decoder_layers=3))
    for layer in "12":
        (tmp_path / layer).mkdir()
        plain_lens(target, int(layer)).save(tmp_path / layer)
    exits = {layer: {**EXIT, "drafter": str(tmp_path / layer)} for layer in "12"}
    engine, request = engine_of(target, **exits), Request(12)
    expected = engine.decode("autoregressive", [3, 1, 4], request).ids
    for arm in ("1", "2", "1"):
        made = engine.decode(arm, [3, 1, 4], request)
        assert made.ids == expected and made.drafted > 0
    assert engine.arm_parameters("1") < engine.arm_parameters("2")
