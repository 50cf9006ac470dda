"""A policy over the arms of the fake engine, turns of its answers, and a narrow terminal."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from decoders.records import DecodeResult
from decoders.testing.fake_engine import TOKENS_A_ROUND, FakeEngine
from policies import Decision
from router.specbench.records import Turn

JSON_KEYS = [
    "text", "ids", "prompt_ids", "arm", "propensity", "finish_reason", "rounds", "drafted",
    "accepted", "accepted_per_position", "target_calls", "prefill_s", "draft_s", "verify_s",
    "other_s", "widths", "embed_s", "policy_s", "tokens_per_s",
]  # fmt: skip


class FakePolicy:
    """Prefers `small` for prompts of even length and `wide` for the others."""

    name = "fake"
    embedder = FakeEngine.embedder
    origin = SimpleNamespace(arms_fingerprint="", features=())

    def __init__(
        self, arms: Sequence[str] = tuple(TOKENS_A_ROUND), embedder: str | None = None
    ) -> None:
        self.arms = list(arms)
        self.embedder = embedder or FakeEngine.embedder

    def distribution(self, x: Any) -> Any:
        return np.array([[0.1, 0.2, 0.7] if int(x[0]) else [0.1, 0.7, 0.2]])

    def choose(self, x: Any, rng: Any = None) -> Any:
        index = 1 + int(x[0])
        scores = self.distribution(x)[0].tolist()
        propensity = 1.0
        if rng is not None:
            index = int(rng.choice(3, p=scores))
            propensity = scores[index]
        return Decision(self.arms[index], index, propensity, scores)


RESULT = DecodeResult(
    arm="a", prompt_ids=[7], ids=[], text="", finish_reason="length", rounds=0, drafted=0,
    accepted=0, accepted_per_position=[], target_calls=1, draft_calls=0, prefill_s=0.0, draft_s=0.0,
    verify_s=0.0, other_s=0.0,
)  # fmt: skip
TURN = Turn(RESULT, propensity=1.0, embed_s=0.0, policy_s=0.0, wall_s=1.0, retokenised=0)


def at_eighty(tables: Iterable[Any]) -> str:
    """What a terminal of 80 columns shows of tables."""
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    for table in tables:
        console.print(table)
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def make_turn(**named: Any) -> Turn:
    """A turn with these fields, its decode's among them."""
    own = {name: value for name, value in named.items() if name in Turn.__dataclass_fields__}
    decode = {name: value for name, value in named.items() if name not in own}
    return replace(TURN, result=replace(RESULT, **decode), **own)
