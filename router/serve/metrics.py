"""The server's metrics: for Prometheus, under vLLM's names where it has one, and for /stats."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from decoders.arms import AUTOREGRESSIVE
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.prefixes import PrefixStore

from ..records import RoutedResult

RECENT_S = 10.0  # window of the current speed
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass
class ArmCounts:
    """Counts of one arm since the start.

    drafts: rounds that drafted; drafted: tokens, along a tree's longest branch.
    accepted: at i, how often the (i + 1)-th drafted token was.
    seconds: of its whole answers, in which they have `tokens`.
    """

    requests: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def verified(self, drafts: int, drafted: int, accepted: Sequence[int]) -> None:
        """accepted: drafted tokens, by their position."""
        self.drafts += drafts
        self.drafted += drafted
        self.accepted = list(map(sum, zip_longest(self.accepted, accepted, fillvalue=0)))

    def to_json(self, requests: int) -> dict[str, Any]:
        """Counts and the rates that follow from them. requests: of all arms."""
        accepted = sum(self.accepted)
        return asdict(self) | {
            "share": self.requests / requests if requests else 0.0,
            "acceptance_rate": accepted / self.drafted if self.drafted else 0.0,
            "mean_acceptance_length": 1 + accepted / self.drafts if self.drafts else 1.0,
            "accepted_per_position": [count / self.drafts for count in self.accepted],
            "tokens_per_s": self.tokens / self.seconds if self.seconds else 0.0,
        }


class Metrics:
    """Counts of one application, used from its event loop alone.

    running, waiting: number of requests at the moment.
    earlier: gives the answers that arms copy from, where any are kept by then.
    prefixes: what is kept of prompts, where anything is.

    PromQL over the last five minutes; add `by (arm)` to a sum to compare arms:

        acceptance rate          sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))
                                 / sum(rate(vllm:spec_decode_num_draft_tokens_total[5m]))
        mean acceptance length,  1 + sum(rate(vllm:spec_decode_num_accepted_tokens_total[5m]))
        bonus token included     / sum(rate(vllm:spec_decode_num_drafts_total[5m]))
        acceptance by position   sum by (position)
                                 (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[5m]))
                                 / ignoring (position) group_left
                                 sum(rate(vllm:spec_decode_num_drafts_total[5m]))
        tokens a second          sum(rate(vllm:generation_tokens_total[5m]))
        prompts' tokens that     rate(vllm:prefix_cache_hits_total[5m])
        were not read            / rate(vllm:prefix_cache_queries_total[5m])
        share of an arm          sum by (arm) (rate(draftpick_requests_total[5m]))
                                 / ignoring (arm) group_left
                                 sum(rate(draftpick_requests_total[5m]))

    Example: two rounds draft 3 tokens each, of which 3 and 1 are accepted. They write 4 + 2 = 6
    tokens: drafts 2, draft tokens 6, accepted 4, so acceptance rate 4 / 6 = 0.67, mean acceptance
    length 1 + 4 / 2 = 3.0, acceptance by position 2 / 2, 1 / 2, 1 / 2.
    """

    def __init__(
        self,
        target: str,
        policy: Callable[[], str | None],
        arms: list[str],
        running: Callable[[], int],
        waiting: Callable[[], int],
        earlier: Callable[[], EarlierAnswers | None] = lambda: None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self._target, self._policy = target, policy
        self._running, self._waiting = running, waiting
        self._started = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()  # when, how many tokens
        self.arms = {name: ArmCounts() for name in arms}
        self.registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(name, words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, words, registry=registry, buckets=buckets)

        self._requests = counter(
            "draftpick_requests", "Answers asked for, by arm and outcome.", "arm", "outcome"
        )
        self._undrafted = counter(
            "draftpick_requests_undrafted", "Answers for which a policy chose not to draft."
        )
        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts read.")
        self._written = counter("vllm:generation_tokens", "Tokens written.")
        self._first_s = histogram(
            "vllm:time_to_first_token_seconds", "From the request to its first token.", SECONDS
        )
        self._token_s = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Of an answer's tokens after the first, on average.",
            TOKEN_SECONDS,
        )
        self._load_s = histogram(
            "draftpick_drafter_load_seconds",
            "That answers waited while drafters were loaded; those that did not are left out.",
            SECONDS,
        )
        for name, words, now in (
            ("vllm:num_requests_running", "Requests being answered.", running),
            ("vllm:num_requests_waiting", "Requests in the queue.", waiting),
        ):
            Gauge(name, words, registry=registry).set_function(now)
        registry.register(Reading(lambda: _of_arms(self.arms)))
        registry.register(Reading(lambda: _of_earlier(earlier())))
        if prefixes is not None:
            registry.register(Reading(lambda: _of_prefixes(prefixes)))

    # -- what happens

    def first_token(self, seconds: float) -> None:
        self._first_s.observe(seconds)

    def round(self, arm: str, tokens: int, accepted: int, drafted: int) -> None:
        self._written.inc(tokens)
        self._recent.append((time.monotonic(), tokens))
        self._forget()
        if drafted:
            self._of(arm).verified(1, drafted, [1] * accepted + [0] * (drafted - accepted))

    def answered(self, arm: str, routed: RoutedResult, first_s: float | None, end_s: float) -> None:
        """first_s, end_s: when the first and the last tokens came, since the request."""
        made, tokens = routed.result, len(routed.result.ids)
        self.ended(arm, made.finish_reason)
        counts = self._of(arm)
        counts.tokens += tokens
        counts.seconds += routed.wall_s
        if made.upstream is not None and made.rounds and made.accepted_per_position:  # its own
            counts.verified(made.rounds, made.drafted, made.accepted_per_position)
        self._prompt.inc(made.tokens_read)
        if made.load_s is not None:
            self._load_s.observe(made.load_s)
        if first_s is not None and tokens > 1:
            self._token_s.observe((end_s - first_s) / (tokens - 1))
        if routed.scores and arm == AUTOREGRESSIVE:
            self._undrafted.inc()

    def ended(self, arm: str, outcome: str) -> None:
        """outcome: why an answer ended, or cancelled, timeout, error or refused. arm: "" where none
        was chosen yet."""
        self._requests.labels(arm, outcome).inc()
        if arm:
            self._of(arm).requests += 1

    def _of(self, arm: str) -> ArmCounts:
        return self.arms.setdefault(arm, ArmCounts())

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] < time.monotonic() - RECENT_S:
            self._recent.popleft()

    # -- what is reported

    def stats(self) -> dict[str, Any]:
        """What `GET /stats` gives, but for the limits."""
        self._forget()
        up_s = time.monotonic() - self._started
        requests = sum(counts.requests for counts in self.arms.values())
        return {
            "target": self._target,
            "policy": self._policy(),
            "uptime_s": up_s,
            "requests_running": self._running(),
            "requests_waiting": self._waiting(),
            "tokens_per_s": sum(count for _, count in self._recent) / min(up_s, RECENT_S),
            "arms": {name: counts.to_json(requests) for name, counts in self.arms.items()},
        }

    def exposition(self) -> tuple[bytes, str]:
        """What `GET /metrics` gives, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class Reading:
    """A collector, whose figures are read when they are asked for."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def _of_arms(arms: Mapping[str, ArmCounts]) -> list[Metric]:
    """What arms have drafted, and what was accepted of it."""

    def family(name: str, words: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"vllm:spec_decode_num_{name}", words, labels=labels)

    drafts = family("drafts", "Drafts verified.", "arm")
    drafted = family("draft_tokens", "Drafted tokens.", "arm")
    accepted = family("accepted_tokens", "Drafted tokens accepted.", "arm")
    by_position = "Drafted tokens accepted, by their position in the draft from 0."
    at = family("accepted_tokens_per_pos", by_position, "arm", "position")
    for arm, counts in arms.items():
        if counts.drafts:
            drafts.add_metric([arm], counts.drafts)
            drafted.add_metric([arm], counts.drafted)
            accepted.add_metric([arm], sum(counts.accepted))
            for position, count in enumerate(counts.accepted):
                at.add_metric([arm, str(position)], count)
    return [drafts, drafted, accepted, at]


def _of_earlier(held: EarlierAnswers | None) -> Iterator[Metric]:
    """What is kept of earlier answers, and how often it had something to draft."""
    if held is None:
        return
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    for kind, name, words, value in (
        (gauge, "answers", "Earlier answers that are kept to draft from.", len(held)),
        (gauge, "tokens", "Tokens of them, with the ends of their prompts.", held.tokens),
        (gauge, "users", "Users of whom an answer is kept, each apart.", held.users),
        (counter, "lookups", "Rounds that looked for a match in earlier answers.", held.asked),
        (counter, "hits", "Those that found one.", held.found),
    ):
        yield kind(f"draftpick_earlier_{name}", words, value=value)


def _of_prefixes(kept: PrefixStore) -> Iterator[Metric]:
    """What is kept of prompts, and how much less was read for it."""
    for name, words, value in (
        ("bytes", "Memory of what is kept of prompts, drafters' included.", kept.bytes),
        ("limit_bytes", "What it may be at most.", kept.limit),
        ("tokens", "Tokens whose keys and values are kept.", kept.tokens),
        ("users", "Users of whom something is kept, each apart.", kept.users),
    ):
        yield GaugeMetricFamily(f"draftpick_prefix_{name}", words, value=value)
    evicted = "Tokens that were let go to make room for others."
    for name, words, value in (
        ("vllm:prefix_cache_queries", "Tokens of prompts that were looked up.", kept.asked),
        ("vllm:prefix_cache_hits", "Those of them that were not read again.", kept.saved),
        ("draftpick_prefix_lookups", "Prompts that were looked up.", kept.lookups),
        ("draftpick_prefix_hits", "Those of which a part was not read again.", kept.hits),
        ("draftpick_prefix_evicted_tokens", evicted, kept.evicted),
    ):
        yield CounterMetricFamily(name, words, value=value)
