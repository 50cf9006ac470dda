"""The audit: ask both servers, compare, ask again where they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
import numpy as np
from scipy.stats import beta, binom

from decoders.common.errors import DraftpickError, UpstreamRefused
from decoders.common.wording import in_words
from decoders.endpoints.recipe import EndpointRecipe
from decoders.endpoints.stream import Refused
from router.engines.server import whole_answer

from .answers import Said, broken, said_in
from .greedy import (
    FAULT,
    ROUNDED,
    SAME,
    TIE,
    UNKNOWN,
    Parting,
    gaps_moved,
    parting,
    rounding,
    tie_of,
)
from .requests import CHAT, TOP, AuditOptions, AuditRequest
from .sampled import LEVEL, Seeded, TwoSample, of_one_kind, same_seeds, two_sample

TWICE = 40  # requests that the server without drafts is asked twice, to see how it rounds
PROMPTS = 8  # questions with sampled answers
AGAIN = 3  # times that a request is asked again without drafts where the answers part
UNSTABLE = "unstable"  # the server without drafts does not repeat its own answer
CONFIDENCE = 0.95

OnDone = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Compared:
    """One greedy request. verdict: SAME, TIE, FAULT, UNKNOWN or UNSTABLE.
    broken: whether the answer with drafts is no whole call or JSON, and the one without is.
    """

    request: AuditRequest
    plain: Said
    drafted: Said
    parting: Parting
    verdict: str
    broken: bool

    @property
    def judged(self) -> bool:
        """Whether both servers said how likely each token was."""
        return bool(self.plain.places and self.drafted.places)


@dataclass(frozen=True, eq=False)
class Audit:
    """tie: nats up to which a gap counts as a tie.
    moved: [n] by how much rounding moved log-probabilities where answers agree; empty where a
        server gives none.
    sampled: None where none were asked for, or `seeded` are.
    refused: kind -> why the server does not take such requests.
    seeded: sampled answers where both servers are this project's.
    """

    compared: list[Compared]
    tie: float
    moved: np.ndarray
    sampled: TwoSample | None
    refused: dict[str, str] = field(default_factory=dict)
    seeded: Seeded | None = None

    def of(self, verdict: str) -> list[Compared]:
        return [each for each in self.compared if each.verdict == verdict]

    @property
    def shifted(self) -> bool:
        """Whether log-probabilities differ by more than rounding where the answers agree."""
        return _shifted(self.moved)

    @property
    def spoilt(self) -> list[Compared]:
        """Broken calls and JSON that are no matter of a tie."""
        return [each for each in self.compared if each.broken and each.verdict in (FAULT, UNKNOWN)]

    @property
    def unclear(self) -> bool:
        """Whether answers without log-probabilities part more often than ties would have them: at
        LEVEL, the rate of ties being at most what it may be by the answers that have them. Where
        none has, any that parts."""
        silent = [each for each in self.compared if not each.judged]
        judged, ties = len(self.compared) - len(silent), len(self.of(TIE))
        parted = len(self.of(UNKNOWN))
        if not judged or not parted:
            return bool(parted)
        most = float(beta.ppf(CONFIDENCE, ties + 1, judged - ties)) if ties < judged else 1.0
        return float(binom.sf(parted - 1, len(silent), most)) < LEVEL

    @property
    def parted(self) -> bool:
        """Whether drafting changes answers beyond ties."""
        sampled = any(each is not None and each.parted for each in (self.sampled, self.seeded))
        return bool(self.of(FAULT) or self.spoilt) or self.unclear or sampled or self.shifted

    @property
    def whole(self) -> int:
        """Answers that were compared to their end, or to a fault."""
        return len(self.of(SAME)) + len(self.of(FAULT))

    @property
    def rarest(self) -> float:
        """The least share of answers that a fault changes for which one would have been among the
        `whole` at CONFIDENCE."""
        return float(1 - (1 - CONFIDENCE) ** (1 / self.whole)) if self.whole else 1.0


def audit(
    connections: httpx.Client,
    plain: EndpointRecipe,
    drafted: EndpointRecipe,
    requests: Sequence[AuditRequest],
    options: AuditOptions,
    on_done: OnDone = lambda done, total, more: None,
) -> Audit:
    """options: without `draws` nothing is sampled.

    Raises DraftpickError where a server does not answer, refuses questions, or gives no
    log-probabilities though they are wanted."""
    with ThreadPoolExecutor(options.at_once) as pool:
        asker = _Asker(connections, plain, drafted, options, pool)
        taken, refused = asker.taken(requests)
        both = [(server, each) for each in taken for server in (plain, drafted)]
        step = -(-len(taken) // TWICE)
        both += [(plain, each) for each in taken[::step]]
        done = []
        for number, said in enumerate(pool.map(lambda one: asker.greedy(*one), both), 1):
            done.append(said)
            on_done(number, len(both), "")
        answers, repeated = done[: 2 * len(taken)], done[2 * len(taken) :]
        pairs = list(zip(answers[::2], answers[1::2], strict=True))
        if not options.texts:
            _require_places(plain, [one for one, _ in pairs], 2)
            _require_places(drafted, [other for _, other in pairs], 1)
        moved = rounding(pairs)
        twice = list(zip(answers[:: 2 * step], repeated, strict=True))
        tie = tie_of(gaps_moved(twice), gaps_moved(pairs))
        compared = []
        for request, (one, other) in zip(taken, pairs, strict=True):
            found = parting(one, other, tie)
            verdict = found.verdict
            if verdict in (FAULT, UNKNOWN):
                again = list(pool.map(asker.greedy, [plain] * AGAIN, [request] * AGAIN))
                if any(_unstable(one, each, found) for each in again):
                    verdict = UNSTABLE
            bad = broken(other, request.body) and not broken(one, request.body)
            compared.append(Compared(request, one, other, found, verdict, bad))
        sampled = seeded = None
        if options.draws >= 2:
            chats = [each for each in taken if each.kind == CHAT]
            chosen = chats[:: max(1, len(chats) // PROMPTS)][:PROMPTS]
            if of_one_kind(pairs):
                seeded = asker.to_same_seeds(chosen)
            else:
                sampled = asker.sampled(chosen)
        if sampled is not None and _shifted(moved):
            # numbers that are wrong say nothing of how tokens are drawn
            sampled = replace(sampled, p_logprobs=None, p_likeliest=None)
    return Audit(compared, tie, moved, sampled, refused, seeded)


def _shifted(moved: np.ndarray) -> bool:
    return bool(len(moved)) and float(np.median(moved)) > ROUNDED


def _unstable(first: Said, again: Said, found: Parting) -> bool:
    """Whether the server's own answers part where the drafted one does, or before."""
    repeated = parting(first, again, 0.0)
    return repeated.verdict != SAME and repeated.at <= found.at


