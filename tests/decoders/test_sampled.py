"""Arms replayed along sampled answers, beside the loop that writes the same answers to the same
seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from contract_kit import IN_BATCHES, LONG, METHODS, PROMPTS, Untimed, on_backends, ready
from decoder_toys import CPU, Tiny, hybrid, max_gram, native, random_exit, recurrent

from collect.replay.batch import Batch
from collect.replay.methods.stacked import NeuralReplay
from decoders.arms import recipe
from decoders.backends.transformers.hf import HFBackend
from decoders.costs.measured import Costs
from decoders.engine import Engine
from decoders.lengths import AdaptiveLength, FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.rules.lossy import Lossless
from decoders.protocols import Backend, Drafter
from decoders.records import DecodeResult, Request, Sampling
from decoders.testing.toys import speculative
from decoders.verify import Coupled

EOS = 2
FIVE = [[3], [3, 1, 4, 1, 5, 9, 2, 6], [2] * 15, [7, 11, 7, 11, 7], [1, 2, 3]]
SEEDS = [11, 12, 13, 14, 15]
ESTIMATED = ("neural-unsure", "recurrent-unsure")  # natively, after a rejection


def figures(made: Any) -> tuple[int, int, int, list[int]]:
    return made.rounds, made.drafted, made.accepted, made.widths


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@on_backends(METHODS, IN_BATCHES)
def test_a_sampled_replay_counts_as_the_loop(
    name: str,
    backend: str,
    temperature: float,
    engines: Callable[[str], Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every method whose answers are the target's."""
    engine = ready(engines, backend, name)
    batch = Batch(engine, Costs((0.01,) * 16, dict.fromkeys(engine.arms, 0.001)))
    prompts, sampling = [*PROMPTS] * 4, Sampling(temperature)
    seeds = [*range(len(prompts))]
    answers = batch.target(prompts, LONG, temperature, seeds).ids
    if name == "neural-adaptive":
        strategy = engine.strategy(name)
        assert isinstance(strategy, SpeculativeDecoding)
        strategy = replace(strategy, length=Untimed(AdaptiveLength(5)))
        monkeypatch.setitem(engine._strategies, name, strategy)
    asked = [Request(LONG, sampling, seed=seed) for seed in seeds]

    def live(at: int) -> DecodeResult:
        return engine.decode(name, prompts[at], asked[at])

    if name == "autoregressive":
        assert [live(at).ids for at in seeds] == answers
        return
    if not batch.is_replayable(name, temperature):
        return
    if engine.arms[name].reads_earlier:  # a batch's answers are earlier ones to each other
        made = [
            batch.replay(name, prompts[at:][:1], answers[at:][:1], LONG, temperature, [at])[0]
            for at in seeds
        ]
    else:
        made = batch.replay(name, prompts, answers, LONG, temperature, seeds)
    for at, one in enumerate(made):
        other = live(at)
        assert other.ids == answers[at]
        assert (one.rounds, one.accepted) == (other.rounds, other.accepted)
        if name not in ESTIMATED:
            assert figures(one) == figures(other)
        assert one.agree == [] and one.calls in (None, other.draft_calls, other.draft_calls - 1)
    seldom = "unsure" in name or backend == "hf-seq2seq"  # whose copies are of a source of a few
    assert seldom or sum(one.accepted for one in made) > 0


# -- in batches -----------------------------------------------------------------------------------


def engine_of(target: Backend, drafter: Drafter, verifier: Any = None) -> Engine:
    arm = SpeculativeDecoding("arm", drafter, verifier or Coupled(), FixedLength(3))
    arms = {
        "autoregressive": recipe(name="autoregressive", kind="autoregressive"),
        "arm": recipe(name="arm", kind="max_gram"),
    }
    engine = Engine(target, arms, eos_ids=(EOS,))
    engine._strategies |= {"autoregressive": speculative(NullDrafter(CPU), 0), "arm": arm}
    return engine


def batch_of(engine: Engine) -> Batch:
    return Batch(engine, Costs((1.0,) * 8, {"arm": 0.0, "other": 0.0}))


