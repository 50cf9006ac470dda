"""What the router needs of an engine: `decoders.Engine` gives it, and so does the tests' fake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from decoders.records import DecodeResult, Prefilled, Request


class RoutingEngine(Protocol):
    """A loaded target with its arms. See `decoders.Engine` for what each member means."""

    target_name: str
    eos_ids: tuple[int, ...]

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

    def prefill(self, prompt_ids: list[int], reuse: bool = False) -> Prefilled: ...

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
        streamer: Any = None,
    ) -> DecodeResult: ...
