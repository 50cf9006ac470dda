"""Beams and scores are transformers', in fewer passes; what is drafted changes neither."""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, generate, native, transformers_model
from effort import examples, slow_after
from hypothesis import given
from hypothesis import strategies as st
from t5_toys import generate_t5, seq2seq, seq2seq_model
from transformers import PreTrainedModel

from decoders import Engine
from decoders.arms import load_arms, recipe
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import DraftpickError
from decoders.lengths import AdaptiveLength, FixedLength
from decoders.papers.beam.search import BeamDraft, BeamSearch, Found, TokenTree
from decoders.protocols import DraftLength, TreeBackend
from decoders.records import Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.tokenizers import Letters
from decoders.testing.toys import ListedLengths, ToyBackend, job, run

PROMPTS = [[3], [3, 1, 4, 1, 5, 9], [2] * 9]


def theirs(
    model: PreTrainedModel,
    prompt: list[int],
    beams: int,
    most: int,
    eos: tuple[int, ...] = (),
    **options: Any,
) -> list[tuple[list[int], float]]:
    """Every beam that transformers returns, with its score; what pads a shorter one cut off."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=most,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        early_stopping=False,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=0,
        eos_token_id=list(eos) or None,
        **options,
    )
    skip = 1 if model.config.is_encoder_decoder else len(prompt)
    found = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        new = row[skip:]
        end = next((i + 1 for i, token in enumerate(new) if token in eos), len(new))
        found.append((new[:end], score))
    return found


def search(
    strategy: BeamSearch,
    target: TreeBackend,
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
    tokenizer: Any = None,
) -> Found:
    return strategy.search(job(target, prompt, request, eos_ids=eos, tokenizer=tokenizer))


def same(found: Found, expected: list[tuple[list[int], float]]) -> None:
    assert [list(beam.ids) for beam in found.beams] == [ids for ids, _ in expected]
    for beam, (_, score) in zip(found.beams, expected, strict=True):
        assert beam.score == pytest.approx(score, rel=1e-5, abs=1e-5)  # float32 sums


def drafted(
    model: TreeBackend,
    beams: int,
    steps: DraftLength | int = 3,
    penalty: float = 1.0,
    vocab: DraftVocab | None = None,
) -> BeamSearch:
    length = FixedLength(steps) if isinstance(steps, int) else steps
    return BeamSearch("test", beams, penalty, length, BeamDraft(model, vocab, 2 * beams))


def plain(beams: int, penalty: float = 1.0) -> BeamSearch:
    return BeamSearch("test", beams, penalty, FixedLength(0))


CASES = [(0, 2, 1.0), (3, 4, 0.0), (5, 2, -0.5), (1, 3, 1.0), (2, 5, 1.0), (4, 3, 2.0)]


@pytest.mark.parametrize(("seed", "beams", "penalty"), slow_after(3, CASES))
def test_beams_and_scores_are_transformers(
    seed: int, beams: int, penalty: float, tiny: Tiny
) -> None:
    target, model = native(tiny(seed=seed)), transformers_model(tiny(seed=seed))
    draft = native(tiny(seed=seed + 20, num_hidden_layers=2))
    for prompt in PROMPTS:
        expected = theirs(model, prompt, beams, 12, length_penalty=penalty)
        for strategy in (plain(beams, penalty), drafted(draft, beams, 3, penalty)):
            same(search(strategy, target, prompt, Request(12)), expected)


@pytest.mark.parametrize(("seed", "beams", "penalty"), slow_after(3, CASES))
def test_beams_that_end(seed: int, beams: int, penalty: float, tiny: Tiny) -> None:
    target, model = native(tiny(seed=seed)), transformers_model(tiny(seed=seed))
    likeliest = generate(model, PROMPTS[0], 6)
    short = 0
    for eos in ((likeliest[-1],), (likeliest[2], 9), (2, 7, 11)):
        for prompt in PROMPTS[:2]:
            expected = theirs(model, prompt, beams, 12, eos, length_penalty=penalty)
            twin = native(tiny(seed=seed))  # as much is accepted as can be
            for strategy in (plain(beams, penalty), drafted(twin, beams, 3, penalty)):
                found = search(strategy, target, prompt, Request(12), eos)
                same(found, expected)
                assert found.result.ids == expected[0][0]
                ends = found.result.ids[-1] in eos
                assert found.result.finish_reason == ("eos" if ends else "length")
            short += any(len(ids) < 12 for ids, _ in expected)
    assert short > 0


def test_one_beam_is_greedy(tiny: Tiny) -> None:
    target, model = native(tiny()), transformers_model(tiny())
    for strategy in (plain(1), drafted(native(tiny(seed=5, num_hidden_layers=2)), 1)):
        for prompt in PROMPTS:
            assert search(strategy, target, prompt, Request(20)).result.ids == generate(
                model, prompt, 20
            )


def test_a_repetition_penalty(tiny: Tiny) -> None:
    target, model = native(tiny(seed=1)), transformers_model(tiny(seed=1))
    for penalty in (1.4, 0.8):
        request = Request(10, Sampling(repetition_penalty=penalty))
        expected = theirs(model, PROMPTS[1], 3, 10, repetition_penalty=penalty)
        for strategy in (plain(3), drafted(native(tiny(seed=1)), 3)):
            same(search(strategy, target, PROMPTS[1], request), expected)


def test_fewer_tokens_than_candidates(tiny: Tiny) -> None:
    """The first step has three continuations for four beams; transformers fills up with doubles."""
    folder = tiny(seed=3, vocab_size=3)
    target, model = native(folder), transformers_model(folder)
    for strategy in (plain(4), drafted(native(folder), 4, 2)):
        same(search(strategy, target, [1, 2], Request(8)), theirs(model, [1, 2], 4, 8))


def test_transformers_backends(tiny: Tiny) -> None:
    target = HFBackend.load(tiny(seed=1), CPU, torch.float32)
    draft = HFBackend.load(tiny(seed=1), CPU, torch.float32)
    model = transformers_model(tiny(seed=1))
    found = search(drafted(draft, 3), target, PROMPTS[1], Request(12), (9,))
    same(found, theirs(model, PROMPTS[1], 3, 12, (9,)))
    assert found.result.accepted > 0


def test_a_drafter_of_a_part_of_the_vocabulary(tiny: Tiny) -> None:
    target, model = native(tiny(seed=2)), transformers_model(tiny(seed=2))
    vocab = DraftVocab([1, 2, 3, 5, 8, 9, 13], 16)
    draft = native(tiny(seed=6, num_hidden_layers=2, vocab_size=vocab.size))
    for eos in ((), (5,), (4, 8)):
        found = search(drafted(draft, 2, vocab=vocab), target, PROMPTS[1], Request(12), eos)
        same(found, theirs(model, PROMPTS[1], 2, 12, eos))
        assert found.result.drafted > 0


GATED = {"feed_forward_proj": "gated-gelu"}


@pytest.mark.parametrize(("seed", "beams", "penalty"), slow_after(1, CASES))
@pytest.mark.parametrize("kind", ["t5", "t5-gated", "umt5"])
def test_an_encoder_decoder(
    kind: str, seed: int, beams: int, penalty: float, tiny_t5: Tiny
) -> None:
    """With no end, and with ends inside; drafted by a smaller model and by the target's twin."""
    name, config = kind.split("-")[0], GATED if "gated" in kind else {}
    folder = tiny_t5(name, seed=seed, **config)
    target, model = seq2seq(folder), seq2seq_model(folder)
    small = seq2seq(tiny_t5(seed=seed + 20, num_layers=1, num_decoder_layers=1))
    twin, short = seq2seq(folder), 0
    for prompt in PROMPTS:
        likely = generate_t5(model, prompt, 6)
        for eos in ((), (likely[-1],), (likely[2], 9)):
            expected = theirs(model, prompt, beams, 12, eos, length_penalty=penalty)
            for draft in (None, small, twin):
                strategy = drafted(draft, beams, 3, penalty) if draft else plain(beams, penalty)
                found = search(strategy, target, prompt, Request(12), eos)
                same(found, expected)
                assert found.result.prompt_ids == prompt
                assert target.length == 1  # nothing of the search is left
                if draft is twin and not eos:
                    assert found.result.rounds <= 4  # for 11 tokens, up to four a pass
            short += any(len(ids) < 12 for ids, _ in expected)
    assert short > 0


