"""What every way to answer promises, asked of each on each backend, as an arm of an engine."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from backend_toys import make
from contract_kit import (
    EVERYWHERE,
    IN_BATCHES,
    LONG,
    METHODS,
    PROMPTS,
    SAME_TWICE,
    TOKEN_BY_TOKEN,
    Engines,
    Untimed,
    on_backends,
    placed,
    ready,
)
from decoder_toys import TickingClock, Tiny, transformers_model
from engine_toys import arms
from t5_toys import seq2seq_model

from collect.replay.batch import Batch
from collect.replay.records import Replay
from decoders import Engine
from decoders.arms import KINDS
from decoders.costs.measured import Costs
from decoders.lengths import AdaptiveLength
from decoders.loop import SpeculativeDecoding
from decoders.protocols import Drafter, DraftRequest, decoder_prefix
from decoders.records import DecodeResult, Proposal, Request, Sampling
from decoders.testing.tokenizers import Letters
from decoders.testing.toys import ListedLengths, Streamed, job, run


class Rounds(Streamed):
    """Told of each round, and keeps how much of its draft was accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        assert 0 <= accepted <= drafted and not self.ended
        self.parts.append(ids)
        self.taken.append(accepted)


def answer(engine: Engine, name: str, prompt: list[int], request: Request) -> DecodeResult:
    """An answer whose books are in order, whatever the strategy."""
    streamed = Rounds()
    result = engine.decode(name, prompt, request, streamer=streamed)
    assert streamed.prompt == prompt and streamed.ids == result.ids and streamed.ended
    assert (result.arm, result.prompt_ids) == (name, prompt)
    assert 1 <= len(result.ids) <= request.max_new_tokens
    assert (result.finish_reason == "length") <= (len(result.ids) == request.max_new_tokens)
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    assert result.target_calls == 1 + sum(result.widths)
    read = sum(width * count for width, count in enumerate(result.widths, 1))
    if name != "sampled-beams":  # which counts those of the others too
        assert result.target_calls <= 1 + result.rounds
    assert (result.draft_work > 0) <= (result.draft_calls > 0)
    strategy = engine.strategy(name)
    if isinstance(strategy, SpeculativeDecoding) and not request.stop:
        assert sum(streamed.taken) == result.accepted
        assert len(streamed.taken) == result.rounds + 1
    if isinstance(strategy, SpeculativeDecoding) and result.finish_reason == "length":
        assert result.accepted + result.rounds + 1 == len(result.ids)
        assert read == result.rounds + result.drafted
    return result


def plain(engine: Engine, prompt: list[int], tokens: int = LONG) -> list[int]:
    """What plain decoding writes, asked of each engine once."""
    known = PLAIN.setdefault(engine, {})
    if (key := (*prompt, -tokens)) not in known:
        known[key] = engine.decode("autoregressive", prompt, Request(tokens)).ids
    return known[key]


ESTIMATED = ("neural-unsure", "recurrent-unsure")  # natively, after a rejection
PLAIN: WeakKeyDictionary[Engine, dict[tuple[int, ...], list[int]]] = WeakKeyDictionary()


def batch_of(engine: Engine) -> Batch:
    return Batch(engine, Costs((0.01,) * 16, dict.fromkeys(engine.arms, 0.001)))


def is_replayed(batch: Batch, backend: str, name: str) -> bool:
    return backend in IN_BATCHES and name != "autoregressive" and batch.is_replayable(name)


