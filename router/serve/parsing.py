"""From a request's body to the scheduler's requests: which arm, which tokens, how many."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from collect.embedders import query_text
from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import ContextTooLong, DraftpickError, GrammarError
from decoders.common.seeds import derived_seed
from decoders.engine import Engine
from decoders.models.grammars import AT_ONCE
from decoders.protocols import decoder_prefix
from decoders.records import Grammar, Request, Sampling
from decoders.sampling.randomness import seeded
from decoders.spelling import text_of

from ..protocols import Elsewhere, RoutingEngine
from ..records import RouteChoice
from ..routing.messages import as_messages
from .errors import ApiError
from .middleware import NAMELESS
from .scheduler import DEFAULT, GenerationRequest
from .schemas import LONGEST_SEED, ChatBody, CommonFields, CompletionBody
from .structured import call_reader, grammar_of
from .tools import CallReader

AUTO = "auto"  # the model whose arm the policy chooses


@dataclass(frozen=True)
class Limits:
    """What one request may take.

    most_tokens: longest answer, and the length of a chat's answer without a limit of its own.
    most_answers: over all prompts of a request, n for each.
    usual: sampling of requests that name none.
    """

    most_tokens: int = 1024
    most_answers: int = 64
    usual: Sampling = field(default_factory=Sampling)


class RequestParser:
    """Turns bodies into requests for the scheduler. It has a tokenizer of its own, since tokenizers
    are not thread-safe."""

    def __init__(self, engine: RoutingEngine, policies: Sequence[str], limits: Limits) -> None:
        self._key = secrets.token_bytes(16)
        self._served = engine  # whose arms may be exchanged
        self._engine = copy.copy(engine)
        self._engine.tokenizer = copy.deepcopy(engine.tokenizer)  # type: ignore[misc]
        self._elsewhere = isinstance(engine, Elsewhere)  # answers are written
        self._policies, self._limits = list(policies), limits
        self._thread = ThreadPoolExecutor(1, "tokenizer")
        self._compiling = ThreadPoolExecutor(AT_ONCE, "grammars")

    async def requests(
        self,
        body: ChatBody | CompletionBody,
        route: RouteChoice,
        client: str,
        user: str | None = "",
        trace: Mapping[str, str] | None = None,
    ) -> list[GenerationRequest]:
        """One request to the scheduler for each answer, in order. Raises ApiError and
        DraftpickError.

        user, trace: as of `decoders.records.Request`.
        """
        loop = asyncio.get_running_loop()
        bound = None
        if not self._elsewhere:
            asked = await loop.run_in_executor(self._thread, self._bound, body)
            if asked is not None:
                await loop.run_in_executor(self._compiling, self._compile, *asked)
                bound = asked[0]
        return await loop.run_in_executor(
            self._thread, self._requests, body, route, client, user, trace or {}, bound
        )

    def call_reader(self, body: CommonFields) -> CallReader | None:
        """Reads the calls in one answer's text; None where there are none, and of an endpoint,
        whose calls are no text. Raises ApiError."""
        if self._elsewhere:
            return None
        return call_reader(body, getattr(self._engine.tokenizer, "chat_template", None))

    def route(self, body: CommonFields) -> RouteChoice:
        """Raises ApiError for names that are not known or contradict each other."""
        arms = self._served.arm_names
        if body.model != AUTO and body.model not in arms:
            known = ", ".join([AUTO, *arms])
            words = f"no model {body.model!r} here; known: {known}"
            raise ApiError(404, words, "model", "model_not_found")
        if body.arm is not None and body.arm not in arms:
            raise ApiError(400, f"unknown arm {body.arm!r}; known: {', '.join(arms)}", "arm")
        if body.policy is not None and body.policy not in self._policies:
            known = ", ".join(self._policies) or "none"
            raise ApiError(400, f"unknown policy {body.policy!r}; known: {known}", "policy")
        named = {body.arm, None if body.model == AUTO else body.model} - {None}
        if not body.speculative:
            named.add(AUTOREGRESSIVE)
        if len(named) > 1:
            listed = " and ".join(sorted(map(str, named)))
            raise ApiError(400, f"the request asks for several arms, {listed}; ask for one", "arm")
        if named:
            if body.policy is not None or body.dynamic:
                words = "the request names an arm, so that no policy chooses; leave one of them out"
                raise ApiError(400, words, "policy" if body.policy else "dynamic")
            reason = "forced" if body.speculative else "no-speculation"
            return RouteChoice(named.pop(), reason=reason)
        if body.policy is None and DEFAULT not in self._policies:
            raise ApiError(400, f"no policy is loaded; name one of: {', '.join(arms)}", "model")
        return RouteChoice(None, body.policy or DEFAULT, "drawn" if body.dynamic else "best")

    def _bound(self, body: ChatBody | CompletionBody) -> tuple[Grammar, str | None] | None:
        """What the answer must be, and the field that says so; not of an endpoint, which sees to
        that itself. Raises ApiError."""
        template = getattr(self._engine.tokenizer, "chat_template", None)
        grammar, place = grammar_of(body, template)
        if grammar is None:
            return None
        if body.ignore_eos:
            words = "an answer in a grammar ends where the grammar does; leave ignore_eos out"
            raise ApiError(400, words, "ignore_eos")
        return grammar, place

    def _compile(self, grammar: Grammar, place: str | None) -> None:
        """So that the engine has it, which may take seconds. Raises ApiError and StillCompiling."""
        try:
            self._engine.check([0], Request(1, grammar=grammar))
        except GrammarError as error:
            raise ApiError(400, str(error), place) from error

    def _requests(
        self,
        body: ChatBody | CompletionBody,
        route: RouteChoice,
        client: str,
        user: str | None,
        trace: Mapping[str, str],
        grammar: Grammar | None,
    ) -> list[GenerationRequest]:
        copies = body.n or 1
        prompts = self._chat(body) if isinstance(body, ChatBody) else self._texts(body)
        if len(prompts) * copies > self._limits.most_answers:
            words = f"a request may ask for at most {self._limits.most_answers} answers"
            raise ApiError(400, words, "n")
        request_id = uuid.uuid4().hex
        group = self._group(body, client if user in NAMELESS else user)
        if group is None and len(prompts) * copies > 1:
            group = request_id
        requests: list[GenerationRequest] = []
        for prompt_ids, text in prompts:
            wanted = replace(self._request(body, prompt_ids, grammar), user=user, trace=trace)
            if not self._elsewhere:
                wanted = seeded(wanted)
            if text is None:
                text = text_of(self._engine.tokenizer, prompt_ids)
            for _ in range(copies):
                number = len(requests)
                seed = wanted.seed
                if seed is not None and number:  # the first is as it would be alone
                    seed = derived_seed(seed, number)
                requests.append(
                    GenerationRequest(
                        prompt_ids=prompt_ids,
                        request=replace(wanted, seed=seed),
                        text=text,
                        route=route,
                        id=f"{request_id}/{number}",
                        client=client,
                        streamed=bool(body.stream),
                        group=group,
                    )
                )
        return requests

    def _chat(self, body: ChatBody) -> list[tuple[list[int], str | None]]:
        try:
            messages = as_messages(
                [each.sent() if self._elsewhere else each.plain() for each in body.messages]
            )
            if body.offered and isinstance(self._engine, Engine):
                tools = [{"type": "function", "function": each} for each in body.offered]
                ids = self._engine.encode_chat(messages, tools)
            else:
                ids = self._engine.encode_chat(messages)
        except DraftpickError as error:  # templates refuse what their model was not trained for
            raise ApiError(400, str(error), "messages") from error
        return [(ids, query_text(messages))]

    def _group(self, body: ChatBody | CompletionBody, sender: str | None) -> str | None:
        """The same for all turns of a conversation, which begin with the same user message. Nobody
        without this process's key can guess the message by it."""
        messages = body.messages if isinstance(body, ChatBody) else []
        asked = [each.content for each in messages if each.role == "user"]
        if not asked:
            return None
        said = json.dumps([sender, asked[0]])
        return hashlib.blake2b(said.encode(), key=self._key, digest_size=8).hexdigest()

    def _texts(self, body: CompletionBody) -> list[tuple[list[int], str | None]]:
        if self._elsewhere and not all(isinstance(each, str) for each in body.prompt):
            words = "endpoints take texts, not token ids, as their tokenizers are not known here"
            raise ApiError(400, words, "prompt")
        return [
            (self._engine.encode_text(each), each) if isinstance(each, str) else (each, None)
            for each in body.prompt
        ]

    def _request(
        self, body: ChatBody | CompletionBody, prompt_ids: list[int], grammar: Grammar | None
    ) -> Request:
        usual, cap = self._limits.usual, self._limits.most_tokens
        asked = body.most_tokens
        if asked is not None and asked > cap:
            words = f"an answer may have at most {cap} tokens here, not {asked}"
            raise ApiError(400, words, "max_tokens")
        unasked = min(cap, body.unasked_tokens or cap)
        passed = body.passed if self._elsewhere else {}
        given: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "top_k", "repetition_penalty")
            if (value := getattr(body, name)) is not None
        }
        given["top_k"] = max(given.get("top_k", usual.top_k), 0)  # vLLM's -1 is off as well
        wanted = Request(
            max_new_tokens=unasked if asked is None else asked,
            sampling=replace(usual, **given),
            stop=tuple(body.stop),
            eos_ids=() if body.ignore_eos else None,
            seed=None if body.seed is None else body.seed % (LONGEST_SEED + 1),
            logprobs=None if "logprobs" in passed else body.likeliest,
            grammar=grammar,
            passed=passed,
        )
        held, context = len(prompt_ids), self._engine.context
        target: Any = getattr(self._engine, "target", None)
        before = len(decoder_prefix(target, prompt_ids))
        try:
            self._engine.check(prompt_ids, wanted)
        except ContextTooLong as error:
            if asked is not None or held > context or before >= context:
                words = (
                    f"the prompt has {held} tokens and its answer may have "
                    f"{wanted.max_new_tokens}, but the context holds {context}; shorten the prompt "
                    "or lower max_tokens"
                )
                place = "messages" if isinstance(body, ChatBody) else "prompt"
                raise ApiError(400, words, place, "context_length_exceeded") from error
            wanted = replace(wanted, max_new_tokens=context - before)
            self._engine.check(prompt_ids, wanted)
        return wanted
