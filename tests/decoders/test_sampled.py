"""An arm's loop along sampled answers, on average, beside every way that the loop itself can go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_toys import CPU, Tiny, hybrid, max_gram, native, random_exit, recurrent, reduced
from effort import FULL, examples, slow_after
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from collect.replay import expected as recursion
from collect.replay.batch import Batch
from collect.replay.expected import Chances, drawn, expected, simulated, spread
from collect.replay.methods.stacked import NeuralReplay
from collect.replay.protocols import ReplayedLoop
from decoders.arms import recipe
from decoders.backends.transformers.hf import HFBackend
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts
from decoders.engine import Engine
from decoders.lengths import AdaptiveLength, FixedLength, ScheduledLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.cs_drafting.vertical import VerticalDrafter
from decoders.protocols import Backend, Drafter, DraftLength
from decoders.records import Request, Sampling, StepStats
from decoders.testing.chance import every_outcome
from decoders.testing.toys import ToyBackend, neural, run, speculative
from decoders.verify import Coupled

V, EOS, HOT = 3, 2, 0.8
PASSES = PassCosts((1.0, 1.2, 1.5, 1.9, 2.4, 3.0))


class Untimed(AdaptiveLength):
    """By a clock that stands still, so that a loop can be repeated."""

    def observe(self, stats: StepStats) -> None:
        super().observe(replace(stats, draft_s=0.0, verify_s=1.0))


DRAFTERS: dict[str, Callable[[ToyBackend], Drafter]] = {
    "neural": lambda _: neural(V, 3),
    "reduced": lambda _: reduced([0, 2], V, 5),
    "recurrent": lambda target: recurrent(target, seed=7),
    "copy": lambda _: max_gram([1, -1, 0], shortest=1),
    "hybrid": lambda target: hybrid(recurrent(target, seed=7), 0.3, PASSES),
}
LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "fixed": lambda: FixedLength(2),
    "unsure": lambda: FixedLength(2, min_confidence=0.5),
    "adaptive": lambda: Untimed(3, passes=PASSES),
    "scheduled": lambda: ScheduledLength(1, longest=3),
}
ARMS = [
    ("neural", "fixed"), ("neural", "unsure"), ("neural", "adaptive"), ("neural", "scheduled"),
    ("reduced", "fixed"), ("copy", "fixed"), ("copy", "adaptive"), ("hybrid", "fixed"),
    ("recurrent", "adaptive"), ("recurrent", "fixed"), ("recurrent", "unsure"),
]  # fmt: skip


def engine_of(target: Backend, drafter: Drafter, length: DraftLength) -> Engine:
    strategies = {
        "autoregressive": speculative(NullDrafter(CPU), 0),
        "arm": SpeculativeDecoding("arm", drafter, Coupled(), length),
    }
    arms = {
        "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
        "arm": recipe(name="arm", kind="max_gram"),
    }
    engine = Engine(target, arms, eos_ids=(EOS,))
    engine._strategies.update(strategies)
    return engine


def batch_of(engine: Engine) -> Batch:
    return Batch(engine, Costs((1.0,) * 8, {"arm": 0.0}))


@dataclass
class Figures:
    """Of one answer: its chance, and the means of the loop's runs that wrote it."""

    weight: float = 0.0
    rounds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    widths: NDArray[np.float64] = field(default_factory=lambda: np.zeros(8))


def enumerated(engine: Engine, prompt: list[int], most: int) -> dict[tuple[int, ...], Figures]:
    """Every run of the shipped loop, weighed."""
    found: dict[tuple[int, ...], Figures] = defaultdict(Figures)
    request = Request(most, Sampling(HOT))
    strategy = engine.strategy("arm")
    for weight, made in every_outcome(
        lambda chance: run(engine.target, strategy, prompt, request, eos_ids=(EOS,), chance=chance)
    ):
        figures = found[tuple(made.ids)]
        figures.weight += weight
        figures.rounds += weight * made.rounds
        figures.drafted += weight * made.drafted
        figures.accepted += weight * made.accepted
        figures.widths[: len(made.widths)] += weight * np.array(made.widths)
    for figures in found.values():
        figures.rounds /= figures.weight
        figures.drafted /= figures.weight
        figures.accepted /= figures.weight
        figures.widths /= figures.weight
    return found


