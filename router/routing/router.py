"""The routed decode: encode, prefill, choose an arm, decode with that arm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collect.embedders import query_text, same_space
from collect.features import RequestContext, feature_vector
from decoders.common import plugins
from decoders.common.errors import ArmDown, Cancelled, DraftpickError, NoSuchName
from decoders.common.seeds import derived_seed
from decoders.options import Arms, EngineOptions
from decoders.records import DecodeResult, Prefilled, Request, Sampling
from decoders.zoo.catalogue import TARGET

from ..logs.record import Result
from ..logs.recorder import Asking, Choice, Recorder, outcome_of
from ..logs.writer import DecisionLog
from ..protocols import RoutingEngine, Sleeping
from . import loading
from .fallback import passed_over, redirected
from .learning import Learning
from .loading import (
    BEST_FIXED,
    DEFAULT_POLICY,
    OWN_POLICY,
    embedder_of,
    for_any_target,
    require_features,
)
from .messages import Message, as_messages
from .results import Chosen, RoutedResult

if TYPE_CHECKING:
    from collect.embedders import Embedder
    from policies import Policy


@dataclass(frozen=True)
class Pick:
    """What was chosen for one prompt, and the prompt as the target has read it.

    scores, embed_s, policy_s: as in RoutedResult.
    """

    choice: Choice
    prefilled: Prefilled
    scores: list[float] = field(default_factory=list)
    embed_s: float = 0.0
    policy_s: float = 0.0


@dataclass
class Attempt:
    """An answer under way.

    choice: the arm that writes it; the one picked, unless that is down.
    down: arms that are, and why.
    failed_s: seconds that loading such arms took.
    """

    pick: Pick
    choice: Choice = field(init=False)
    down: dict[str, ArmDown] = field(default_factory=dict)
    failed_s: float = 0.0

    def __post_init__(self) -> None:
        self.choice = self.pick.choice


class Router:
    """Answers queries, each through the arm that the policy picks for it.

    policy: None where every call names its arm.
    embedder: None for the one that the policy was trained with.
    running: other requests that the machine decodes now, which a policy may read (the feature
        `requests-running`); set by a server of several.
    log: where every decision becomes a line, for `draftpick evaluate`: a DecisionLog, or a folder
        for one that keeps neither embeddings nor text. What goes wrong there never reaches an
        answer.

    Raises policies.PolicyError where the policy was trained for other arms than the engine's, with
    another embedder or on features that are not known here.
    """

    running = 0

    def __init__(
        self,
        engine: RoutingEngine,
        policy: Policy | None,
        embedder: Embedder | None = None,
        log: DecisionLog | str | Path | None = None,
    ) -> None:
        reader = embedder if policy is None else embedder_of(policy, embedder)
        if policy is not None:
            from policies import check_compatible

            require_features(policy)
            known = set(policy.arms) <= set(engine.arm_names)
            fingerprint = engine.arms_fingerprint(policy.arms) if known else None
            if reader is None:
                check_compatible(policy, engine.arm_names, engine.embedder, fingerprint)
            else:  # the same content in another place is the same embedder
                same = same_space(policy.embedder, reader.name)
                space = policy.embedder if same else reader.name
                width = reader.dimension
                check_compatible(policy, engine.arm_names, space, fingerprint, width)
        self.engine = engine
        self.policy = policy
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

    def on(self, engine: RoutingEngine) -> Router:
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

    def learning(
        self, folder: str | Path | None = None, reward: str | None = None, every: int = 20
    ) -> Router:
        """The same router, whose policy learns from every answer, but those whose arm was forced.
        Arms are drawn, `dynamic` or not. What goes wrong while learning never reaches an answer.

        folder, reward, every: as in `Learning`; `save_learned` saves what came since the last time.
        Raises DraftpickError where there is no policy, PolicyError for one that does not learn.
        """
        if self.policy is None:
            raise DraftpickError("there is no policy to learn with; load one")
        other = copy(self)
        other._learning = Learning(self.policy, reward, folder, every)
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
        from policies.learners.exploring import ExploringPolicy

        if self.policy is None:
            raise DraftpickError("there is no policy to explore with; load one")
        if self._learning is not None:
            raise DraftpickError("a router that learns explores by itself; leave --explore out")
        other = copy(self)
        other.policy = ExploringPolicy(self.policy, share, greedy)
        other._recorder = other._make_recorder()
        return other

    @classmethod
    def from_pretrained(
        cls,
        target: str = EngineOptions.target,
        policy: str | Path | Policy | None = None,
        arms: Arms = EngineOptions.arms,
        dtype: str = EngineOptions.dtype,
        device: str = EngineOptions.device,
        backend: str = EngineOptions.backend,
        context: int | None = EngineOptions.context,
        chat_template: str | None = EngineOptions.chat_template,
        embedder: str | Embedder | None = None,
        log: DecisionLog | str | Path | None = None,
        drafter_memory: int | None = EngineOptions.drafter_memory,
    ) -> Router:
        """`from_options`, the engine's options as keywords; see `decoders.EngineOptions` for what
        each means."""
        options = EngineOptions(
            target, arms, dtype, device, backend, context, chat_template, drafter_memory
        )
        return cls.from_options(options, policy, embedder, log)

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
        import policies

        # Before the model: a wrong name should not cost its load. The arms first, as the policy may
        # be of a kind that a plugin named by their file brings.
        plugins.load()
        if options.arms is not None:
            options = replace(options, arms=options.recipes())
        chosen = (
            policies.load(DEFAULT_POLICY if policy is None else policy)
            if policy is None or isinstance(policy, str | Path)
            else policy
        )
        if policy is None and options.arms is None and options.target != TARGET:
            options, chosen = for_any_target(options, chosen)
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
            print(
                f"the policy that ships does not fit: {error}. Every query goes to {BEST_FIXED}, "
                f"the arm that is best on average. To do better, {OWN_POLICY}",
                file=sys.stderr,
            )
            router = cls(engine, policies.fixed_policy(chosen.arms, BEST_FIXED))
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
        streamer: Any = None,
        dynamic: bool = False,
        reuse: bool = False,
        request_id: str | None = None,
        group: str | None = None,
    ) -> RoutedResult:
        """Answer a prompt (a string) or a chat (role and content messages).

        arm: forces an arm, with propensity 1.0.
        dynamic: draw the arm from the policy's distribution instead of taking its best.
        seed: makes the draw and the tokens repeatable; give every call its own
            (`decoders.common.seeds.derived_seed` makes many of one), or all draw the same.
        streamer: a transformers streamer.
        reuse: do not read again what the target still holds of the same beginning, as at the next
            turn of a conversation.
        request_id: of the log's line; None makes one up.
        group: requests that depend on each other, as a conversation's turns, share it in the log.

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
        )
        return self.respond(
            prompt_or_messages,
            request,
            arm=arm,
            streamer=streamer,
            dynamic=dynamic,
            reuse=reuse,
            request_id=request_id,
            group=group,
        )

    def respond(
        self,
        prompt_or_messages: str | Sequence[Message],
        request: Request,
        *,
        arm: str | None = None,
        streamer: Any = None,
        dynamic: bool = False,
        reuse: bool = False,
        request_id: str | None = None,
        group: str | None = None,
    ) -> RoutedResult:
        """As `generate`, for a request that is made already."""
        messages = as_messages(prompt_or_messages)
        return self.answer(
            self.engine.encode_chat(messages),
            request,
            text=query_text(messages),
            arm=arm,
            streamer=streamer,
            dynamic=dynamic,
            reuse=reuse,
            request_id=request_id,
            group=group,
        )

    def answer(
        self,
        prompt_ids: list[int],
        request: Request,
        *,
        text: str | None = None,
        arm: str | None = None,
        streamer: Any = None,
        dynamic: bool = False,
        reuse: bool = False,
        request_id: str | None = None,
        group: str | None = None,
        chosen: Callable[[Chosen], None] | None = None,
    ) -> RoutedResult:
        """As `respond`, for a prompt that is token ids already.

        text: what an embedder other than the target's own reads of it, as
            `collect.embedders.query_text` gives it.
        chosen: called with the answering arm before its first token; again if that one is down.
        """
        if arm is not None and arm not in self.engine.arm_names:
            raise NoSuchName("arm", arm, self.engine.arm_names)
        if arm is None and self.policy is None:
            raise DraftpickError("there is no policy to pick an arm; load one or name an arm")
        self.engine.check(prompt_ids, request)

        pick = self._pick(prompt_ids, request, text, arm, dynamic, reuse)
        asking = Asking(prompt_ids, request, request_id, group, text, self.running)
        attempt = Attempt(pick)
        try:
            result = self._decode(attempt, asking, streamer, chosen)
        except BaseException as error:
            if self._recorder is not None:
                self._recorder.failed(asking, attempt.choice, error)
            if self._learning is not None and _of_the_arm(error):
                self._learn(attempt.choice, Result(error=type(error).__name__))
            raise
        choosing_s = pick.embed_s + pick.policy_s
        if self._recorder is not None:
            self._recorder.answered(asking, attempt.choice, result, choosing_s)
        if self._learning is not None:
            self._learn(attempt.choice, outcome_of(result, choosing_s))
        return RoutedResult(
            result,
            attempt.choice.arm,
            attempt.choice.propensity,
            pick.scores,
            pick.embed_s,
            pick.policy_s,
            self._passed_over(attempt),
        )

    def _pick(
        self,
        prompt_ids: list[int],
        request: Request,
        text: str | None,
        arm: str | None,
        dynamic: bool,
        reuse: bool,
    ) -> Pick:
        """Let the target read the prompt, and the policy choose, unless an arm is named."""
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
        prefilled = self.engine.prefill(prompt_ids, reuse)
        if arm is not None:
            return Pick(Choice(arm), prefilled)
        assert self.policy is not None
        start = time.perf_counter()
        if embedding is None:
            embedding = prefilled.embedding.detach().float().cpu().numpy()
            embed_s = time.perf_counter() - start
            start = time.perf_counter()
        rng = np.random.default_rng(request.seed) if dynamic else None
        if self._learning is not None:  # draws of its own, or one seed would draw one arm for ever
            dynamic, seed = True, request.seed
            own = None if seed is None else derived_seed(seed, next(self._draws))
            rng = np.random.default_rng(own)
        x = self._input(embedding, prompt_ids, request)
        decision = self.policy.choose(x, rng)
        policy_s = time.perf_counter() - start
        drawn_from = getattr(decision, "probabilities", None)
        chances = dict(zip(self.policy.arms, drawn_from, strict=True)) if drawn_from else None
        choice = Choice(decision.arm, decision.propensity, x, embedding, dynamic, chances)
        return Pick(choice, prefilled, list(decision.scores), embed_s, policy_s)

    def _decode(
        self,
        attempt: Attempt,
        asking: Asking,
        streamer: Any,
        chosen: Callable[[Chosen], None] | None,
    ) -> DecodeResult:
        """Answer through the arm picked, or the next best one that is not down."""
        pick = attempt.pick
        routed = self.policy if pick.choice.x is not None else None
        named = dict(zip(routed.arms, pick.scores, strict=True)) if routed and pick.scores else {}
        if routed is not None and isinstance(self.engine, Sleeping):
            asleep = self.engine.asleep
            attempt.down |= {name: asleep[name] for name in routed.arms if name in asleep}
        while True:
            if routed is not None and attempt.down:
                attempt.choice = redirected(attempt.choice, routed, pick.scores, attempt.down)
            arm, propensity = attempt.choice.arm, attempt.choice.propensity
            if chosen is not None:
                drawn = attempt.choice.dynamic
                chosen(Chosen(arm, propensity, named, self.running, drawn))
            try:
                result = self.engine.decode(
                    arm,
                    list(asking.prompt_ids),
                    asking.request,
                    prefilled=pick.prefilled,
                    streamer=streamer,
                )
            except ArmDown as error:
                if routed is None:
                    raise
                attempt.down[arm] = error
                attempt.failed_s += _told(error)
            else:
                if not attempt.failed_s:
                    return result
                return replace(result, load_s=attempt.failed_s + (result.load_s or 0.0))

    def _passed_over(self, attempt: Attempt) -> dict[str, str] | None:
        pick = attempt.pick
        if self.policy is None or pick.choice.x is None:
            return None
        taken = attempt.choice.arm
        return passed_over(pick.choice.arm, taken, self.policy, pick.scores, attempt.down)

    def pick(self, prompt_or_messages: str | Sequence[Message]) -> str:
        """The arm that the policy holds for the best for a query; nothing is decoded. Raises
        DraftpickError where there is no policy."""
        if self.policy is None:
            raise DraftpickError("there is no policy to pick an arm; load one")
        messages, request = as_messages(prompt_or_messages), Request()
        prompt_ids = self.engine.encode_chat(messages)
        if self.embedder is not None:
            embedding = self.embedder.embed([query_text(messages)])[0]
        else:
            embedding = self.engine.prefill(prompt_ids).embedding.detach().float().cpu().numpy()
        arm: str = self.policy.choose(self._input(embedding, prompt_ids, request)).arm
        return arm

    def _learn(self, choice: Choice, outcome: Result) -> None:
        if self._learning is not None and choice.x is not None:
            self._learning.learn(choice.x, choice.arm, outcome, choice.propensity)

    def _input(
        self, embedding: np.ndarray, prompt_ids: Sequence[int], request: Request
    ) -> np.ndarray:
        """[d + f], what the policy reads: the embedding, then its features of the request; these
        alone where it does not look at the query."""
        from policies.records import ANY

        assert self.policy is not None
        names = self.policy.origin.features
        if not names:
            return embedding
        context = RequestContext(
            prompt_ids, request.max_new_tokens, request.sampling.temperature, self.running
        )
        features = feature_vector(names, context)
        if self.policy.embedder == ANY:
            return features
        return np.concatenate([embedding, features])


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


def _of_the_arm(error: BaseException) -> bool:
    """Whether a failure says something of the arm: not that somebody went away, or asked for what
    cannot be."""
    of_others = OSError | DraftpickError | Cancelled
    return isinstance(error, Exception) and not isinstance(error, of_others)
