"""One promise: the same prompt, seed and settings give the same answer, whatever drafts and whoever
else is answered."""

import math
import time
from collections import Counter
from itertools import cycle

import pytest
import torch
from decoder_toys import Leaves, Tiny, grown, native, recurrent
from effort import slow_after
from engine_toys import PROMPTS, Asked, Gone, engine_over, lossless, places_in, together
from grammar_toys import toy_engine

from collect.queries import shipped
from decoders import Engine, Grammar
from decoders.arms import recipe
from decoders.continuous_batching import ContinuousBatch
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.prefixes import PrefixStore
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.protocols import Drafter
from decoders.records import DecodeResult, Request, Sampling
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import ToyBackend, speculative

SETTINGS = {
    "hot": Sampling(1.0),
    "all": Sampling(0.7, top_k=6, top_p=0.9, repetition_penalty=1.3),
    "cool": Sampling(0.3),
    "warm": Sampling(0.7),
    "top-k": Sampling(1.0, top_k=4),
    "top-p": Sampling(0.7, top_p=0.8),
    "penalised": Sampling(1.0, repetition_penalty=0.8),
}
SETTING = pytest.mark.parametrize("setting", slow_after(2, SETTINGS))
TOKENS = 14


@pytest.fixture(scope="module")
def engine(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """In float64, so that no pass rounds away a difference."""
    target = native(tiny(max_position_embeddings=512), torch.float64)
    return engine_over(target, places_in(tmp_path_factory.mktemp("arms"), tiny))


def told(sampling: Sampling, seed: int, tokens: int = TOKENS) -> Request:
    return Request(tokens, sampling, seed=seed, logprobs=2)


def same(one: DecodeResult | None, other: DecodeResult) -> None:
    """Its tokens, its reason to end and its log-probabilities."""
    assert one is not None and one.ids == other.ids, one
    assert (one.text, one.finish_reason, one.seed) == (other.text, other.finish_reason, other.seed)
    for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
        assert math.isclose(ours.logprob, theirs.logprob, abs_tol=1e-9)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


@SETTING
def test_by_every_arm_alone_and_among_others(engine: Engine, setting: str) -> None:
    sampling = SETTINGS[setting]
    asked, plain = list[Asked](), list[DecodeResult]()
    for seed, prompt in enumerate(PROMPTS[:3]):
        request = told(sampling, seed)
        wanted = engine.decode("autoregressive", prompt, request)
        for arm in lossless(engine):
            same(engine.decode(arm, prompt, request), wanted)
            asked.append(Asked(arm, prompt, request))
            plain.append(wanted)
    together(ContinuousBatch(engine, 5), asked)
    for one, wanted in zip(asked, plain, strict=True):
        same(one.result, wanted)
        assert one.written == wanted.ids  # as it was streamed


def test_seeds_differ(engine: Engine) -> None:
    hot = [engine.decode("both", PROMPTS[0], told(Sampling(1.0), seed)).ids for seed in range(8)]
    assert len({tuple(ids) for ids in hot}) == 8


@SETTING
def test_a_longer_answer_begins_with_the_shorter_one(engine: Engine, setting: str) -> None:
    """Nor does it depend on where an answer ends."""
    sampling = SETTINGS[setting]
    whole = engine.decode("autoregressive", PROMPTS[1], told(sampling, 3, 24))
    for arm, tokens in zip(lossless(engine), (1, 2, 3, 5, 8, 13, 21, 23), strict=False):
        made = engine.decode(arm, PROMPTS[1], told(sampling, 3, tokens))
        assert made.ids == whole.ids[:tokens], arm
    word = str(engine.tokenizer.decode([whole.ids[9]]))
    stopped = Request(24, sampling, seed=3, logprobs=2, stop=(word,))
    wanted = engine.decode("autoregressive", PROMPTS[1], stopped)
    assert wanted.ids == whole.ids[: len(wanted.ids)] and wanted.finish_reason == "stop"
    for arm in lossless(engine):
        same(engine.decode(arm, PROMPTS[1], stopped), wanted)


@SETTING
def test_after_an_answer_that_was_cut_off(engine: Engine, setting: str) -> None:
    """In the middle of a round, where it had the target to itself and where others went on."""
    sampling = SETTINGS[setting]
    request, other = told(sampling, 5), told(sampling, 6)
    for arm in lossless(engine):
        wanted = engine.decode("autoregressive", PROMPTS[3], request)
        with pytest.raises(InterruptedError):
            engine.decode(arm, PROMPTS[3], request, streamer=Leaves())
        same(engine.decode(arm, PROMPTS[3], request), wanted)
    batch, goes_on = ContinuousBatch(engine, 3), Asked("both", PROMPTS[0], other)
    batch.begin(batch.slots[0], goes_on.answer)
    for arm in lossless(engine):
        wanted = engine.decode("autoregressive", PROMPTS[3], request)
        cut, slot = Asked(arm, PROMPTS[3], request, leaves=4), batch.free()
        batch.begin(slot, cut.answer)
        with pytest.raises(Gone):
            while slot.at_work is not None:
                batch.step()
        again = Asked(arm, PROMPTS[3], request)
        batch.begin(slot, again.answer)
        while slot.at_work is not None:
            batch.step()
        same(again.result, wanted)
    together(batch)
    same(goes_on.result, engine.decode("autoregressive", PROMPTS[0], other))


@SETTING
def test_in_a_conversation_that_goes_on(engine: Engine, setting: str) -> None:
    """With what the target and the drafters hold of earlier turns, and with earlier answers."""
    sampling = SETTINGS[setting]
    turns = [told(sampling, seed, 10) for seed in (1, 2)]
    said, wanted = list(PROMPTS[1]), list[tuple[list[int], DecodeResult]]()
    for request in turns:
        wanted.append((list(said), engine.decode("autoregressive", said, request)))
        said = [*said, *wanted[-1][1].ids, 2, 7]
    batch = ContinuousBatch(engine, 2)
    store, earlier = PrefixStore(2**20), EarlierAnswers()
    for slot in batch.slots:
        slot.engine.keep_prefixes(store)
        slot.engine.remember(earlier)

    class Turn(Asked):
        def answer(self, engine: Engine) -> None:
            prefilled = engine.prefill(self.prompt, reuse=True)
            self.result = engine.decode(self.arm, self.prompt, self.request, prefilled, self)

    for arm in lossless(engine):
        for (prompt, answer), request in zip(wanted, turns, strict=True):
            asked = [Turn(arm, prompt, request), Turn("small", PROMPTS[2], request)]
            together(batch, list[Asked](asked))
            same(asked[0].result, answer)
    assert store.hits


def test_under_a_grammar() -> None:
    engine = toy_engine()
    target = engine.target
    near = target.table[0] + torch.randn(target.table[0].shape, dtype=torch.float64)
    near = ToyBackend(near.expand(target.table.shape), context=4096)
    drafters: dict[str, Drafter] = {
        "draft": NeuralDrafter(near),
        "cell": recurrent(target, seed=1),
        "tree": grown(near, None, TreeShape((3, 2)), 64),
    }
    for name, drafter in drafters.items():
        engine.arms[name] = recipe(name=name, kind="max_gram")
        engine._strategies[name] = speculative(drafter, 3)
    grammars = Grammar("regex", "[a-d ]{6,20}"), Grammar.choice(["abcabc", "abdabd", "cab"])
    prompt, accepted = engine.encode_text("go on: "), Counter[str]()
    for sampling in (SETTINGS["hot"], SETTINGS["all"], SETTINGS["cool"], Sampling()):
        for seed, grammar in enumerate(grammars):
            request = Request(20, sampling, seed=seed, grammar=grammar, logprobs=1)
            wanted = engine.decode("autoregressive", prompt, request)
            for arm in lossless(engine):
                if arm != "beams":
                    made = engine.decode(arm, prompt, request)
                    same(made, wanted)
                    accepted[arm] += made.accepted
    assert min(accepted[arm] for arm in drafters) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("every_thread", "kernel")
@pytest.mark.xdist_group("default model")
@pytest.mark.parametrize("dtype", ["int4", "bfloat16"])
def test_the_default_target_by_every_arm(dtype: str) -> None:
    """By the kernels in C++, whose bits do not depend on a pass's width: as many answers as 45 s
    allow, up to 500, a third of them alone and the others eight at a time. None differs alone or in
    passes that do not depend on company. Wide shared passes multiply by other kernels, so that
    answers may part there: how many do is printed."""
    engine = Engine.load(dtype=dtype, device="cpu")
    arms = [name for name in engine.arm_names if name != "autoregressive"]
    queries = [query.turns[0] for query in shipped("test")]
    prompts = [engine.encode_chat([{"role": "user", "content": words}]) for words in queries]
    prompts.sort(key=len)
    alone, invariant, shared = Counter[bool](), Counter[bool](), Counter[bool]()
    batches = {True: ContinuousBatch(engine, 8, True), False: ContinuousBatch(engine, 8)}
    until = time.monotonic() + 45
    for number, (prompt, sampling) in enumerate(zip(prompts, cycle(SETTINGS.values()))):
        request = Request(24, sampling, seed=number)
        wanted = engine.decode("autoregressive", prompt, request).ids
        if number % 3 == 0:
            prefilled = engine.prefill(prompt)
            for arm in arms:
                alone[engine.decode(arm, prompt, request, prefilled).ids == wanted] += 1
        else:
            asked = [Asked(arm, prompt, request) for arm in arms]
            together(batches[number % 3 == 1], asked)
            for one in asked:
                (invariant if number % 3 == 1 else shared)[one.result.ids == wanted] += 1
        if (number >= 2 and time.monotonic() > until) or (
            alone + invariant + shared
        ).total() >= 500:
            break
    print(f"{dtype}: alone {alone}, batch-invariant {invariant}, sharing passes {shared}")
    assert alone[True] and invariant[True] and not alone[False] and not invariant[False]
