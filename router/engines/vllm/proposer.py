"""A proposer of one's own for vLLM (`custom_class`): an arm a request, drafts for every step."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from decoders.common.wording import in_words
from decoders.earlier.votes import Draft

from .answers import Answers, Stretch, log_and_learning
from .choosing import ByPolicy, chooser
from .engine import engine_facts, sampling_fault, target_name
from .kinds import drafter_of
from .options import given
from .rows import RequestRows, TrackedRequest
from .step_costs import StepCosts, slots

SETTLED = 8  # steps without a request after which its line is written
IDLE_S = 10.0  # without a step, after which what is running is taken to have ended
IDLE_STEPS = 20.0  # or this many steps' time, where steps are long


class Proposer:
    """Drafts for vLLM: nothing, a copy or another drafter's tokens, by request and step.

    vllm_config: vLLM's; it has the options (see `options.given`).

    Raises DraftpickError, before the model is loaded, for options that are wrong, a policy that
    reads what a proposer cannot know, and a vLLM that is too old. Once the engine runs it raises
    nothing, and standard error says once that something went wrong: where an arm fails, those
    requests that it drafts for get no drafts until an arm is chosen again; where anything else
    does, no row gets one in this step.
    """

    def __init__(self, vllm_config: Any) -> None:
        options, arms, place = given(vllm_config.additional_config)
        facts = engine_facts(vllm_config)
        fault = sampling_fault(vllm_config)
        if fault is not None:
            print(f"warning: {fault}", file=sys.stderr, flush=True)
        self._costs = StepCosts(options.token_cost)
        self._engine = engine = replace(
            facts, share_answers=options.share_answers, costs=self._costs
        )
        self._drafters = {name: drafter_of(arm, engine) for name, arm in arms.items()}
        self._context_to = {name: getattr(arm, "context_to", None) for name, arm in arms.items()}
        self._chooser = chooser(options, place, arms, engine)
        self._decide_every = options.decide_every
        self._rng = np.random.default_rng(options.seed)
        policy = self._chooser.policy if isinstance(self._chooser, ByPolicy) else None
        log, learning = log_and_learning(options, place, policy)
        embedder = policy.embedder if policy is not None else None
        self._answers = Answers(target_name(vllm_config), arms, embedder, log, learning)
        self._rows = RequestRows(ends=engine.ends)
        self._left = 0.0  # when the engine was last left to itself
        self.failures = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if log is not None or learning is not None:
            atexit.register(self.close)
            threading.Thread(target=self._watch, name="draftpick", daemon=True).start()

    def load_model(self, target: Any) -> None:
        """vLLM hands over its own model, which nothing here reads."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        **others: Any,
    ) -> list[list[int]]:
        """Tokens of each row to verify in the coming step; never more than vLLM was started with.

        sampled_token_ids: by row, the tokens of the last step, none while a prompt is read.
        num_tokens_no_spec: [rows or more] tokens of prompt and answer, those included.
        token_ids_cpu: [rows or more, most tokens].
        """
        with self._lock:
            try:
                return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            except Exception as error:
                self._failed(error)
                return [[] for _ in sampled_token_ids]
            finally:
                self._left = time.monotonic()

    def _propose(
        self, came: Sequence[Sequence[int]], lengths: Any, token_ids: Any
    ) -> list[list[int]]:
        now = time.monotonic()
        before = {request for request in self._rows.known if request.missed == 0}
        found, ended = self._rows.step(came, lengths, token_ids)
        present = [request for request in found if request is not None]
        gone = [request for request in self._rows.known if request.missed == SETTLED]
        for request in (*ended, *gone):
            self._end(request)
        if self._left and all(request in before for request in found):  # none reads its prompt
            tokens = sum(1 + len(request.verified) for request in present)
            self._costs.observe(tokens, now - self._left)
        for request in present:
            self._account(request, now)
        for request in present:
            self._decide(request, len(came), now)
        self._draft(present)
        return [request.draft if request is not None else [] for request in found]

    def _account(self, request: TrackedRequest, now: float) -> None:
        """Book what the last step gave."""
        stretch: Stretch | None = request.stretch
        if stretch is None:
            return
        stretch.add(request, self._engine.ends, now)
        try:
            self._drafters[stretch.arm].learn(request, request.made)
        except Exception as error:
            self._arm_failed(stretch.arm, [request], error)

    def _decide(self, request: TrackedRequest, rows: int, now: float) -> None:
        """Choose an arm where there is none, or where it is time to choose again."""
        stretch: Stretch | None = request.stretch
        if stretch is not None:
            if not self._decide_every or stretch.new_tokens <= self._decide_every:
                return
            self._answers.ended(request)
        choice = self._chooser.choose(request.ids, rows, self._rng)
        request.stretch = Stretch(choice, request.length - 1, now, now)

    def _draft(self, requests: Sequence[TrackedRequest]) -> None:
        """Give each its draft for the coming step."""
        by_arm: dict[str, list[TrackedRequest]] = defaultdict(list)
        for request in requests:
            by_arm[request.stretch.arm].append(request)
        self._costs.rows = len(requests)
        by_cost, fixed = list[TrackedRequest](), list[float]()
        for arm, members in by_arm.items():
            drafter = self._drafters[arm]
            most = [self._most(request, self._context_to[arm]) for request in members]
            try:
                drafts = list(zip(members, drafter.draft(members, most), strict=True))
            except Exception as error:
                self._arm_failed(arm, members, error)
                drafts = [(request, Draft()) for request in members]
            for request, draft in drafts:
                request.made = draft
                request.draft = list(draft.ids)
                if drafter.by_cost:
                    by_cost.append(request)
                else:
                    fixed += [1.0, *draft.chances]
        chances = [request.made.chances for request in by_cost]
        for request, cut in zip(by_cost, slots(chances, self._costs.line, fixed), strict=True):
            del request.draft[cut:]

    def _most(self, request: TrackedRequest, context_to: int | None) -> int:
        """Tokens that a draft may have: the answer's next token needs a position too."""
        most = min(self._engine.most, self._engine.context - request.length - 1)
        if context_to is not None:
            most = min(most, context_to - request.length)
        return max(0, most)

    def _end(self, request: TrackedRequest) -> None:
        if request.stretch is None:
            return
        for arm in self._drafters:
            self._forget(arm, request)
        self._answers.ended(request)

    def _forget(self, arm: str, request: TrackedRequest) -> None:
        try:
            self._drafters[arm].forget(request)
        except Exception as error:
            self._tell(error)

    def _failed(self, error: Exception) -> None:
        """Begin anew with every request. No arm failed: each answer counts as far as it came."""
        self._tell(error)
        known, self._rows = self._rows.known, RequestRows(ends=self._engine.ends)
        for request in known:
            self._end(request)

    def _arm_failed(self, arm: str, requests: Sequence[TrackedRequest], error: Exception) -> None:
        """The arm begins anew with these requests where it is chosen again."""
        self._tell(error)
        for request in requests:
            request.stretch.error = type(error).__name__
            self._forget(arm, request)

    def _tell(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            print(
                f"warning: draftpick's proposer failed ({in_words(error)}); the engine goes on "
                "without these drafts, and further failures are not reported",
                file=sys.stderr,
                flush=True,
            )

    # -- when there are no more steps -------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            with self._lock:
                limit = max(IDLE_S, IDLE_STEPS * self._costs.usual)
                if self._left and time.monotonic() - self._left > limit:
                    self._end_all()

    def close(self) -> None:
        """Log what is under way, and save what was learnt."""
        self._closed.set()
        with self._lock:
            self._end_all()
            self._answers.save()

    def _end_all(self) -> None:
        self._left = 0.0
        for request in self._rows.known:
            self._end(request)
