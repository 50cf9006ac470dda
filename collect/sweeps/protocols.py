"""The engine of a sweep; `decoders.Engine` is one, and so are that of endpoints and a test's fake.

Every member is read-only and narrow, so that another engine can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe
    from decoders.records import DecodeResult, Prefilled, Request


class SweepEngine(Protocol):
    """A target with its arms. See `decoders.Engine` for what each member means."""

    @property
    def target_fingerprint(self) -> str: ...

    @property
    def arm_names(self) -> list[str]: ...

    @property
    def arms(self) -> Mapping[str, ArmRecipe]: ...

    @property
    def embedder(self) -> str: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def timed_by(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    def arm_parameters(self, name: str) -> int: ...

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
