"""From texts to what a policy reads of them: the embedding, then the features of the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from collect.embedders import OWN, is_own, query_text
from collect.features import RequestContext, feature_vector
from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions
from decoders.records import Request, Sampling

from ..routing.loading import embedder_of, load_engine, require_features
from ..routing.messages import as_messages

if TYPE_CHECKING:
    from policies import Policy

    from ..protocols import RoutingEngine


TARGET, CHAT_TEMPLATE = "DRAFTPICK_TARGET", "DRAFTPICK_CHAT_TEMPLATE"  # of the environment


@dataclass(frozen=True)
class TextRow:
    """One request, as far as a policy may read it.

    running: other requests that the machine decodes at the same time.
    """

    text: str
    request: Request
    running: int = 0

    @classmethod
    def of(cls, text: str, max_new_tokens: int, temperature: float, running: int = 0) -> TextRow:
        """Raises DraftpickError for an empty text, and for what no request may ask."""
        as_messages(text)
        if running < 0:
            raise DraftpickError(f"running must be 0 or more, not {running}")
        return cls(text, Request(max_new_tokens, Sampling(temperature=temperature)), running)


class TextReader:
    """Texts to a policy's inputs. The target, or its tokenizer alone, is loaded when first needed.

    options: the target, for a policy that reads its embedding or a feature of the prompt's tokens.
    space: the target's own space in the collection that the policy was trained on, to know the
        target by; "" where nobody knows.

    Raises PolicyError for a feature or an embedder that is not known here.
    """

    def __init__(self, policy: Policy, options: EngineOptions, space: str = "") -> None:
        require_features(policy)
        self._policy, self._options, self._space = policy, options, space
        self._embedder = embedder_of(policy, None, options.device)

    def inputs(self, asked: Sequence[TextRow]) -> NDArray[np.float32]:
        """[n, d + f]. Raises DraftpickError for a prompt that does not fit the target, and where
        the target is another one than that of the training."""
        from policies.records import ANY

        origin = self._policy.origin
        parts = []
        if self._embedder is not None:
            parts.append(self._embedder.embed([query_text(as_messages(a.text)) for a in asked]))
        elif origin.embedder != ANY:
            parts.append(np.array([self._own(each) for each in asked], dtype=np.float32))
        if origin.features:
            rows = [feature_vector(origin.features, self._context(each)) for each in asked]
            parts.append(np.array(rows, dtype=np.float32))
        if not parts:
            return np.zeros((len(asked), 1), dtype=np.float32)  # read by nobody
        return np.concatenate(parts, axis=1)

    def _own(self, asked: TextRow) -> NDArray[np.float32]:
        """[d], the target's own embedding."""
        ids = self._engine.encode_chat(as_messages(asked.text))
        self._engine.check(ids, asked.request)
        found = self._engine.prefill(ids).embedding.detach().float().cpu().numpy()
        return np.asarray(found, dtype=np.float32)

    def _context(self, asked: TextRow) -> RequestContext:
        ids = PromptIds(self, asked.text)
        request = asked.request
        return RequestContext(
            ids, request.max_new_tokens, request.sampling.temperature, asked.running
        )

    def encode(self, text: str) -> list[int]:
        """[S], the chat as the target reads it."""
        from decoders.models.targets import encode_chat

        return encode_chat(self._tokenizer, as_messages(text))

    @cached_property
    def _engine(self) -> RoutingEngine:
        from decoders.arms import AUTOREGRESSIVE

        engine = load_engine(self._options, [AUTOREGRESSIVE])
        self._require_same(engine.embedder)
        return engine

    @cached_property
    def _tokenizer(self) -> Any:
        from decoders.models.targets import resolve, tokenizer_and_fingerprint

        if self._embedder is None and is_own(self._policy.embedder):
            return self._engine.tokenizer
        options = self._options
        tokenizer, own = tokenizer_and_fingerprint(resolve(options.target), options.chat_template)
        self._require_same(f"{OWN}:{options.target}@{own}")
        return tokenizer

    def _require_same(self, found: str) -> None:
        """The weights identify a target; its name may be a folder's."""
        if self._space and found.rpartition("@")[2] != self._space.rpartition("@")[2]:
            raise DraftpickError(
                f"the policy was trained with the target {self._space}, but the one here is "
                f"{found}; name that target in {TARGET}, and its chat template, where it was "
                f"another than the tokenizer's own, in {CHAT_TEMPLATE}"
            )


class PromptIds(Sequence[int]):
    """A prompt's token ids, read when somebody looks at them: most features do not."""

    def __init__(self, reader: TextReader, text: str) -> None:
        self._reader, self._text = reader, text

    @cached_property
    def _ids(self) -> list[int]:
        return self._reader.encode(self._text)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._ids[at]