def tiny_engine(tiny: Tiny, name: str, hf: bool = False, verifier: Any = None) -> Engine:
    folder, small = tiny(), tiny(seed=0, num_hidden_layers=2)
    target: Any = HFBackend.load(folder, CPU, torch.float32) if hf else native(folder)
    drafters: dict[str, Callable[[], Drafter]] = {
        "small": lambda: NeuralDrafter(native(small)),
        "exit": lambda: random_exit(target, 2, seed=1, noise=0.05),
        "recurrent": lambda: recurrent(target, seed=1),
        "hybrid": lambda: hybrid(recurrent(target, seed=1)),
        "copy": lambda: max_gram([*range(1, 16), -1], shortest=1),
    }
    return engine_of(target, drafters[name](), verifier)


@pytest.mark.parametrize("name", ["small", "exit", "recurrent", "hybrid", "copy"])
def test_next_to_temperature_0_it_is_the_greedy_replay(name: str, tiny: Tiny) -> None:
    batch = batch_of(tiny_engine(tiny, name))
    answers = batch.target(FIVE, 16).ids
    greedy = batch.replay("arm", FIVE, answers, 16)
    cold = batch.replay("arm", FIVE, answers, 16, 1e-4, SEEDS)
    assert [*map(figures, cold)] == [*map(figures, greedy)]
    assert sum(one.accepted for one in cold) > 0


@pytest.mark.parametrize("name", ["small", "recurrent", "hybrid"])
def test_one_answer_at_a_time_gives_the_same(
    name: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(tiny_engine(tiny, name))
    answers = batch.target(FIVE, 12, 1.0, SEEDS).ids
    together = batch.replay("arm", FIVE, answers, 12, 1.0, SEEDS)
    other = batch.replay("arm", FIVE, answers, 12, 1.0, SEEDS[::-1])
    monkeypatch.setattr(NeuralReplay, "stack", None)
    alone = batch_of(tiny_engine(tiny, name, hf=name == "small"))
    alone._target = None
    apart = alone.replay("arm", FIVE, answers, 12, 1.0, SEEDS)
    assert [*map(figures, apart)] == [*map(figures, together)] != [*map(figures, other)]


@pytest.mark.parametrize("hf", [False, True])
def test_an_answer_depends_on_its_own_seed_alone(tiny: Tiny, hf: bool) -> None:
    engine = tiny_engine(tiny, "small", hf)
    batch = batch_of(engine)
    whole = batch.target(FIVE, 10, 1.0, SEEDS).ids
    assert whole == batch.target(FIVE[::-1], 10, 1.0, SEEDS[::-1]).ids[::-1]
    assert batch.target(FIVE[2:3], 10, 1.0, SEEDS[2:3]).ids == whole[2:3]
    assert batch.target(FIVE, 10, 1.0, [seed + 1 for seed in SEEDS]).ids != whole
    for prompt, seed, ids in zip(FIVE, SEEDS, whole, strict=True):
        asked = Request(10, Sampling(1.0), seed=seed)
        assert engine.decode("arm", prompt, asked).ids == ids
    with pytest.raises(ValueError, match="0 seeds for 5 sampled answers"):
        batch.target(FIVE, 10, 1.0)


def test_a_rule_that_writes_other_answers_is_run(tiny: Tiny) -> None:
    """Speculative sampling follows the target's distribution, not its answer to a seed."""
    engine = tiny_engine(tiny, "small", verifier=Lossless())
    batch = batch_of(engine)
    assert batch.is_replayable("arm") and not batch.is_replayable("arm", 1.0)
    made = batch.live("arm", FIVE, 9, 1.0, SEEDS)
    assert made.replays is not None
    for prompt, seed, ids, replayed in zip(FIVE, SEEDS, made.ids, made.replays, strict=True):
        result = engine.decode("arm", prompt, Request(9, Sampling(1.0), seed=seed))
        assert (ids, figures(replayed)) == (result.ids, figures(result))
