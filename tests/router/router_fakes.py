"""A deterministic engine without a model: arms differ in how many tokens a round gives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from decoders.common.errors import ContextTooLong
from decoders.records import DecodeResult, Prefilled, Request
from policies import Decision
from router.specbench.records import Turn

EOS = 2
JSON_KEYS = [
    "text", "ids", "prompt_ids", "arm", "propensity", "finish_reason", "rounds", "drafted",
    "accepted", "accepted_per_position", "target_calls", "prefill_s", "draft_s", "verify_s",
    "other_s", "widths", "embed_s", "policy_s", "tokens_per_s",
]  # fmt: skip
WORDS = {"autoregressive": 1, "small": 2, "wide": 4}  # arm -> tokens a round


class FakeTokenizer:
    """One token a character; ids are code points."""

    eos_token_id = EOS

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=[ord(c) for c in text])

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(i) for i in ids if i != EOS)


class FakeEngine:
    """Answers are upper-cased prompts' last words, repeated nowhere; times are made up.

    fails: prompts with this text raise. calls: (arm, prompt text) in the order they ran.
    """

    target_name = "fake-target"
    target_fingerprint = "fake-target@sha256:0/float32"
    embedder = "target:fake/4"
    context = 2000
    eos_ids: tuple[int, ...] = (EOS,)

    def __init__(self, fails: str | None = None) -> None:
        self.tokenizer = FakeTokenizer()
        self.fails = fails
        self.calls: list[tuple[str, str]] = []
        self.reused: list[bool] = []  # what every `prefill` was asked
        self.seeds: list[int | None] = []  # of every `decode`

    @property
    def arm_names(self) -> list[str]:
        return list(WORDS)

    def arms_fingerprint(self, names: Sequence[str]) -> str:
        return hashlib.sha256(",".join(names).encode()).hexdigest()[:12]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [ord(c) for c in "|".join(f"{m['role'][0]}:{m['content']}" for m in messages)]

    def check(self, prompt_ids: list[int], request: Request) -> None:
        if len(prompt_ids) + request.max_new_tokens > self.context:
            raise ContextTooLong(len(prompt_ids), request.max_new_tokens, self.context)

    def prefill(
        self, prompt_ids: list[int], reuse: bool = False, user: Any = "", watch: Any = None
    ) -> Prefilled:
        self.reused.append(reuse)
        if watch is not None:
            for read in (0, len(prompt_ids)):
                watch(read, len(prompt_ids))
        embedding = torch.tensor([len(prompt_ids) % 2, 1.0, 0.0, 0.0])
        return Prefilled(torch.zeros(8), embedding, prefill_s=0.01)

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
        streamer: Any = None,
    ) -> DecodeResult:
        text = self.tokenizer.decode(prompt_ids)
        self.calls.append((arm, text))
        self.seeds.append(request.seed)
        if self.fails is not None and self.fails in text:
            raise RuntimeError("the fake engine was told to fail here")
        words = text.rpartition(":")[2].upper()[: request.max_new_tokens]
        ids = [ord(c) for c in words]
        if len(ids) < request.max_new_tokens:
            ids.append(EOS)
        if streamer is not None:
            streamer.put(torch.tensor([prompt_ids]))
            for token in ids:
                streamer.put(torch.tensor([token]))
            streamer.end()
        step = WORDS[arm]
        left = len(ids) - 1
        rounds = -(-left // step)
        time.sleep(0.0002 * rounds)
        accepted = left - rounds
        full, rest = divmod(left, step)
        per_position = [full + (rest > i + 1) for i in range(step - 1)]
        return DecodeResult(
            arm=arm,
            prompt_ids=list(prompt_ids),
            ids=ids,
            text=words,
            finish_reason="eos" if ids[-1] == EOS else "length",
            rounds=rounds,
            drafted=rounds * (step - 1),
            accepted=accepted,
            accepted_per_position=per_position,
            target_calls=rounds + 1,
            draft_calls=rounds * (step - 1),
            prefill_s=0.01,
            draft_s=0.001 * rounds * (step > 1),
            verify_s=0.01 * rounds,
            other_s=0.0,
        )


class FakePolicy:
    """Prefers `small` for prompts of even length and `wide` for the others."""

    name = "fake"
    embedder = FakeEngine.embedder
    origin = SimpleNamespace(arms_fingerprint="", features=())

    def __init__(self, arms: Sequence[str] = tuple(WORDS), embedder: str | None = None) -> None:
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


def make_turn(**named: Any) -> Turn:
    """A turn with these fields, its decode's among them."""
    own = {name: value for name, value in named.items() if name in Turn.__dataclass_fields__}
    decode = {name: value for name, value in named.items() if name not in own}
    return replace(TURN, result=replace(RESULT, **decode), **own)