# -- what is drafted changes nothing but the passes -----------------------------------------------

V = 6


@given(
    st.integers(0, 999),
    st.lists(st.integers(0, V - 1), min_size=1, max_size=5),
    st.integers(1, 4),
    st.one_of(
        st.integers(1, 4).map(FixedLength),
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(ListedLengths),
        st.just(AdaptiveLength(4)),
    ),
    st.sampled_from([-1.0, 0.0, 0.6, 3.0]),
    st.integers(1, 14),
    st.sets(st.integers(0, V - 1), max_size=2),
    st.sampled_from([1.0, 0.0, 2.0]),
)
@examples(120)
def test_any_draft_finds_the_same_beams(
    seed: int,
    prompt: list[int],
    beams: int,
    length: DraftLength,
    noise: float,
    most: int,
    eos: set[int],
    penalty: float,
) -> None:
    target = ToyBackend.random(V, seed, 1.0)
    other = ToyBackend(target.table + noise * ToyBackend.random(V, seed + 1).table)
    ends, request, chunks = tuple(eos), Request(most), list[list[int]]()
    alone = search(plain(beams, penalty), target, prompt, request, ends)
    strategy = drafted(other, beams, length, penalty)
    found = search(strategy, target, prompt, request, ends)
    assert [beam.ids for beam in found.beams] == [beam.ids for beam in alone.beams]
    for one, two in zip(found.beams, alone.beams, strict=True):
        assert one.score == pytest.approx(two.score)
    result = run(target, strategy, prompt, request, eos_ids=ends, emit=chunks.append)
    assert result.ids == found.result.ids == list(found.beams[0].ids)
    # the books
    assert chunks == [result.ids] and 1 <= len(result.ids) <= most
    assert result.target_calls == 1 + result.rounds <= alone.result.target_calls
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    assert result.accepted_per_position == sorted(result.accepted_per_position, reverse=True)
    assert result.accepted + result.rounds >= len(result.ids) - 1
    assert target.length == len(prompt)  # nothing of the search is left