@pytest.mark.property  # of longer answers in `make slow`
@pytest.mark.parametrize(("drafter", "length"), slow_after(8, ARMS))
def test_the_loop_on_average(drafter: str, length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer by answer: what is exact to the last digits, what is simulated within its error."""
    monkeypatch.setattr(recursion, "RUNS", 1000)
    target = ToyBackend.random(V, 1, 1.5)
    engine = engine_of(target, DRAFTERS[drafter](target), LENGTHS[length]())
    prompt, most = [0, 1, 0], 5 if FULL else 4
    live = enumerated(engine, prompt, most)
    answers = [list(ids) for ids in live]
    assert sum(figures.weight for figures in live.values()) == pytest.approx(1)
    made = batch_of(engine).expected(
        "arm", [prompt] * len(live), answers, most, HOT, range(len(live))
    )
    assert made is not None
    simulating = drafter == "hybrid" or (drafter != "copy" and length in ("adaptive", "scheduled"))
    assert {each.how for each in made} == {"simulated" if simulating else "exact"}
    margin = {"abs": 0.06} if simulating else {"abs": 1e-9}
    assert len({round(figures.rounds, 9) for figures in live.values()}) > 3
    for answer, one, figures in zip(answers, made, live.values(), strict=True):
        assert one.rounds == pytest.approx(figures.rounds, **margin)
        assert one.accepted == pytest.approx(figures.accepted, **margin), answer
        if length != "unsure":  # where the loop's own draft strays, so does its confidence
            assert one.drafted == pytest.approx(figures.drafted, **margin), answer
            widths = [*one.widths, *[0.0] * (8 - len(one.widths))]
            assert widths == pytest.approx(figures.widths.tolist(), **margin), answer
    mean = sum(f.weight * one.rounds for f, one in zip(live.values(), made, strict=True))
    true = sum(figures.weight * figures.rounds for figures in live.values())
    assert mean == pytest.approx(true, abs=0.005 if simulating else 1e-9)


def test_a_token_is_accepted_as_often_as_the_two_laws_overlap() -> None:
    """Over the target's draws of x, min(1, q(x) / p(x)) is on average sum min(p, q)."""
    target, draft = ToyBackend.random(V, 1, 1.5), neural(V, 3)
    engine = engine_of(target, draft, FixedLength(1))
    p = (target.table[0, 1] / HOT).softmax(-1)
    q = (draft.backend.table[0, 1] / HOT).softmax(-1)  # type: ignore[attr-defined]
    # the drafted token is the second; a third one makes room for the target's own
    answers = [[1, x, 0] for x in range(V)]
    made = batch_of(engine).expected("arm", [[0]] * V, answers, 3, HOT, range(V))
    assert made is not None
    overlap = sum(float(p[x]) * one.accepted for x, one in enumerate(made))
    assert overlap == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-9)
    assert 0.2 < overlap < 0.95


# -- the recursion --------------------------------------------------------------------------------


