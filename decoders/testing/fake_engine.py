"""An engine without a model, for what stands on engines: routers, servers, collections."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ..arms import recipe
from ..common.errors import ArmDown, ContextTooLong
from ..records import DecodeResult, Prefilled, Request

EOS = 2
TOKENS_A_ROUND = {"autoregressive": 1, "small": 2, "wide": 4}


class CodePoints:
    """A tokenizer of one token a character: ids are code points."""

    eos_token_id = EOS
    chat_template = None

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=self.encode(text))

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(token) for token in ids if token != EOS)


class FakeEngine:
    """Answers with the prompt's last words in capitals; arms differ in how many tokens a round
    gives, and times are made up.

    fails: prompts with this text raise. calls: arm and prompt of each `decode`, and `seeds` their
    seeds; reused: what each `prefill` was asked.
    """

    target_name = "fake-target"
    target_fingerprint = "fake-target@sha256:0/float32"
    timed_by = "fakes"
    embedder = "target:fake/4"
    context = 2000
    eos_ids: tuple[int, ...] = (EOS,)
    tokenizer: Any = CodePoints()
    asleep: Mapping[str, ArmDown] = {}

    def __init__(
        self, fails: str | None = None, tokens_a_round: Mapping[str, int] = TOKENS_A_ROUND
    ) -> None:
        self.fails, self.tokens_a_round = fails, tokens_a_round
        plain = [recipe(name=name, kind="autoregressive") for name in tokens_a_round]
        self.arms: Mapping[str, Any] = {each.name: each for each in plain}
        self.calls: list[tuple[str, str]] = []
        self.reused: list[bool] = []
        self.seeds: list[int | None] = []

    @property
    def arm_names(self) -> list[str]:
        return list(self.tokens_a_round)

    def arms_fingerprint(self, names: Sequence[str]) -> str:
        return "arms:" + ",".join(names)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        turns = (f"{message['role'][0]}:{message['content']}" for message in messages)
        ids: list[int] = self.tokenizer.encode("|".join(turns))
        return ids

    def check(self, prompt_ids: list[int], request: Request) -> None:
        if len(prompt_ids) + request.max_new_tokens > self.context:
            raise ContextTooLong(len(prompt_ids), request.max_new_tokens, self.context)

    def why_too_long(self, name: str, prompt_ids: list[int], request: Request) -> str | None:
        return None

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
        ids = self.tokenizer.encode(words)
        if len(ids) < request.max_new_tokens:
            ids.append(EOS)
        if streamer is not None:
            streamer.put(torch.tensor([prompt_ids]))
            for token in ids:
                streamer.put(torch.tensor([token]))
            streamer.end()
        step, left = self.tokens_a_round[arm], len(ids) - 1
        rounds = -(-left // step)
        time.sleep(0.0002 * rounds)
        full, rest = divmod(left, step)
        return DecodeResult(
            arm=arm,
            prompt_ids=list(prompt_ids),
            ids=ids,
            text=words,
            finish_reason="eos" if ids[-1] == EOS else "length",
            rounds=rounds,
            drafted=rounds * (step - 1),
            accepted=left - rounds,
            accepted_per_position=[full + (rest > i + 1) for i in range(step - 1)],
            target_calls=rounds + 1,
            draft_calls=rounds * (step - 1),
            prefill_s=0.01,
            draft_s=0.001 * rounds * (step > 1),
            verify_s=0.01 * rounds,
            other_s=0.0,
        )
