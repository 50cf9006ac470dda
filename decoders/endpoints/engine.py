"""An engine without a target: every arm is a server that answers on its own.

It has what `collect` and `router` ask of an engine (`collect/sweeps/protocols.py`), so that both
work over a file of endpoints as they do over the arms of one target.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..arms import ArmRecipe
from ..arms.file import fingerprint
from ..common.breaker import Breaker
from ..common.errors import ArmDown, DraftpickError, GrammarError, NoSuchName, UpstreamBroke
from ..common.hashing import HashingEmbedder
from ..common.text import to_json
from ..options import EngineOptions
from ..protocols import FieldStreamer, RoundStreamer
from ..records import DecodeResult, Prefilled, Request, Upstream
from .chat import NOTHING, Conversations, Pieces, chat_ids, chat_of, tokenizer_of, tokens_of
from .fields import Joined, shown, thought, tokens_guessed
from .load import Loads
from .recipe import EndpointRecipe
from .servers import Speculated
from .stream import Event, Refused, Unavailable, client, completions
from .threaded import Threads

if TYPE_CHECKING:
    from collections.abc import Iterator


class EndpointEngine:
    """Endpoints as arms. Several threads may decode at once.

    clock: as in Breaker.
    """

    def __init__(
        self, arms: Mapping[str, ArmRecipe], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.arms: dict[str, EndpointRecipe] = {}
        for name, arm in arms.items():
            if not isinstance(arm, EndpointRecipe):
                raise DraftpickError(f"the arm {name!r} is of kind {arm.kind!r}, not an endpoint")
            if arm.tokenizer is not None:
                _try_tokenizer(name, arm.tokenizer)
            self.arms[name] = arm
        self.target_name = "endpoints"
        self.eos_ids: tuple[int, ...] = ()
        self.tokenizer = Pieces()
        self._embedder = HashingEmbedder()
        self._connections = client()
        self._breakers = {name: Breaker(clock=clock) for name in self.arms}
        self.loads = Loads(self.arms.values(), self._connections)
        self.conversations = Conversations()
        self._uncounted = set[str]()  # arms whose server refuses `stream_options`

    @classmethod
    def from_options(
        cls, options: EngineOptions, only: Sequence[str] | None = None
    ) -> EndpointEngine:
        """only: these arms of the options'. Raises DraftpickError where the options name a target,
        how it runs, or arms that need one."""
        from ..models.targets import device_of

        for name in ("target", "dtype", "backend", "context", "chat_template", "kv_dtype"):
            given = getattr(options, name)
            if given != getattr(EngineOptions, name):
                raise DraftpickError(
                    f"endpoints answer without a target, so that the {name} {given!r} has nothing "
                    f"to do; leave --{name.replace('_', '-')} out"
                )
        device_of(options.device)  # of an embedder
        return cls(options.recipes(only))

    # -- what it is ---------------------------------------------------------------------------

    @property
    def arm_names(self) -> list[str]:
        return list(self.arms)

    @property
    def target_fingerprint(self) -> str:
        """Fingerprint of the models' names; no server says which weights it holds."""
        models = json.dumps({name: arm.model for name, arm in self.arms.items()})
        return f"endpoints@{hashlib.sha256(models.encode()).hexdigest()[:8]}/remote"

    @property
    def timed_by(self) -> str:
        """No server says what it runs on."""
        return ""

    @property
    def context(self) -> int:
        """No limit: a server says itself what it holds."""
        return sys.maxsize

    @property
    def embedder(self) -> str:
        """The space of `Prefilled.embedding`, which needs no model."""
        return self._embedder.name

    def arms_fingerprint(self, names: Sequence[str]) -> str:
        """Fingerprint of the arms."""
        return fingerprint({name: self.arm(name) for name in names})

    def arm(self, name: str) -> EndpointRecipe:
        """Raises NoSuchName."""
        if name not in self.arms:
            raise NoSuchName("arm", name, list(self.arms))
        return self.arms[name]

    def arm_parameters(self, name: str) -> int:
        """0: nobody says how large the model behind an endpoint is."""
        self.arm(name)
        return 0

    @property
    def asleep(self) -> dict[str, ArmDown]:
        """Why and how long each arm is left alone; what `decode` would raise now."""
        pauses = {name: breaker.pause_s for name, breaker in self._breakers.items()}
        return {
            name: ArmDown(name, self._breakers[name].reason, pause_s)
            for name, pause_s in pauses.items()
            if pause_s > 0
        }

    def why_too_long(self, name: str, prompt_ids: Sequence[int], request: Request) -> str | None:
        """None: how long a prompt may be is a server's to say."""
        return None

    def wake(self, arm: str) -> None:
        """Let the arm be asked at once, though it is left alone. Raises NoSuchName."""
        self.arm(arm)
        self._breakers[arm].wake()

    @property
    def requests_under_way(self) -> int:
        """At the busiest of the servers, by their metrics pages; 0 where no arm has one."""
        return self.loads.busiest

    def kept(self, prompt_ids: Sequence[int]) -> str | None:
        """The arm whose server has read the earlier turns of this chat already; None where all arms
        are of one server and model."""
        if len({(arm.url, arm.model) for arm in self.arms.values()}) == 1:
            return None
        return self.conversations.arm_of(chat_of(prompt_ids))

    def forget_conversations(self) -> None:
        """From now on no conversation stays with a server."""
        self.conversations.least = None

    # -- answering ----------------------------------------------------------------------------

    def answering(self, n: int) -> Threads:
        """Answer in threads, as `continuous_batching.Concurrent`."""
        return Threads(self, n)

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Ids [S] that stand for the chat (see `chat.py`)."""
        return chat_ids(messages)

    def encode_text(self, text: str) -> list[int]:
        """Encode one message: endpoints are asked by chat."""
        return chat_ids([{"role": "user", "content": text}])

    def check(self, prompt_ids: Sequence[int], request: Request) -> None:
        """Raises DraftpickError where the ids are no chat, for a grammar and for fields that cannot
        be sent; a server says itself what it holds."""
        chat_of(prompt_ids)
        for name, value in request.passed.items():
            try:
                to_json(value)
            except (ValueError, TypeError, RecursionError) as error:
                raise DraftpickError(f"{name} cannot be sent to an endpoint: {error}") from error
        if request.grammar is not None:
            raise GrammarError(
                "endpoints write their answers themselves, and no grammar of ours binds those; ask "
                "for any text, or by the request's own fields (`response_format`)"
            )

    def prefill(
        self,
        prompt_ids: list[int],
        reuse: bool = False,
        user: str | None = "",
        watch: Callable[[int, int], None] | None = None,
    ) -> Prefilled:
        """The embedding of the chat's last user message; the server reads it in `decode`."""
        import torch

        asked = [message["content"] for message in chat_of(prompt_ids) if message["role"] == "user"]
        started = time.perf_counter()
        vector = self._embedder.embed([asked[-1] if asked else ""])[0]  # [d]
        took = time.perf_counter() - started
        return Prefilled(torch.zeros(0), torch.from_numpy(vector), took)

    def decode(
        self,
        arm: str,
        prompt_ids: list[int],
        request: Request,
        prefilled: Prefilled | None = None,
        streamer: Any = None,
    ) -> DecodeResult:
        """Answer one chat by one endpoint; text goes to the streamer as it comes.

        The time to the first text is the result's `prefill_s`, the rest its `verify_s`. `rounds`
        counts the events after the first that brought text, which are the server's steps where it
        sends each as it is made; what it drafts it does not say.

        streamer: as for `decoders.Engine`. One with `shown = False` shows nobody what it is given
            before `end`, and may be given another answer after a part of this one.

        Raises ArmDown where the server is dead, or was a moment ago, and nothing of the answer was
        shown; UpstreamBroke where some was, UpstreamRefused where it refuses every request, and
        DraftpickError where it refuses this request.
        """
        recipe, messages = self.arm(arm), chat_of(prompt_ids)
        recipe.check(request)
        breaker = self._breakers[arm]
        after = breaker.allow()
        if not after:
            raise ArmDown(arm, breaker.reason, breaker.pause_s)
        answer = _Answer(self.tokenizer, prompt_ids, streamer)
        body = _body(recipe, messages, request)
        try:
            self._ask(recipe, body, answer, request.trace)
        except Unavailable as error:
            breaker.failed(str(error), error.pause_s, after)
            if answer.ids and getattr(streamer, "shown", streamer is not None):
                words = f"the endpoint of arm {arm!r} {error}, in the middle of its answer"
                raise UpstreamBroke(arm, f"{words}; ask again") from error
            raise ArmDown(arm, str(error), breaker.pause_s) from error
        except DraftpickError:
            breaker.succeeded(after)  # it lives, and refused
            raise
        breaker.succeeded(after)
        self.conversations.answered(messages, arm)
        if streamer is not None:
            answer.begin()
            streamer.end()
        return answer.result(recipe, request)

    def _ask(
        self,
        recipe: EndpointRecipe,
        body: dict[str, Any],
        answer: _Answer,
        trace: Mapping[str, str],
    ) -> None:
        """Without `stream_options` where the server has refused them; it may count all the same."""
        counted = {"stream_options": {"include_usage": True}}
        more = {} if recipe.name in self._uncounted else counted
        try:
            with closing(completions(self._connections, recipe, body | more, trace)) as events:
                answer.read(events)
        except Refused as error:
            if not more or "stream_options" not in error.content:
                raise DraftpickError(str(error)) from error
            self._uncounted.add(recipe.name)
            self._ask(recipe, body, answer, trace)


