"""The routed decode: encode, prefill, choose an arm, decode with that arm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import policies
from collect.embedders import Embedder, query_text, same_space
from collect.features import RequestContext, feature_vector
from decoders.common import plugins
from decoders.common.errors import ArmDown, DraftpickError, NoSuchName, NotANumber
from decoders.common.seeds import derived_seed, draw_of
from decoders.options import Arms, EngineOptions
from decoders.protocols import ReadStreamer
from decoders.records import Grammar, Prefilled, Request, Sampling
from decoders.sampling.randomness import seeded
from policies import Policy
from policies.learners.exploring import ExploringPolicy
from policies.records import ANY

from ..logs.record import Result
from ..logs.recorder import Recorder, failure_of, outcome_of
from ..logs.writer import DecisionLog
from ..protocols import Elsewhere, RoutingEngine
from ..records import AskOptions, RouteDecision, RoutedResult
from . import loading
from .fallback import arms_past_context, passed_over, redirected, unchosen, unfit
from .learning import Learning
from .loading import BEST_FIXED, OWN_POLICY, UNTRAINED, embedder_of, require_features, shipped_for
from .messages import Message, as_messages

DEFAULTS = AskOptions()


class Router:
    """Answers queries, each through the arm that the policy picks for it.

    policy: None where every call names its arm.
    embedder: None for the one that the policy was trained with.
    log: where every decision becomes a line, for `draftpick evaluate`: a DecisionLog, or a folder
        for one that keeps neither embeddings nor text. What goes wrong there never reaches an
        answer.

    Raises policies.PolicyError where the policy was trained for other arms than the engine's, with
    another embedder or on features that are not known here.
    """

    def __init__(
        self,
        engine: RoutingEngine,
        policy: Policy | None,
        embedder: Embedder | None = None,
        log: DecisionLog | str | Path | None = None,
    ) -> None:
        reader = embedder if policy is None else embedder_of(policy, embedder)
        if policy is not None:
            require_features(policy)
            known = set(policy.arms) <= set(engine.arm_names)
            fingerprint = engine.arms_fingerprint(policy.arms) if known else None
            space = engine.embedder if reader is None else reader.name
            width = None if reader is None else reader.dimension
            if same_space(policy.embedder, space):  # the same content in another place
                space = policy.embedder
            policies.check_compatible(policy, engine.arm_names, space, fingerprint, width)
        self.engine = engine
        self.policy = policy
        self._version = _version(policy)
        self.embedder = reader
        self.log = DecisionLog(log) if isinstance(log, str | Path) else log
        self._recorder = self._make_recorder()
        self._learning: Learning | None = None
        self._draws = count()  # of a learning router, so far

    def _make_recorder(self) -> Recorder | None:
        if self.log is None:
            return None
        space = self.embedder.name if self.embedder else self.engine.embedder
        return Recorder(self.log, self.engine, self.policy, space)

    def with_engine(self, engine: RoutingEngine) -> Router:
        """The same router over another engine of the same target and arms."""
        other = copy(self)
        other.engine = engine
        return other

    @property
    def learns_from(self) -> str | None:
        """The reward of a log that its policy learns from; None where it does not learn."""
        return None if self._learning is None else self._learning.reward

    def unlogged(self) -> Router:
        """The same router without its log, for warming up; it does not learn."""
        other = copy(self)
        other.log = other._recorder = other._learning = None
        return other

    def learning(self, folder: str | Path | None = None, every: int = 20) -> Router:
        """The same router, whose policy learns from every answer, but those whose arm was forced.
        Arms are drawn, `dynamic` or not. What goes wrong while learning never reaches an answer.

        folder, every: as in `Learning`; `save_learned` saves what came since the last time.
        Raises DraftpickError where there is no policy, PolicyError for one that does not learn.
        """
        if self.policy is None:
            raise DraftpickError("there is no policy to learn with; load one")
        other = copy(self)
        other._learning = Learning(self.policy, None, folder, every)
        return other

    def save_learned(self) -> None:
        """Save what a learning router has learned; nothing where it does not, or has no folder."""
        if self._learning is not None:
            self._learning.save()

    def exploring(self, share: float, greedy: bool = True) -> Router:
        """The same router, whose `dynamic` answers take any arm in this share of the draws, so that
        their log is informative about every arm.

        greedy: the policy's best arm in the others, else a draw from it. Raises DraftpickError
        where there is no policy, PolicyError for a share outside (0, 1].
        """
        if self.policy is None:
            raise DraftpickError("there is no policy to explore with; load one")
        if self._learning is not None:
            raise DraftpickError("a router that learns explores on its own; leave --explore out")
        other = copy(self)
        other.policy = ExploringPolicy(self.policy, share, greedy)
        other._version = _version(other.policy)
        other._recorder = other._make_recorder()
        return other

    @classmethod
    def from_pretrained(
        cls,
        target: str = EngineOptions.target,
        policy: str | Path | Policy | None = None,
        arms: Arms = EngineOptions.arms,
        embedder: str | Embedder | None = None,
        log: DecisionLog | str | Path | None = None,
        **options: Any,
    ) -> Router:
        """`from_options`, the other options of `decoders.EngineOptions` as keywords."""
        return cls.from_options(EngineOptions(target, arms, **options), policy, embedder, log)

    @classmethod
    def from_options(
        cls,
        options: EngineOptions,
        policy: str | Path | Policy | None = None,
        embedder: str | Embedder | None = None,
        log: DecisionLog | str | Path | None = None,
    ) -> Router:
        """Load a target with its arms, and a policy over them.

        policy: a folder, a `runs:/` or `models:/` URI, a Policy, or None for the one that ships.
        embedder: where the policy's own lies now, a folder most often; None for where it was when
            the policy was trained.
        log: as in `Router`.
        """
        # Before the model: a wrong name should not cost its load. The arms first, as the policy may
        # be of a kind that a plugin named by their file brings.
        plugins.load("policies")
        if options.arms is not None:
            options = options.resolved()
        if policy is None:
            options, chosen = shipped_for(options)
        else:
            chosen = policies.load(policy) if isinstance(policy, str | Path) else policy
        reader = embedder_of(chosen, embedder, options.device)
        engine = loading.load_engine(options)
        try:
            router = cls(engine, chosen, reader, log)
        except policies.PolicyError as error:
            if policy is not None:
                raise
            if options.arms is not None:
                raise policies.PolicyError(
                    f"the policy that ships does not fit: {error}. Else {OWN_POLICY}"
                ) from error
            best = UNTRAINED if options.made_for else BEST_FIXED
            print(
                f"the policy that ships does not fit: {error}. Every query goes to {best}. To do "
                f"better, {OWN_POLICY}",
                file=sys.stderr,
            )
            router = cls(engine, policies.fixed_policy(chosen.arms, best))
        return router

    def generate(
        self,
        prompt_or_messages: str | Sequence[Message],
        *,
        arm: str | None = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        grammar: Grammar | None = None,
        streamer: Any = None,
        dynamic: bool = False,
        reuse: bool = False,
        request_id: str | None = None,
        group: str | None = None,
    ) -> RoutedResult:
        """Answer a prompt (a string) or a chat (role and content messages).

        arm, dynamic, reuse, streamer, request_id, group: as in `AskOptions`.
        seed: makes the draw and the tokens repeatable; None for a fresh one, which
            `result.seed` tells. Draws of arms for other prompts are independent; for other answers
            to the same prompt give another seed (`decoders.common.seeds.derived_seed` makes many of
            one).
        grammar: what the answer must be, for instance `Grammar.json_schema({"type": "object"})`.
            Where the picked arm follows none, the next best that does answers.

        The other names mean what they mean in transformers' `generate`.

        Raises DraftpickError for an empty or too long prompt and for an unknown arm.
        """
        if isinstance(stop, str):
            stop = (stop,)
        request = Request(
            max_new_tokens=max_new_tokens,
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
            stop=tuple(stop),
            seed=seed,
            grammar=grammar,
        )
        return self.respond(
            prompt_or_messages,
            request,
            AskOptions(arm, dynamic, reuse, streamer, request_id, group),
        )

    def respond(
        self,
        prompt_or_messages: str | Sequence[Message],
        request: Request,
        options: AskOptions = DEFAULTS,
    ) -> RoutedResult:
        """Answer a request whose record and options are made already."""
        messages = as_messages(prompt_or_messages)
        prompt_ids = self.engine.encode_chat(messages)
        return self.answer(prompt_ids, request, options, text=query_text(messages))

    def seeded(self, request: Request) -> Request:
        """The request with a seed, where its tokens are drawn here and it has none."""
        return request if isinstance(self.engine, Elsewhere) else seeded(request)

    def answer(
        self,
        prompt_ids: list[int],
        request: Request,
        options: AskOptions = DEFAULTS,
        *,
        text: str | None = None,
        chosen: Callable[[RouteDecision], None] | None = None,
    ) -> RoutedResult:
        """Answer a prompt that is token ids already.

        text: what an embedder other than the target's own reads of it, as
            `collect.embedders.query_text` gives it.
        chosen: called with the answering arm before its first token; again if that one is down.
        """
        if options.arm is not None and options.arm not in self.engine.arm_names:
            raise NoSuchName("arm", options.arm, self.engine.arm_names)
        if options.arm is None and self.policy is None:
            raise DraftpickError("there is no policy to pick an arm; load one or name an arm")
        self.engine.check(prompt_ids, request)
        request = self.seeded(request)

        decision, prefilled = self._decide(prompt_ids, request, options, text)
        first, down, failed_s = decision, self._down(decision, prompt_ids, request), 0.0
        try:
            while True:
                if down and self.policy is not None:
                    decision = redirected(decision, self.policy, down)
                if chosen is not None:
                    chosen(decision)
                try:
                    result = self.engine.decode(
                        decision.arm,
                        list(prompt_ids),
                        request,
                        prefilled=prefilled,
                        streamer=options.streamer,
                    )
                    break
                except ArmDown as error:
                    if decision.kept:
                        decision, prefilled = self._decide(
                            prompt_ids, request, options, text, False
                        )
                        first, down = decision, self._down(decision, prompt_ids, request)
                    elif decision.x is None:
                        raise
                    else:
                        down[decision.arm] = error
                        failed_s += _told(error)
        except BaseException as error:
            failure = failure_of(error)
            if self._recorder is not None:
                self._recorder.write(decision, request, options, failure, text)
            self._learn(decision, failure)
            raise
        if failed_s:
            result = replace(result, load_s=failed_s + (result.load_s or 0.0))
        outcome = outcome_of(result, decision.embed_s + decision.policy_s)
        if self._recorder is not None:
            self._recorder.write(decision, request, options, outcome, text, result.text)
        self._learn(decision, outcome)
        how = decision.arm, decision.propensity, list(decision.scores.values())
        took = decision.embed_s, decision.policy_s
        return RoutedResult(result, *how, *took, passed_over(first, decision.arm, down))

    def _context(self, prompt_ids: Sequence[int], request: Request, running: int) -> RequestContext:
        """What features are of. Other requests that are decoded count where most are: here, or at
        the busiest server, by its metrics."""
        if isinstance(self.engine, Elsewhere):
            running = max(running, self.engine.requests_under_way)
        temperature = request.sampling.temperature
        return RequestContext(prompt_ids, request.max_new_tokens, temperature, running)

    def _kept(self, prompt_ids: Sequence[int]) -> str | None:
        """The arm that a conversation stays with, where that is one that may answer unchosen and
        not known to be down."""
        if not isinstance(self.engine, Elsewhere):
            return None
        arm = self.engine.kept(prompt_ids)
        assert self.policy is not None
        return arm if arm in unchosen(self.policy) and arm not in self.engine.asleep else None

    def _decide(
        self,
        prompt_ids: list[int],
        request: Request,
        options: AskOptions,
        text: str | None,
        keeps: bool = True,
    ) -> tuple[RouteDecision, Prefilled]:
        """Let the target read the prompt, and the policy choose, unless an arm is named, or with
        `keeps` has read the conversation already."""
        context = self._context(prompt_ids, request, options.running)
        kept = self._kept(prompt_ids) if keeps and options.arm is None else None
        arm, dynamic = options.arm or kept, options.dynamic
        embedding, embed_s = None, 0.0  # [d]
        if arm is None and self.embedder is not None:
            if text is None:
                raise DraftpickError(
                    f"the policy reads embeddings of {self.embedder.name}, which token ids do not "
                    "give; pass the query's text too"
                )
            start = time.perf_counter()
            embedding = self.embedder.embed([text])[0]
            embed_s = time.perf_counter() - start
        watch = options.streamer.put_read if isinstance(options.streamer, ReadStreamer) else None
        prefilled = self.engine.prefill(list(prompt_ids), options.reuse, request.user, watch)
        context = replace(context, cached=prefilled.cached)
        if arm is not None:
            return RouteDecision(arm, context, kept=kept is not None), prefilled
        assert self.policy is not None
        start = time.perf_counter()
        if embedding is None:
            embedding = prefilled.embedding.detach().float().cpu().numpy()
            embed_s = time.perf_counter() - start
            start = time.perf_counter()
        if not np.isfinite(embedding).all():
            raise NotANumber("the embedding of the prompt")
        rng = draw_of(request.seed, list(prompt_ids)) if dynamic else None
        if self._learning is not None:  # draws of its own, or one seed would draw one arm for ever
            own = None if request.seed is None else derived_seed(request.seed, next(self._draws))
            dynamic, rng = True, np.random.default_rng(own)
        x = self._input(embedding, context)
        made = self.policy.choose(x, rng)
        decision = RouteDecision(
            made.arm,
            context,
            made.propensity,
            dict(zip(self.policy.arms, made.scores, strict=True)) if made.scores else {},
            made.probabilities,
            dynamic,
            x=x,
            embedding=embedding,
            policy=self._version,
            embed_s=embed_s,
            policy_s=time.perf_counter() - start,
        )
        return decision, prefilled

    def _down(
        self, decision: RouteDecision, prompt_ids: list[int], request: Request
    ) -> dict[str, ArmDown]:
        """Why each of the policy's arms cannot be had; empty where no policy was asked."""
        if decision.x is None or self.policy is None:
            return {}
        arms, asleep = self.policy.arms, self.engine.asleep
        down = {name: asleep[name] for name in arms if name in asleep}
        down |= unfit(self.engine, arms, request)
        left = [name for name in arms if name not in down]
        return down | arms_past_context(self.engine, left, prompt_ids, request)

    def _learn(self, decision: RouteDecision, outcome: Result) -> None:
        if self._learning is not None and decision.x is not None:
            self._learning.learn(decision.x, decision.arm, outcome, decision.propensity)

    def _input(self, embedding: np.ndarray, context: RequestContext) -> np.ndarray:
        """[d + f], what the policy reads: the embedding, then its features of the request; these
        alone where it does not look at the query."""
        assert self.policy is not None
        names = self.policy.origin.features
        if not names:
            return embedding
        features = feature_vector(names, context)
        if self.policy.embedder == ANY:
            return features
        return np.concatenate([embedding, features])


def _version(policy: Policy | None) -> str | None:
    """Name a policy as logs do: by a fingerprint, or the name of a kind that cannot be stored."""
    return None if policy is None else getattr(policy, "fingerprint", None) or policy.name


def _told(error: ArmDown) -> float:
    """Seconds that an attempt to load an arm took, which is reported on standard error; 0 for a
    server that does not answer."""
    from decoders.models.drafter_memory import LoadFailed

    if not isinstance(error, LoadFailed):
        return 0.0
    print(
        f"the arm {error.arm!r} cannot be loaded, and the next best answers ({error}); it is tried "
        f"again in {error.pause_s:.0f} s",
        file=sys.stderr,
    )
    return error.load_s