def _require_places(server: EndpointRecipe, answers: Sequence[Said], least: int) -> None:
    """least: tokens whose log-probabilities it gives at some place."""
    if not any(len(place.top) >= least for said in answers for place in said.places):
        raise DraftpickError(
            f"{server.name} gives no log-probabilities with its answers (`logprobs` and "
            "`top_logprobs`), so that ties cannot be told from faults; start it so that it does, "
            "or compare texts alone with --texts"
        )


@dataclass(frozen=True)
class _Asker:
    connections: httpx.Client
    plain: EndpointRecipe
    drafted: EndpointRecipe
    options: AuditOptions
    pool: ThreadPoolExecutor

    def taken(self, requests: Sequence[AuditRequest]) -> tuple[list[AuditRequest], dict[str, str]]:
        """Without the kinds that a server refuses; questions must be taken, and what fails with
        drafts alone is no refusal."""
        refused: dict[str, str] = {}
        for kind in dict.fromkeys(each.kind for each in requests):
            first = next(each for each in requests if each.kind == kind)
            for server in (self.plain, self.drafted):
                try:
                    self.greedy(server, first)
                except UpstreamRefused:
                    raise
                except DraftpickError as error:
                    fails = server is self.drafted and not isinstance(error, Refused)
                    if kind == CHAT or fails:
                        raise
                    refused[kind] = in_words(error)
                    break
        return [each for each in requests if each.kind not in refused], refused

    def sampled(self, chosen: Sequence[AuditRequest]) -> TwoSample:
        """Answers of both servers, in turns, to each request."""
        servers = [self.plain, self.drafted] * self.options.draws
        asked = [(server, each) for each in chosen for server in servers]
        said = list(self.pool.map(lambda one: self.drawn(*one), asked))
        plain, drafted = (
            [said[at + first : at + len(servers) : 2] for at in range(0, len(said), len(servers))]
            for first in (0, 1)
        )
        return two_sample(plain, drafted, self.options.seed)

    def to_same_seeds(self, chosen: Sequence[AuditRequest]) -> Seeded:
        asked = [(each, number) for each in chosen for number in range(self.options.draws)]
        ask = partial(self.drawn, self.plain), partial(self.drawn, self.drafted)
        how = self.options.temperature, self.options.seed
        return same_seeds(*ask, asked, *how, self.pool.map)

    def greedy(self, server: EndpointRecipe, request: AuditRequest) -> Said:
        return self._ask(server, request, self.options.max_new_tokens, 0.0)

    def drawn(self, server: EndpointRecipe, request: AuditRequest, seed: int | None = None) -> Said:
        """A short one: where distributions differ, beginnings do."""
        most = min(24, self.options.max_new_tokens)
        return self._ask(server, request, most, self.options.temperature, seed)

    def _ask(
        self,
        server: EndpointRecipe,
        request: AuditRequest,
        most: int,
        temperature: float,
        seed: int | None = None,
    ) -> Said:
        body: dict[str, Any] = {
            **request.body,
            server.limit_field: most,
            "temperature": temperature,
        }
        if seed is not None:
            body["seed"] = seed
        if not self.options.texts:
            body |= {"logprobs": True, "top_logprobs": TOP}
        return said_in(whole_answer(self.connections, server, body), server.name)
