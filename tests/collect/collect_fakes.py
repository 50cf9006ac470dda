"""A deterministic stand-in for decoders.Engine: words are tokens, answers are arithmetic."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collect.queries import TASKS, Query
from collect.replay.records import Replay, Written
from collect.sweeps import run
from collect.sweeps.run import SweepReport
from decoders.costs.measured import Costs
from decoders.records import DecodeResult
from decoders.testing import fake_engine
from decoders.testing.fake_engine import EOS

ARMS = ("autoregressive", "small", "ngram")
PARAMETERS = {"autoregressive": 135_000_000, "small": 10_000_000, "ngram": 0}


@dataclass(frozen=True)
class FakeRecipe:
    name: str
    kind: str
    lossless: bool = True
    reads_earlier: bool = False

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind}


class FakeTokenizer:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(f"w{i}" for i in token_ids if not (skip_special_tokens and i == EOS))


def answer(prompt: list[int], shift: int = 0) -> list[int]:
    """Four tokens that depend on the prompt, then EOS; shift moves the last two."""
    start = 10 + sum(prompt) % 50
    return [start, start + 1, start + 2 + shift, start + 3 + shift, EOS]


@dataclass
class FakeBatch:
    """Fails on prompts that hold `poison[name]`, drops a replay of the arm `loses`; counts calls;
    runs `hook` before each."""

    poison: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    hook: Any = None
    loses: str = ""
    costs_measured: int = 0
    told: Costs | None = None
    answers: int = 1

    @contextmanager
    def at_batch_size(self, answers: int) -> Iterator[None]:
        """Each of eight answers drafts half as much, in twice the rounds."""
        self.answers = answers
        try:
            yield
        finally:
            self.answers = 1

    def _called(self, name: str, prompts: list[list[int]]) -> None:
        self.calls.append((name, len(prompts)))
        if self.hook is not None:
            self.hook(name, prompts)
        if any(self.poison.get(name) in prompt for prompt in prompts):
            raise RuntimeError(f"{name} cannot do this\nsecond line")

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
        also: Sequence[tuple[float, Sequence[int]]] = (),
    ) -> Written:
        self._called("target" if temperature == 0 else "sampled", prompts)
        shifts = [1 + each % 3 for each in seeds] if temperature else [0] * len(prompts)
        ids = [answer(p, shift) for p, shift in zip(prompts, shifts, strict=True)]
        vectors = np.array([[sum(p), len(p), 1.0] for p in prompts], dtype=np.float32)
        return Written(ids, vectors, 0.5, 1.0)

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> Written:
        self._called(name, prompts)
        ids = [answer(p, shift=0 if name == "small" else 100) for p in prompts]
        return Written(ids, np.zeros((len(prompts), 3), dtype=np.float32), 0.5, 1.0)

    def is_replayable(self, name: str, temperature: float = 0.0) -> bool:
        """The sampled answers of the arm `ngram` are its own."""
        return not temperature or name != "ngram"

    def replay(
        self,
        name: str,
        prompts: list[list[int]],
        answers: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
    ) -> list[Replay]:
        self._called(f"{'hot' if temperature else 'replay'} {name}", prompts)
        if temperature:
            assert len(seeds) == len(answers)
            return [Replay([], self.answers + 1, 4 if self.answers == 1 else 1, 3) for _ in answers]
        good, many = name == "small", self.answers > 1
        rounds, drafted = (2, 2) if many else (1, 4)
        return [
            Replay([True] + [good] * (len(t) - 1), rounds if good else 4, drafted, 4 * good)
            for t in answers[name == self.loses :]
        ]

    def live(
        self,
        name: str,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> Written:
        self._called(f"live {name}", prompts)
        replays = [Replay([], 2, 4, 1) for _ in prompts]
        vectors = np.zeros((len(prompts), 0), dtype=np.float32)
        return Written([answer(p, 7)[:4] for p in prompts], vectors, 0.5, 1.0, replays)

    def go_on_with(self, costs: Costs) -> None:
        self.told = costs

    @property
    def cost_table(self) -> Costs:
        self.costs_measured += 1
        verify_s = tuple(0.010 + 0.001 * i for i in range(17))
        draft_s = {"small": 0.002, "ngram": 0.0001, "other": 1.0}
        eight = Costs(
            tuple(0.020 + 0.008 * i for i in range(8)), {k: 8 * s for k, s in draft_s.items()}
        )
        return Costs(verify_s, draft_s, {8: eight})


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


class FakeEngine(fake_engine.FakeEngine):
    """The few methods that a sweep needs. context: tokens that fit."""

    context = 64
    embedder = "target:fake/3"
    timed_by = "fakes"
    tokenizer = FakeTokenizer()

    def __init__(self, target: str = "fake@sha256:0/float32") -> None:
        super().__init__(tokens_a_round=dict.fromkeys(ARMS, 1))
        self.arms = {
            name: FakeRecipe(name, name if name == "autoregressive" else "neural") for name in ARMS
        }
        self.target_fingerprint = target
        self.batch = FakeBatch()
        self.decoded: list[str] = []

    def arm_parameters(self, name: str) -> int:
        return PARAMETERS[name]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [sum(map(ord, word)) for word in messages[-1]["content"].split()]

    def decode(self, arm: str, prompt_ids: list[int], *_: Any, **named: Any) -> DecodeResult:
        self.decoded.append(arm)
        ids = answer(prompt_ids)
        seconds = 0.1 if arm == "small" else 0.35
        return DecodeResult(
            arm, prompt_ids, ids, "", "eos", 1, 4, 4, [1, 1, 1, 1], 2, 4, 0.25, 0.0, seconds, 0.0
        )


def make_queries(per_task: int = 2, tasks: tuple[str, ...] = TASKS) -> list[Query]:
    return [
        Query(f"{task}-{i}", task, (f"{task} question number {i} " + "more " * i,), source="tests")
        for task in tasks
        for i in range(per_task)
    ]


def pairs(folder: Path) -> list[tuple[str, str]]:
    """Every stored (query, arm), sorted."""
    from collect.store.tables import read_table

    table = read_table(folder, "outcomes", ("query_id", "arm"))
    return sorted((row["query_id"], row["arm"]) for row in table.to_pylist())


def all_pairs(queries: list[Query], arms: tuple[str, ...] = ARMS) -> list[tuple[str, str]]:
    return sorted((query.id, arm) for query in queries for arm in arms)


def sweep(engine: FakeEngine, *given: Any, **named: Any) -> SweepReport:
    """`collect.sweeps.run.sweep` with the fake's own batch decoder."""
    return run.sweep(engine, engine.batch, *given, **named)