def table_of(rows: list[list[float]]) -> Chances:
    return lambda at, k: rows[at][:k]


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 5))
@examples(60)
def test_the_recursion_is_the_papers(seed: int, tokens: int, k: int) -> None:
    """Read backwards, from the answer's end: R(i) as a sum over where the round stops."""
    rng = np.random.default_rng(seed)
    rows = rng.choice([0.0, 1.0, 0.3, 0.9], size=(tokens + 1, 6)).tolist()
    left = np.zeros(tokens + 1)
    for at in reversed(range(1, tokens)):
        here, stands = 1.0, 1.0
        draft = rows[at][: min(k, tokens - at - 1)]
        for place, chance in enumerate(draft, at + 1):
            here += stands * (1 - chance) * left[place]
            stands *= chance
        left[at] = here + stands * left[at + len(draft) + 1]
    made = expected(tokens, table_of(rows), k, tokens)
    assert made.rounds == pytest.approx(left[1] if tokens > 1 else 0.0)
    assert made.rounds + made.accepted == pytest.approx(max(tokens - 1, 0))
    assert made.accepted <= made.drafted + 1e-9


def test_a_recursion_by_hand() -> None:
    # [.] x y z: a round from 1 drafts y's place and z is the target's own
    rows = [[], [0.5], []]
    made = expected(3, table_of(rows), 4, 3)
    assert (made.rounds, made.drafted, made.accepted) == (1.5, 1.0, 0.5)
    assert made.widths == [0.5, 1.0]