def test_what_a_part_of_the_vocabulary_drafts_has_the_target_s_ids() -> None:
    """A model that knows the target's odds among three tokens spares passes."""
    target, kept = ToyBackend.random(V, 5), [1, 3, 4]
    vocab = DraftVocab(kept, V)
    table = ToyBackend.random(vocab.size, 5).table
    table[:3, :3, :3] = target.table[kept][:, kept][:, :, kept]
    strategy = drafted(ToyBackend(table), 2, vocab=vocab)
    assert search(strategy, target, [1, 3], Request(20)).result.rounds < 15


def test_a_stop_string_ends_a_beam_as_an_end_token_does() -> None:
    for seed in range(6):
        target = ToyBackend.random(V, seed, 1.0)
        by_id = search(plain(3), target, [0], Request(10), (2,))
        request = Request(10, stop=("c",))
        for strategy in (plain(3), drafted(ToyBackend(target.table), 3)):
            found = search(strategy, target, [0], request, tokenizer=Letters())
            assert [beam.ids for beam in found.beams] == [beam.ids for beam in by_id.beams]
            assert found.result.text == Letters().decode(found.result.ids)
            if found.result.ids[-1] == 2:
                assert found.result.finish_reason == "stop"


# -- limits and mistakes --------------------------------------------------------------------------


def test_sampling_is_refused_in_a_sentence() -> None:
    with pytest.raises(DraftpickError, match=r"'test' is a beam search.*temperature 0"):
        search(plain(2), ToyBackend.random(V, 0), [1], Request(4, Sampling(0.7)))


def test_a_full_context() -> None:
    """Drafts are cut to the room there is; beams alone that find none are a sentence."""
    table = ToyBackend.random(V, 3, 1.0).table
    wide = search(plain(3), ToyBackend(table, 200), [1] * 20, Request(12))
    for context in (46, 50, 60, 80):
        strategy = drafted(ToyBackend(table, context), 3, 4)
        found = search(strategy, ToyBackend(table, context), [1] * 20, Request(12))
        assert [beam.ids for beam in found.beams] == [beam.ids for beam in wide.beams]
    with pytest.raises(DraftpickError, match=r"3 beams of .* lower `beams`"):
        search(plain(3), ToyBackend(table, 24), [1] * 20, Request(12))


def test_each_token_is_read_once() -> None:
    backend = ToyBackend.random(V, 0)
    tree = TokenTree(backend, backend.prefill([1, 2]).logits)
    assert tree.has(()) and not tree.has((3,))
    wanted = [(3,), (3, 4), (3, 4, 5), (3, 5), (0, 4)]
    assert tree.missing(wanted) == tree.read(wanted) == 6
    assert tree.missing(wanted) == tree.read(wanted) == 0
    assert backend.length == 2 + 6 and all(map(tree.has, wanted))
    tree.keep([(3, 4, 0), (3, 5)])
    assert backend.length == 2 + 3
    assert tree.has((3, 4)) and tree.has((3, 5)) and not tree.has((3, 4, 5))
    assert tree.read([(3, 4, 0), (3, 5, 5)]) == 2
    fresh = ToyBackend(backend.table)
    for ids in ((3, 4, 0), (3, 5, 5)):
        assert torch.equal(tree.logits([ids])[0], fresh.prefill([1, 2, *ids]).logits)


def test_a_recipe_becomes_an_arm(tiny: Tiny, tmp_path: Path) -> None:
    drafter = tiny(seed=5, num_hidden_layers=2)
    file = tmp_path / "arms.yaml"
    file.write_text(
        f"""
        arms:
          beams: {{kind: beam, beams: 3, length_penalty: 0.5}}
          ahead:
            kind: beam
            beams: 3
            length_penalty: 0.5
            drafter: {{kind: neural, drafter: {drafter}}}
            length: {{k: 2}}
            width: 4
        """
    )
    target, model = native(tiny()), transformers_model(tiny())
    for name in ("beams", "ahead"):
        arm = load_arms(file)[name]
        strategy: Any = arm.build(target, None)
        assert (strategy.name, strategy.beams, arm.lossless) == (name, 3, False)
        expected = theirs(model, PROMPTS[1], 3, 10, length_penalty=0.5)
        same(search(strategy, target, PROMPTS[1], Request(10)), expected)
    assert strategy.draft.width == 4 and strategy.parameters == strategy.draft.parameters > 0
    engine = Engine(target, load_arms(file))
    assert engine.arm_parameters("beams") == target.parameters > strategy.parameters
    assert engine.arm_parameters("ahead") == strategy.parameters
    result = engine.decode("ahead", PROMPTS[1], Request(10))
    assert result.draft_work == result.draft_calls * strategy.parameters > 0
    assert recipe(kind="beam", beams=1).lossless