def _try_tokenizer(arm: str, tokenizer: str) -> None:
    """Load it, so that a mistake is told before anything is asked, not behind an answer."""
    try:
        tokenizer_of(tokenizer)
    except DraftpickError as error:
        raise DraftpickError(f"the `tokenizer` of arm {arm!r} cannot be loaded: {error}") from error


def _body(
    recipe: EndpointRecipe, messages: list[dict[str, Any]], request: Request
) -> dict[str, Any]:
    """Fields that OpenAI knows, and where they are asked for those that vLLM and SGLang add."""
    sampling = request.sampling
    body: dict[str, Any] = {
        **request.passed,
        "messages": messages,
        recipe.limit_field: request.max_new_tokens,
        "stream": True,
    }
    if recipe.takes_temperature:
        body["temperature"] = sampling.temperature
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.repetition_penalty != 1:
        body["repetition_penalty"] = sampling.repetition_penalty
    if request.stop:
        body["stop"] = list(request.stop)
    if request.seed is not None:
        body["seed"] = request.seed
    if request.eos_ids == ():
        body["ignore_eos"] = True
    return body


class _Answer:
    """An answer as it comes."""

    def __init__(self, tokenizer: Pieces, prompt_ids: list[int], streamer: Any) -> None:
        self._tokenizer, self._prompt_ids, self._streamer = tokenizer, prompt_ids, streamer
        self._words = tokenizer.begin()
        self._started = self._first = self._last = time.perf_counter()
        self._begun = False
        self._steps = 0
        self._reason: str | None = None
        self._stopped_by: str | None = None
        self._prompt_tokens: int | None = None
        self._tokens: int | None = None
        self._drafts: Speculated | None = None
        self._fields, self._logprobs = Joined(), dict[str, list[Any]]()
        self.ids: list[int] = []

    def read(self, events: Iterator[Event]) -> None:
        for event in events:
            self._reason = event.finish_reason or self._reason
            self._stopped_by = event.stopped_by or self._stopped_by
            if event.completion_tokens is not None:
                self._tokens = event.completion_tokens
            if event.prompt_tokens is not None:
                self._prompt_tokens = event.prompt_tokens
            self._drafts = event.speculated or self._drafts
            for name, scored in event.logprobs.items():
                self._logprobs.setdefault(name, []).extend(scored)
            if event.text or event.fields:
                self._add(event.text, event.fields)
        self._last = time.perf_counter()
        if not self._steps:
            self._first = self._last

    def begin(self) -> None:
        """Hand the streamer the prompt, once."""
        import torch

        if not self._begun:
            self._begun = True
            self._streamer.put(torch.tensor([self._prompt_ids]))

    def _add(self, text: str, fields: dict[str, Any]) -> None:
        if not self._steps:
            self._first = time.perf_counter()
        self._steps += 1
        ids = self._words.encode(text)
        silent = [NOTHING] * tokens_guessed(fields) if fields else []
        self.ids += ids + silent
        if fields:
            fields = self._fields.add(fields)
        if self._streamer is None:
            return
        import torch

        self.begin()
        if isinstance(self._streamer, RoundStreamer):
            if ids:
                self._streamer.put_round(ids, 0, 0)
        elif ids:
            self._streamer.put(torch.tensor(ids))
        if fields and isinstance(self._streamer, FieldStreamer):
            self._streamer.put_fields(silent, fields)

    def result(self, recipe: EndpointRecipe, request: Request) -> DecodeResult:
        fields = self._fields.whole()
        text = "\n".join(filter(None, [self._tokenizer.decode(self.ids), shown(fields)]))
        tokens = self._tokens
        if tokens is None and recipe.tokenizer is not None:
            tokens = tokens_of(recipe.tokenizer, thought(fields) + text)
        ids = self._words.counted(self.ids, tokens)
        reason = "length" if self._reason == "length" else "eos"
        if self._reason == "stop" and self._stopped_by in request.stop:
            reason = "stop"
        steps, drafts = max(self._steps - 1, 0), self._drafts or Speculated(0, 0)
        prompt_tokens, cost = self._prompt_tokens, None
        if prompt_tokens is not None and tokens is not None:
            cost = recipe.cost(prompt_tokens, tokens)
        return DecodeResult(
            arm=recipe.name,
            prompt_ids=self._prompt_ids,
            ids=ids,
            text=text,
            finish_reason=reason,
            rounds=steps if drafts.rounds is None else drafts.rounds,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            accepted_per_position=list(drafts.per_position or ()),
            target_calls=self._steps,
            draft_calls=0,
            prefill_s=self._first - self._started,
            draft_s=0.0,
            verify_s=self._last - self._first,
            other_s=0.0,
            prompt_tokens=prompt_tokens,
            cost=cost,
            counted=tokens is not None,
            upstream=Upstream(fields, self._reason, self._logprobs or None, self._words),
        )
