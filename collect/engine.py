"""What a sweep asks of a decoding engine; `decoders.Engine` gives it, and so does a test's fake.

Every member is read-only and narrow, so that another executor can stand in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoders.records import DecodeResult, Prefilled, Request


class Recipe(Protocol):
    """An arm as declared."""

    @property
    def kind(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    def model_dump(self, *, mode: str = ...) -> dict[str, Any]: ...


class Written(Protocol):
    """Answers to a batch of n prompts. ids: the new tokens, end-of-sequence included.
    embeddings: [n, d] float32. Seconds are of the whole batch. replays: one an answer where the arm
    gives answers of its own, else None."""

    @property
    def ids(self) -> list[list[int]]: ...

    @property
    def embeddings(self) -> NDArray[np.float32]: ...

    @property
    def prefill_s(self) -> float: ...

    @property
    def decode_s(self) -> float: ...

    @property
    def replays(self) -> Sequence[Replay] | None: ...


class Replay(Protocol):
    """An arm's greedy loop replayed along the target's answer (agree: per position of it), or its
    own answer live (agree: empty). rounds: passes of the target after the prompt's."""

    @property
    def agree(self) -> list[bool]: ...

    @property
    def rounds(self) -> int: ...

    @property
    def drafted(self) -> int: ...

    @property
    def accepted(self) -> int: ...


class BatchDecoder(Protocol):
    """Many prompts at once; greedy unless temperature > 0."""

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Written: ...

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> Written: ...

    def teacher_forced(
        self, name: str, prompts: list[list[int]], target_ids: list[list[int]]
    ) -> Sequence[Replay]: ...

    def costs(self) -> dict[str, Any]: ...


class Tokenizer(Protocol):
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = ...) -> str: ...


class SweepEngine(Protocol):
    """A target and its arms, loaded."""

    @property
    def arms(self) -> Mapping[str, Any]: ...  # name -> Recipe

    @property
    def arm_names(self) -> Sequence[str]: ...

    @property
    def target_fingerprint(self) -> str: ...

    @property
    def embedder(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...  # Tokenizer

    def arms_fingerprint(self, names: list[str]) -> str: ...

    def arm_parameters(self, name: str) -> int: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...

    def check(self, prompt_ids: list[int], request: Request) -> None: ...

    def prefill(self, prompt_ids: list[int]) -> Prefilled: ...

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
    ) -> DecodeResult: ...