@given(st.integers(0, 10_000), st.integers(2, 14))
@examples(25)
def test_simulated_runs_are_near_the_recursion(seed: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    rows, answer = rng.random((tokens + 1, 6)).tolist(), rng.integers(0, 5, tokens).tolist()
    exact = expected(tokens, table_of(rows), 3, tokens)
    near = simulated(
        answer,
        lambda heights: drawn(answer, table_of(rows), heights),
        ReplayedLoop(FixedLength(3), tokens),
        seed,
    )
    assert near.how == "simulated"
    assert near.rounds == pytest.approx(exact.rounds, abs=0.6)  # three standard errors at most
    assert near.rounds + near.accepted == pytest.approx(tokens - 1)


def test_heights_are_spread_and_depend_on_the_seed() -> None:
    made = spread(32, 7, 3)
    assert (made == spread(32, 7, 3)).all() and (made != spread(32, 7, 4)).any()
    assert (np.sort(made, 0) * 32).astype(int).T.tolist() == [list(range(32))] * 7


# -- in batches -----------------------------------------------------------------------------------

PROMPTS = [[3], [3, 1, 4, 1, 5, 9, 2, 6], [2] * 15, [7, 11, 7, 11, 7], [1, 2, 3]]
NATIVE = ["small", "exit", "recurrent", "hybrid", "copy"]


def tiny_engine(tiny: Tiny, name: str, hf: bool = False) -> Engine:
    folder, small = tiny(), tiny(seed=0, num_hidden_layers=2)
    target: Any = HFBackend.load(folder, CPU, torch.float32) if hf else native(folder)
    drafters: dict[str, Callable[[], Drafter]] = {
        "small": lambda: NeuralDrafter(native(small)),
        "exit": lambda: random_exit(target, 2, seed=1, noise=0.05),
        "recurrent": lambda: recurrent(target, seed=1),
        "hybrid": lambda: hybrid(recurrent(target, seed=1)),
        "copy": lambda: max_gram([*range(1, 16), -1], shortest=1),
    }
    return engine_of(target, drafters[name](), FixedLength(3))


@pytest.mark.parametrize("name", NATIVE)
def test_next_to_temperature_0_it_is_the_greedy_replay(name: str, tiny: Tiny) -> None:
    engine = tiny_engine(tiny, name)
    batch = batch_of(engine)
    answers = batch.target(PROMPTS, 16).ids
    greedy = batch.replay("arm", PROMPTS, answers, 16)
    cold = batch.expected("arm", PROMPTS, answers, 16, 1e-4, range(5))
    assert cold is not None
    for one, other in zip(cold, greedy, strict=True):
        assert one.rounds == pytest.approx(other.rounds, abs=1e-6)
        assert one.drafted == pytest.approx(other.drafted, abs=1e-6)
        assert one.accepted == pytest.approx(other.accepted, abs=1e-6)
    assert sum(one.accepted for one in cold) > 0


@pytest.mark.parametrize("name", ["small", "recurrent", "hybrid"])
def test_one_answer_at_a_time_gives_the_same(
    name: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(tiny_engine(tiny, name))
    seeds = [11, 12, 13, 14, 15]
    answers = batch.target(PROMPTS, 12, 1.0, seeds).ids
    together = batch.expected("arm", PROMPTS, answers, 12, 1.0, seeds)
    monkeypatch.setattr(NeuralReplay, "stack", None)
    alone = batch_of(tiny_engine(tiny, name, hf=name == "small"))
    alone._target = None
    apart = alone.expected("arm", PROMPTS, answers, 12, 1.0, seeds)
    assert together is not None and apart is not None
    for one, other in zip(together, apart, strict=True):
        assert one.rounds == pytest.approx(other.rounds, abs=1e-3)
        assert one.drafted == pytest.approx(other.drafted, abs=1e-3)


@pytest.mark.parametrize("hf", [False, True])
def test_an_answer_depends_on_its_own_seed_alone(tiny: Tiny, hf: bool) -> None:
    batch, seeds = batch_of(tiny_engine(tiny, "small", hf)), [5, 6, 7, 8, 9]
    whole = batch.target(PROMPTS, 10, 1.0, seeds).ids
    turned = batch.target(PROMPTS[::-1], 10, 1.0, seeds[::-1]).ids
    assert whole == turned[::-1]
    assert batch.target(PROMPTS[2:3], 10, 1.0, seeds[2:3]).ids == whole[2:3]
    assert batch.target(PROMPTS, 10, 1.0, [s + 1 for s in seeds]).ids != whole


@pytest.mark.parametrize("wrote_them", [False, True])
def test_the_target_reads_the_answers_once_for_all_arms(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, wrote_them: bool
) -> None:
    from collect.replay import trials

    engine = tiny_engine(tiny, "recurrent")
    engine.arms["other"] = recipe(name="other", kind="max_gram")
    engine._strategies["other"] = SpeculativeDecoding(
        "other",
        hybrid(recurrent(engine.target, seed=2)),
        Coupled(),
        FixedLength(4),  # type: ignore[arg-type]
    )
    costs = Costs((1.0,) * 8, {"arm": 0.0, "other": 0.0})
    batch = Batch(engine, costs)
    answers = batch.target(PROMPTS, 8, 1.0, range(5)).ids
    if not wrote_them:
        batch = Batch(engine, costs)
    real, calls = trials.states_before, list[int]()

    def counted(*given: Any) -> Any:
        calls.append(1)
        return real(*given)

    monkeypatch.setattr(trials, "states_before", counted)
    for name in ("arm", "other"):
        batch.expected(name, PROMPTS, answers, 8, 1.0, range(5))
        batch.replay(name, PROMPTS, answers, 8)
    assert len(calls) == (0 if wrote_them else 1)


def test_what_cannot_be_told_from_the_answers_is_run(tiny: Tiny) -> None:
    engine = tiny_engine(tiny, "small")
    middle = native(tiny(seed=0, num_hidden_layers=2))
    nested = VerticalDrafter(middle, max_gram(shortest=1), FixedLength(2))
    engine._strategies["arm"] = SpeculativeDecoding("arm", nested, Coupled(), FixedLength(3))
    batch = batch_of(engine)
    assert batch.expected("arm", PROMPTS, [[1, 2]] * 5, 9, 1.0, range(5)) is None
    made = batch.live("arm", PROMPTS, 9, 1.0, [3, 4, 5, 6, 7])
    assert made.replays is not None
    for prompt, seed, ids, replayed in zip(
        PROMPTS, [3, 4, 5, 6, 7], made.ids, made.replays, strict=True
    ):
        result = engine.decode("arm", prompt, Request(9, Sampling(1.0), seed=seed))
        assert (ids, replayed.rounds) == (result.ids, result.rounds)
