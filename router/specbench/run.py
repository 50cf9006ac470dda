"""The run: every question through every method, in random order, one after the other."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collect.queries import Query
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.machine import look, others
from decoders.common.seeds import derived_seed
from decoders.common.wording import in_words
from decoders.records import Request

from ..records import AskOptions
from ..routing.messages import Message
from ..routing.router import Router
from .candidates import Candidate
from .journal import Journal
from .records import BASELINE, ORACLE, ROUTED, Answer, Row, Turn

WARMUP_TOKENS = 16
WARMUP_ROUNDS = 2
TRIES = 3  # for a question that other processes disturb
SEEN_S = 0.1  # the system counts in hundredths of a second
WARMUP_PROMPT = "Count from one to twenty, then name the days of the week."


def choose_methods(router: Router, arms: Sequence[str] | None) -> list[str]:
    """The arms to run (all where none is named), the baseline among them, and `routed`.

    `routed` is there when the router has a policy. Raises NoSuchName for an unknown arm.
    """
    known = router.engine.arm_names
    for arm in arms or ():
        if arm not in known:
            raise NoSuchName("arm", arm, known)
    wanted = [name for name in known if not arms or name in arms or name == BASELINE]
    if taken := {ROUTED, ORACLE}.intersection(wanted):
        raise DraftpickError(f"the arm {taken.pop()!r} is named like another row; rename it")
    return [*wanted, ROUTED] if router.policy is not None else wanted


@dataclass(frozen=True)
class Asker:
    """A run's methods and how each question is asked.

    methods: arms, and `routed` where the router has a policy, and candidates.
    seed: of the order of the methods and of the answers.
    candidates: the policies behind those of the methods that are neither arms nor `routed`.
    policy_label: changes with the router's policy.
    """

    router: Router
    methods: Sequence[str]
    request: Request
    seed: int = 0
    candidates: Sequence[Candidate] = ()
    policy_label: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that two parts of one run must share; a resumed run is checked against it. The
        questions are left out, as a run may be resumed with more of them."""
        engine, request = self.router.engine, self.request
        labels = {one.method: one.label for one in self.candidates}
        return ({"candidates": labels} if labels else {}) | {
            "target": engine.target_fingerprint,
            "arms": engine.arms_fingerprint(engine.arm_names),
            "timed_by": engine.timed_by,
            "context": engine.context,
            "methods": list(self.methods),
            "policy": self.policy_label if self.router.policy is not None else None,
            "max_new_tokens": request.max_new_tokens,
            "temperature": request.sampling.temperature,
            "top_k": request.sampling.top_k,
            "top_p": request.sampling.top_p,
            "seed": self.seed,
        }

    def run(
        self, questions: Sequence[Query], journal: Journal, advance: Callable[[], None]
    ) -> list[Row]:
        """Ask what the journal does not hold yet, task by task in turn, and return all its rows.

        For each question the methods run in an order drawn from the seed and the question's id, so
        heat and noise of the machine affect all of them equally. A method that fails gets an error
        in its answer, and the run goes on.

        advance: called after each question.
        """
        done = {row.question_id for row in journal.rows}
        waiting = _in_turn([question for question in questions if question.id not in done])
        if waiting:
            self.warm_up()
        for question in waiting:
            journal.append(self.ask(question))
            advance()
        return journal.rows

    def warm_up(self) -> None:
        """Let every method load and answer a little before the clock counts.

        A failure is left for the rows: a broken arm fails again there, and is recorded.
        """
        short = replace(
            self.request, max_new_tokens=min(self.request.max_new_tokens, WARMUP_TOKENS)
        )
        quiet = replace(
            self,
            router=self.router.unlogged(),
            candidates=[replace(one, router=one.router.unlogged()) for one in self.candidates],
        )
        for _ in range(WARMUP_ROUNDS):
            for method in self.methods:
                with suppress(Exception):
                    quiet._turn([_user(WARMUP_PROMPT)], method, short)

    def ask(self, question: Query) -> Row:
        """One question through every method; once more, up to TRIES times in all, where other
        processes kept cores busy meanwhile. The least disturbed try is kept, whole, as its answers
        are compared with each other."""
        tries: list[Row] = []
        while not tries or (tries[-1].disturbed and len(tries) < TRIES):
            tries.append(self._ask(question))
        return min(tries, key=lambda row: max(one.others or 0.0 for one in row.answers.values()))

    def _ask(self, question: Query) -> Row:
        rng = np.random.default_rng(_entropy(self.seed, question.id))
        order = [self.methods[i] for i in rng.permutation(len(self.methods))]
        # One seed a question: at temperature above 0 every method draws from the same stream.
        request = replace(self.request, seed=int(rng.integers(2**31)))
        answers = {}
        for method in order:
            before = look()
            try:
                answer = self._answer(question, method, request)
            except Exception as error:
                answer = Answer(error=in_words(error))
            after = look()
            if before is not None and after is not None and after.wall - before.wall > SEEN_S:
                answer = replace(answer, others=round(others(before, after), 3))
            answers[method] = answer
        return Row(
            question_id=question.id,
            task=question.task,
            category=question.category,
            reference=question.reference,
            order=order,
            tstamp=time.time(),
            answers={method: answers[method] for method in self.methods},
            group=question.group,
        )

    def _answer(self, question: Query, method: str, request: Request) -> Answer:
        """All turns of a question; each turn sees this method's own earlier answers, and later ones
        have a seed of their own."""
        messages: list[Message] = []
        turns: list[Turn] = []
        for words in question.turns:
            messages.append(_user(words))
            own = request
            if turns and request.seed is not None:
                own = replace(request, seed=derived_seed(request.seed, len(turns)))
            turn = self._turn(messages, method, own, question.id)
            turns.append(turn)
            messages.append({"role": "assistant", "content": turn.result.text.strip()})
        return Answer(tuple(turns))

    def _turn(
        self, messages: list[Message], method: str, request: Request, group: str | None = None
    ) -> Turn:
        """One turn under the stop-watch; fixed arms, `routed` and candidates take the same path.

        group: as in `Router.generate`.
        """
        one = next((one for one in self.candidates if one.method == method), None)
        arm = None if one is not None or method == ROUTED else method
        if one is not None and one.dynamic and request.seed is not None:
            # Each draws for itself, or the seeds of a policy would all draw the same number.
            request = replace(request, seed=derived_seed(request.seed, method))
        asked = self.router if one is None else one.router
        start = time.perf_counter()
        options = AskOptions(arm, dynamic=one is not None and one.dynamic, group=group)
        routed = asked.respond(messages, request, options)
        wall_s = time.perf_counter() - start
        # Spec-Bench takes one off for Llama's beginning-of-sequence token, whatever the tokenizer.
        counted = len(self.router.engine.tokenizer(routed.result.text.strip()).input_ids)
        return Turn(
            replace(routed.result, arm=routed.arm),
            routed.propensity,
            routed.embed_s,
            routed.policy_s,
            wall_s,
            max(counted - 1, 0),
        )


def _in_turn(questions: Sequence[Query]) -> list[Query]:
    """The first of every task, then the second of every task, so that a stopped run is balanced."""
    rank: Counter[str] = Counter()
    ranked = []
    for question in questions:
        ranked.append((rank[question.task], question))
        rank[question.task] += 1
    return [question for _, question in sorted(ranked, key=lambda pair: pair[0])]


def _user(words: str) -> Message:
    return {"role": "user", "content": words}


def _entropy(seed: int, identity: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{identity}".encode()).digest()[:8], "big")