def replayed(
    engine: Engine,
    name: str,
    prompts: list[list[int]],
    answers: list[list[int]],
    temperature: float = 0.0,
    seeds: Sequence[int] = (),
) -> list[Replay]:
    """One by one where a batch's answers are earlier ones to each other."""
    batch, given = batch_of(engine), (LONG, temperature)
    if not engine.arms[name].reads_earlier:
        return batch.replay(name, prompts, answers, *given, seeds)
    return [
        batch.replay(name, [prompt], [answer], *given, seeds[at : at + 1])[0]
        for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


Untimes = Callable[[Engine, str], None]


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> Untimes:
    """Makes an arm's length one that knows no times of other tests."""

    def change(engine: Engine, name: str) -> None:
        if name == "neural-adaptive":
            strategy: Any = engine.strategy(name)
            length = Untimed(AdaptiveLength(5))
            monkeypatch.setitem(engine._strategies, name, replace(strategy, length=length))

    return change


def test_every_kind_is_here() -> None:
    remote = {"endpoint"}  # a server's answers are its own (tests/test_endpoints.py)
    assert {body.get("kind", name) for name, body in METHODS.items()} == set(KINDS) - remote


@pytest.mark.instructions
@on_backends(METHODS)
def test_ends(name: str, backend: str, engines: Engines, untimed: Untimes) -> None:
    """A prompt of one token and a longer one; never more than asked; an end token and a stop string
    wherever they come. What is lossless writes what plain decoding does, and replays count along it
    as the loop does."""
    engine = ready(engines, backend, name)
    untimed(engine, name)
    lossless = engine.arms[name].lossless or name in ("lossy", "lossy-star", "sampled-beams")
    for prompt, most in zip(PROMPTS, (1, 7), strict=True):
        free = answer(engine, name, prompt, Request(LONG))
        short = answer(engine, name, prompt, Request(most))
        assert short.finish_reason == "length"
        if lossless:
            assert free.ids == plain(engine, prompt)
            assert short.ids == free.ids[:most]
        end = free.ids[LONG // 2]
        ended = answer(engine, name, prompt, Request(LONG, eos_ids=(end, 99)))
        assert end not in ended.ids[:-1] and (ended.ids[-1] == end) == (
            ended.finish_reason == "eos"
        )
        stop = Letters().decode(free.ids[5:7])
        stopped = answer(engine, name, prompt, Request(LONG, stop=(stop, "zz")))
        assert stop not in stopped.text[:-1]
        assert stopped.text.endswith(stop) == (stopped.finish_reason == "stop")
        if lossless or name in TOKEN_BY_TOKEN:
            assert ended.ids == free.ids[: free.ids.index(end) + 1]
            assert stopped.text == Letters().decode(free.ids[: len(stopped.ids)])
        if is_replayed(batch_of(engine), backend, name):
            live = [free, ended, stopped]
            made = replayed(engine, name, [prompt] * 3, [each.ids for each in live])
            for one, other in zip(made, live, strict=True):
                assert (one.rounds, one.accepted) == (other.rounds, other.accepted)
                assert one.calls in (None, other.draft_calls, other.draft_calls - 1)
                if name != "neural-unsure" or backend.startswith("hf"):
                    assert one.drafted == other.drafted  # else what follows a rejection is a guess


@pytest.mark.parametrize("backend", ["native-float32", "hf", "hf-seq2seq"])
def test_arms_take_turns_on_one_prompt(backend: str, engines: Engines) -> None:
    """Read once, answered by each arm in turn and back again, each as if it were alone."""
    engine, request = engines(backend), Request(8)
    names = [name for name in engine.arm_names if name != "neural-adaptive"]  # by a clock
    alone = {name: engine.decode(name, PROMPTS[1], request) for name in names}
    prefilled = engine.prefill(PROMPTS[1])
    for name in [*names, *names[::-2]]:
        result = engine.decode(name, PROMPTS[1], request, prefilled)
        assert result.ids == alone[name].ids, name
        if not engine.arms[name].reads_earlier and "hybrid" not in name:  # what they learn stays
            assert result.accepted_per_position == alone[name].accepted_per_position, name


@pytest.mark.instructions
@on_backends(SAME_TWICE)
def test_seeds_reproduce(name: str, backend: str, engines: Engines) -> None:
    engine = ready(engines, backend, name)
    sampling = Sampling(1.2, top_k=12, top_p=0.95, repetition_penalty=1.1)
    one, two, other = (
        answer(engine, name, PROMPTS[1], Request(LONG, sampling, seed=seed)) for seed in (5, 5, 6)
    )
    assert one.ids == two.ids != other.ids
    assert (one.drafted, one.accepted, one.rounds) == (two.drafted, two.accepted, two.rounds)
    end = one.ids[LONG // 2]
    for seed in (5, 6):
        ended = answer(engine, name, PROMPTS[1], Request(LONG, sampling, (), (end,), seed))
        assert end not in ended.ids[:-1]
        assert (ended.ids[-1] == end) == (ended.finish_reason == "eos")


@pytest.mark.instructions
@on_backends(METHODS)
def test_a_method_that_sits_out_rounds(
    name: str, backend: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And comes back: what it missed is read, and counted, and replays know it."""
    engine = ready(engines, backend, name)
    strategy, request, batch = engine.strategy(name), Request(LONG), batch_of(engine)
    if not isinstance(strategy, SpeculativeDecoding):
        pytest.skip("it is not asked for drafts by rounds")
    for pattern in ([0, 0, 2], [3, 0, 0, 0, 0, 4]):
        seldom = replace(strategy, length=ListedLengths(pattern))
        result = run(engine.target, seldom, PROMPTS[1], request)
        assert result.accepted + result.rounds + 1 == len(result.ids) == LONG
        if engine.arms[name].lossless:
            assert result.ids == plain(engine, PROMPTS[1])
        if is_replayed(batch, backend, name):
            monkeypatch.setitem(engine._strategies, name, seldom)
            (again,) = batch.replay(name, [PROMPTS[1]], [result.ids], LONG)
            monkeypatch.undo()
            assert (again.rounds, again.accepted, again.drafted, again.widths) == (
                *(result.rounds, result.accepted, result.drafted, result.widths),
            )


class Watched:
    """A drafter that is followed up to a length, drafts included."""

    def __init__(self, inner: Drafter, most: int) -> None:
        self.inner, self.most, self.asked = inner, most, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, context: list[int]) -> None:
        assert len(context) <= self.most
        self.inner.commit(context)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.asked = True
        assert len(context) + asked.k <= self.most
        return self.inner.propose(context, asked)


@on_backends(METHODS, (*IN_BATCHES, "native-recorded"))
def test_drafting_ends_where_the_context_may_end(
    name: str, backend: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an answer, and before one: plain decoding goes on, and replays know it."""
    engine, request, prompt = ready(engines, backend, name), Request(LONG), PROMPTS[1]
    strategy, start = engine.strategy(name), len(decoder_prefix(engine.target, prompt))
    if not isinstance(strategy, SpeculativeDecoding):
        return
    batch = batch_of(engine)
    replays = name != "neural-adaptive" and is_replayed(batch, backend, name)
    for most in (start + 6, len(prompt), len(prompt) - 1):
        drafter = Watched(strategy.drafter, most)
        made = run(
            engine.target, replace(strategy, context_to=most, drafter=drafter), prompt, request
        )
        assert len(made.ids) == LONG == made.accepted + made.rounds + 1
        may = len(prompt) <= most > start and name != "autoregressive"
        assert drafter.asked == may or (may and name == "neural-adaptive")  # by what passes take
        if most < len(prompt):
            assert (made.drafted, made.draft_work) == (0, 0)
        if engine.arms[name].lossless:
            assert made.ids == plain(engine, prompt)
        if replays:
            monkeypatch.setitem(engine._strategies, name, replace(strategy, context_to=most))
            (again,) = batch.replay(name, [prompt], [made.ids], LONG)
            assert (again.rounds, again.drafted) == (made.rounds, made.drafted)
            monkeypatch.undo()


@on_backends(METHODS, IN_BATCHES)
def test_a_sampled_replay_counts_as_the_loop(
    name: str, backend: str, engines: Engines, untimed: Untimes
) -> None:
    """Of every method whose answers are the target's."""
    engine = ready(engines, backend, name)
    prompts, batch, temperature = [*PROMPTS] * 4, batch_of(engine), 0.7
    seeds = [*range(len(prompts))]
    answers = batch.target(prompts, LONG, temperature, seeds).ids
    untimed(engine, name)

    def live(at: int) -> DecodeResult:
        return engine.decode(name, prompts[at], Request(LONG, Sampling(temperature), seed=at))

    if name == "autoregressive":
        assert [live(at).ids for at in seeds] == answers
        return
    if not batch.is_replayable(name, temperature):
        return
    made = replayed(engine, name, prompts, answers, temperature, seeds)
    for at, one in enumerate(made):
        other = live(at)
        assert other.ids == answers[at]
        assert (one.rounds, one.accepted) == (other.rounds, other.accepted)
        if name not in ESTIMATED:
            assert (one.drafted, one.widths) == (other.drafted, other.widths)
        assert one.agree == [] and one.calls in (None, other.draft_calls, other.draft_calls - 1)
    seldom = "unsure" in name or backend == "hf-seq2seq"  # whose copies are of a source of a few
    assert seldom or sum(one.accepted for one in made) > 0


@on_backends(
    (*EVERYWHERE, "sequence-cascade", "oracle-cascade", "sampled-beams"),
    ("native-float32", "native-recorded", "hf-seq2seq"),
)
def test_clocks(name: str, backend: str, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of an answer add up to the whole, by a clock that ticks whenever it is read."""
    engine = ready(engines, backend, name)
    strategy, target, request = engine.strategy(name), engine.target, Request(24, seed=1)
    engine.decode(name, PROMPTS[1], Request(2))  # what loads and traces at first
    made, clock = job(target, PROMPTS[1], request), TickingClock()
    monkeypatch.setattr("time.perf_counter", clock)
    started = clock()
    result = strategy.decode(made)
    whole = clock() - started
    monkeypatch.undo()
    parts = result.prefill_s + result.draft_s + result.verify_s + result.other_s
    assert min(result.prefill_s, result.draft_s, result.verify_s, result.other_s) >= 0
    assert whole > 5 * clock.tick  # recorded rounds read it least
    assert 0 < whole - (parts - made.prefilled.prefill_s) <= 3.5 * clock.tick  # outside its tallies


# -- drafts that are all accepted, and all rejected -----------------------------------------------

CHAINS = ("neural", "neural-adaptive", "neural-scheduled", "vertical", "hierarchy")
LOSSLESS = (
    *CHAINS, "tree", "tree-every", "horizontal", "cs-drafting", "cs-drafting-tree", "sampled-beams"
)  # fmt: skip
LOSSY = ("lossy", "lossy-star", "chow", "diff", "opt", "bild-star", "bild")
DRAFTED = LOSSLESS + LOSSY


@pytest.fixture(scope="module", params=["native-float32", "hf", "hf-seq2seq"])
def pair(
    request: pytest.FixtureRequest, tiny: Tiny, tiny_t5: Tiny,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Engine, Engine]]:  # fmt: skip
    """Engines whose draft models are the target itself, and what likes least what it likes best."""
    folder = tiny_t5() if request.param == "hf-seq2seq" else tiny()
    load = seq2seq_model if request.param == "hf-seq2seq" else transformers_model
    against = deepcopy(load(folder))
    against.config.tie_word_embeddings = False
    head = -against.get_output_embeddings().weight.detach().clone()
    against.lm_head = torch.nn.Linear(head.shape[1], head.shape[0], bias=False)
    against.lm_head.weight = torch.nn.Parameter(head)
    place = tmp_path_factory.mktemp("against")
    against.save_pretrained(place)

    def engine(small: Path) -> Engine:
        places = {"small": str(small)}
        bodies = {name: METHODS[name] for name in DRAFTED}
        bodies["bild"] = {**bodies["bild"], "length": {"k": 4}}  # however unsure
        made = arms(placed(bodies, places))
        return Engine(make(request.param, tiny, tiny_t5), made, tokenizer=Letters())

    yield engine(folder), engine(place)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DRAFTED)
def test_all_and_none_accepted(name: str, pair: tuple[Engine, Engine]) -> None:
    prompt, request = PROMPTS[1], Request(17)
    every, none = (answer(engine, name, prompt, request) for engine in pair)
    assert every.ids == plain(pair[0], prompt, 17)
    if name != "neural-adaptive":  # which may leave a round out
        assert every.accepted_per_position[0] >= every.rounds - 1  # the last may have no room
    if name in CHAINS + LOSSY:
        assert every.accepted == every.drafted > 0
    if name == "neural":
        assert (every.accepted, every.drafted, every.rounds) == (12, 12, 4)
        assert (none.accepted, none.rounds) == (0, 16)
    if name in LOSSLESS:
        assert none.ids == plain(pair[0], prompt, 17)
        assert none.accepted < every.accepted and none.rounds > every.rounds


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DRAFTED)
def test_an_end_inside_a_draft_that_stands(name: str, pair: tuple[Engine, Engine]) -> None:
    engine, prompt = pair[0], PROMPTS[1]
    free = plain(engine, prompt, 17)
    for at in range(1, 9):
        end = free[at]
        cut = free[: free.index(end) + 1]
        result = answer(engine, name, prompt, Request(17, eos_ids=(end,)))
        assert (result.ids, result.finish_reason) == (cut, "eos")
        assert result.rounds + result.accepted + 1 in (len(cut), len(cut) + 1)  # as accepted
        stop = Letters().decode(free[at : at + 2])
        text = Letters().decode(free)
        stopped = answer(engine, name, prompt, Request(17, stop=(stop,)))
        assert stopped.text == text[: text.index(stop) + 2] and stopped.finish_reason == "stop"
