"""What is asked of a decoding engine; `decoders.Engine` gives it, and so does a test's fake.

Every member is read-only and narrow, so that another executor can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collect.replay.records import Replay, Written
    from decoders.costs.measured import Costs
    from decoders.records import DecodeResult, Prefilled, Request


class Recipe(Protocol):
    """An arm as declared."""

    @property
    def kind(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    @property
    def reads_earlier(self) -> bool: ...

    def model_dump(self, *, mode: str = ...) -> dict[str, Any]: ...


class BatchDecoder(Protocol):
    """Many prompts at once; greedy unless temperature > 0."""

    @property
    def cost_table(self) -> Costs: ...

    def keep(self, prompt: list[int], answer: list[int], temperature: float = 0.0) -> None:
        """What arms that draft from earlier answers have before them from now on."""
        ...

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
        also: Sequence[tuple[float, Sequence[int]]] = (),
    ) -> Written:
        """also: temperatures and seeds of answers to these prompts that will be asked for next."""
        ...

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> Written: ...

    def at_batch_size(self, answers: int) -> AbstractContextManager[None]:
        """Within the block arms are replayed as if this many answers were written at once."""
        ...

    def is_replayable(self, name: str, temperature: float = 0.0) -> bool:
        """Whether `replay` can follow the target's answers with this arm."""
        ...

    def replay(
        self,
        name: str,
        prompts: list[list[int]],
        answers: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
    ) -> list[Replay]: ...

    def live(
        self,
        name: str,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> Written: ...


class ArmEngine(Protocol):
    """A loaded target with its arms. See `decoders.Engine` for what each member means."""

    @property
    def target_fingerprint(self) -> str: ...

    @property
    def arm_names(self) -> list[str]: ...

    @property
    def embedder(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    def arms_fingerprint(self, names: Sequence[str]) -> str: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...

    def check(self, prompt_ids: list[int], request: Request) -> None: ...

    def prefill(
        self,
        prompt_ids: list[int],
        reuse: bool = False,
        user: str | None = "",
        watch: Callable[[int, int], None] | None = None,
    ) -> Prefilled: ...

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
        streamer: Any = None,
    ) -> DecodeResult: ...


class SweepEngine(ArmEngine, Protocol):
    """What a sweep needs besides: arms as declared, their sizes, and what seconds depend on."""

    @property
    def arms(self) -> Mapping[str, Recipe]: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def timed_by(self) -> str: ...

    def arm_parameters(self, name: str) -> int: ...
