"""T = 0: whatever drafts, the ids are the target's own, and transformers'."""

from collections.abc import Callable

import pytest
from cascade_toys import cascades
from decoder_toys import (
    Tiny,
    balanced,
    generate,
    greedy,
    native,
    transformers_model,
    watched,
)
from effort import examples
from exactness import DRAFTERS
from hypothesis import given
from hypothesis import strategies as st

from decoders.lengths import AdaptiveLength, FixedLength, ScheduledLength
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import Drafter, DraftLength, work
from decoders.records import Request, Sampling
from decoders.testing.toys import (
    ListedLengths,
    ToyBackend,
    autoregressive,
    run,
    speculative,
)

V = 5
TOYS: list[Callable[[ToyBackend], Drafter]] = [
    *DRAFTERS.values(),
    lambda target: NeuralDrafter(ToyBackend(target.table)),  # agrees always
    lambda target: NeuralDrafter(ToyBackend(-target.table)),  # agrees hardly ever
]
KINDS: dict[str, tuple[int, st.SearchStrategy[Callable[[ToyBackend], Drafter]]]] = {
    # how many tokens its target has
    "a drafter": (3, st.sampled_from(TOYS)),
    "a cascade": (V, cascades.map(lambda make: lambda target: make())),
    "a cascade with siblings": (V, st.builds(
        lambda make, branch: lambda target: WidenedDrafter(make(), branch, 512),
        cascades, st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    )),
}  # fmt: skip
prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=12)
lengths: st.SearchStrategy[DraftLength] = st.one_of(
    st.builds(FixedLength, st.integers(0, 7), st.sampled_from([0.0, 0.4, 0.8])),
    st.builds(AdaptiveLength, st.integers(1, 6), st.sampled_from([0.0, 0.4])),
    st.builds(ScheduledLength, st.integers(1, 4), st.sampled_from([0.0, 0.4])),
    st.builds(ListedLengths, st.lists(st.integers(0, 9), min_size=1, max_size=5)),
)
penalties = st.sampled_from([1.0, 1.0, 1.6, 0.7])
samplings = st.builds(
    lambda temperature, penalty: Sampling(temperature, repetition_penalty=penalty),
    st.sampled_from([0.0, 0.0, 0.9]), penalties,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.data(),
    st.integers(0, 999),
    lengths,
    st.integers(1, 30),
    st.sets(st.integers(0, V - 1), max_size=2),
    samplings,
)
@examples(200)
def test_the_target_s_own_ids_and_books_that_balance(
    kind: str,
    data: st.DataObject,
    seed: int,
    length: DraftLength,
    most: int,
    eos: set[int],
    sampling: Sampling,
) -> None:
    vocab, drafters = KINDS[kind]
    target, chunks = ToyBackend.random(vocab, seed), list[list[int]]()
    drafter = data.draw(drafters)(target)
    prompt = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=12))
    request, ends = Request(most, sampling, seed=seed), tuple(eos)
    strategy = speculative(drafter, length)
    result = run(target, strategy, prompt, request, eos_ids=ends, emit=chunks.append)
    if sampling.greedy:
        alone = run(target, autoregressive(), prompt, request, eos_ids=ends)
        assert (result.ids, result.finish_reason) == (alone.ids, alone.finish_reason)
        assert result.target_calls <= alone.target_calls
    balanced(result, most)
    assert [token for chunk in chunks for token in chunk] == result.ids
    assert all(chunks) and len(chunks) == result.rounds + 1
    assert (result.prompt_ids, result.draft_calls) == (prompt, drafter.calls)
    if isinstance(drafter, WidenedDrafter):
        assert result.draft_work == work(drafter.inner)


LEARNING = ("hybrid", "suffix", "inner-sits-out")  # what was accepted before counts too


@pytest.mark.every(3)
@pytest.mark.parametrize("pattern", [[3], [2, 0, 0, 1], [0, 4, 0]])
@pytest.mark.parametrize("name", [n for n in DRAFTERS if not n.startswith(LEARNING)])
def test_what_was_rejected_and_sat_out_is_forgotten(name: str, pattern: list[int]) -> None:
    """Each draft is that of a drafter that has just read what is accepted."""
    target = ToyBackend.random(3, 3, 1.0)
    drafter = DRAFTERS[name](target)
    seen = watched(drafter)
    run(target, speculative(drafter, ListedLengths(pattern)), [0, 1], Request(30))
    assert len(seen) > 3
    for context, k, made in seen:
        other = ToyBackend(target.table)
        other.prefill(context[:-1])
        fresh = DRAFTERS[name](other)
        fresh.reset(context[:-1])
        again = fresh.propose(context, greedy(k))
        assert (again.ids.tolist(), again.parents) == (made.ids.tolist(), made.parents)


@given(st.integers(0, 999), prompts, st.integers(1, 30), st.sets(st.integers(0, V - 1)), penalties)
@examples(60)
def test_autoregressive_is_the_argmax_of_the_table(
    seed: int, prompt: list[int], most: int, eos: set[int], penalty: float
) -> None:
    target = ToyBackend.random(V, seed)
    context = list(prompt)
    while len(context) < len(prompt) + most:
        scores = target.next_logits(context).clone()
        for token in set(context):
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
        context.append(int(scores.argmax()))
        if context[-1] in eos:
            break
    request = Request(most, Sampling(repetition_penalty=penalty))
    result = run(target, autoregressive(), prompt, request, eos_ids=tuple(eos))
    assert prompt + result.ids == context
    assert (result.rounds, result.drafted) == (len(result.ids) - 1, 0)
    assert result.target_calls == len(result.ids)


# -- against transformers -------------------------------------------------------------------------

PROMPTS = [[3], [3, 1, 4, 1, 5, 9], [2] * 9, [7, 11, 7, 11, 7]]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_native_ids_equal_transformers_generate(penalty: float, tiny: Tiny) -> None:
    """Plain decoding's, which every arm writes (test_contract.py)."""
    target, model = native(tiny()), transformers_model(tiny())
    for prompt in PROMPTS:
        theirs = generate(model, prompt, 16, repetition_penalty=penalty)
        request = Request(16, Sampling(repetition_penalty=penalty))
        assert run(target, autoregressive(), prompt, request).ids == theirs
