"""How often bounds and decisions are wrong on made-up tables whose truth is known.

    python benchmarks/error_rates.py bounds
    python benchmarks/error_rates.py decisions --tables 2000
    python benchmarks/error_rates.py decisions --only guard
    python benchmarks/error_rates.py audit --tables 2000

`bounds`: the share of samples whose lower bound is above a true mean of 0 (at most 5%), and the
share where it is above 0 at a true mean of 0.3 standard deviations (the power), for the bound in
use and for two others. `decisions`: how often guard, promotion and risk control decide wrongly
where nothing is gained, or a little more is lost than is allowed. `audit`: how often sampled
answers of one law are taken for two, and two for two. No clock is read.
"""

from __future__ import annotations

import argparse
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from decoders.common.terminal import tables
from policies import PolicyError, RewardTable, fixed_policy
from policies.evaluation import bootstrap, bounds
from policies.evaluation.bounds import gain_of, resamples
from policies.evaluation.units import independent
from policies.records import Float64
from policies.risk_control.fitting import fit_risk_control
from policies.selection.guard import guarded
from policies.selection.promotion import compare_on
from router.engines.audit import sampled
from router.engines.audit.answers import Place, Said
from router.engines.audit.sampled import TwoSample, two_sample

Draw = Callable[[np.random.Generator, int], Float64]
SIZES = (20, 50, 100, 300, 1000)
LOOKS = 5
MAX_LOSS, TRUE_LOSS = 0.1, 0.105

SHAPES: dict[str, Draw] = {  # of mean 0
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed to gains": lambda rng, n: rng.lognormal(size=n) - math.exp(0.5),
    "skewed to losses": lambda rng, n: math.exp(0.5) - rng.lognormal(size=n),
    "losses in 10%": lambda rng, n: _rare(rng, n, 0.1),
    "losses in 5%": lambda rng, n: _rare(rng, n, 0.05),
    "losses in 2%": lambda rng, n: _rare(rng, n, 0.02),
    "90% ties": lambda rng, n: np.where(rng.random(n) < 0.9, 0.0, rng.normal(size=n)),
}
BOUNDS: dict[str, Callable[[Float64], float]] = {
    "in use": lambda drawn: _in_use(drawn),
    "t, bootstrap": lambda drawn: _plain(drawn),
    "Bernstein": lambda drawn: _bernstein(drawn),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("bounds", "decisions", "audit"))
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--only", choices=DECISIONS, help="one of the decisions")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bounds.resample = lru_cache(maxsize=64)(bootstrap.resample)  # the same for every table
    if given.what == "bounds":
        heads, rows = bounds_table(given.tables, given.seed)
    elif given.what == "audit":
        sampled.PERMUTATIONS = 999  # a test by permutation has its level with any number of them
        heads, rows = audit_table(given.tables, given.seed)
    else:
        names = [given.only] if given.only else list(DECISIONS)
        heads, rows = decisions_table(given.tables, given.seed, names)
    console = Console()
    for table in tables(f"{given.tables} tables each", heads, rows, console.width):
        console.print(table)


def bounds_table(many: int, seed: int) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name in SHAPES:
        for n in SIZES:
            found = bound_errors(name, n, many, seed)
            rows.append([name, str(n), *(f"{e:.1%} / {p:.0%}" for e, p in found.values())])
    return ["shape", "n", *BOUNDS], rows


def bound_errors(
    shape: str, n: int, many: int, seed: int = 0, names: Sequence[str] = tuple(BOUNDS)
) -> dict[str, tuple[float, float]]:
    """Bound -> (share of errors, power)."""
    rng, found = np.random.default_rng(seed), {name: [0, 0] for name in names}
    spread = float(SHAPES[shape](np.random.default_rng(99), 200_000).std())
    for _ in range(many):
        drawn = SHAPES[shape](rng, n)
        for name in names:
            low = BOUNDS[name](drawn)
            found[name][0] += low > 0
            found[name][1] += low + 0.3 * spread > 0  # a bound moves with its sample
    return {name: (wrong / many, right / many) for name, (wrong, right) in found.items()}


def decisions_table(
    many: int, seed: int, names: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    rows = []
    for what in names:
        cells = []
        for kind, (each, shared, heavy) in KINDS.items():
            drawn = track(range(many), f"{what}, {kind}", console=Console(stderr=True))
            errors = sum(DECISIONS[what](seed + i, each, shared, heavy) for i in drawn)
            cells.append(f"{errors / many:.1%}")
        rows.append([what, *cells])
    return ["wrong decisions, at most 5%", *KINDS], rows


UNEVEN = 0  # 1 to 6 queries a source
KINDS = {  # queries a source, the share of the variance that a source has in common, heavy tails
    "independent": (1, 0.0, False),
    "3 a source": (3, 0.5, False),
    "5 a source": (5, 0.8, False),
    "1 to 6 a source": (UNEVEN, 0.7, False),
    "heavy tails": (1, 0.0, True),
}


def guard_errs(seed: int, each: int, shared: float, heavy: bool) -> bool:
    """A policy is saved on 300 queries that neither the embedding nor the feature says anything
    of."""
    table = noise(seed, 300, each, shared, heavy)
    return guarded(table, seed=0, policy="knn").saved != "best-fixed"


def promotion_errs(seed: int, each: int, shared: float, heavy: bool) -> bool:
    """A version that is no better is promoted at one of five looks at a collection that grows to
    500 queries."""
    table = noise(seed, 500, each, shared, heavy)
    small, plain = (fixed_policy(table.arms, arm) for arm in table.arms[1:])
    for look in range(1, LOOKS + 1):
        so_far = table.rows(range(len(table) * look // LOOKS))
        try:
            if compare_on(small, so_far, plain, look=look).passed:
                return True
        except PolicyError:  # too few sources so far, which is no look
            continue
    return False


def risk_errs(seed: int, each: int, shared: float, heavy: bool) -> bool:
    """An arm that loses a little more than is allowed is taken, by 300 calibration queries; with
    heavy tails whole answers are lost, seldom."""
    rng, source = np.random.default_rng(seed), sources(seed, 600, each)
    lost = correlated(rng, source, shared)
    worst = 1.0 if heavy else 0.5
    losses = np.where(lost > _normal_quantile(1 - TRUE_LOSS / worst), worst, 0.0)
    rewards = np.stack([np.ones(len(lost)), np.full(len(lost), 2.0)], axis=1)
    table = _table(rng, rewards + rng.normal(size=rewards.shape) / 10, source, ["plain", "lossy"])
    table = replace(
        table,
        features=np.zeros((len(table), 1), dtype=np.float32),
        feature_names=("temperature",),
        losses=np.stack([np.zeros(len(lost)), losses], axis=1),
    )
    policy = fit_risk_control(
        table, None, seed, lossless=["plain"], max_loss=MAX_LOSS, model="mean"
    ).policy
    return policy.guarantee.threshold is not None  # type: ignore[attr-defined, no-any-return]


DECISIONS: dict[str, Callable[[int, int, float, bool], bool]] = {
    "guard": guard_errs,
    "promote, 5 looks": promotion_errs,
    "risk control": risk_errs,
}
NORMAL = np.random.default_rng(7).normal(size=1_000_000)


@lru_cache
def _normal_quantile(level: float) -> float:
    return float(np.quantile(NORMAL, level))


def noise(seed: int, n: int, each: int, shared: float, heavy: bool) -> RewardTable:
    """Three arms of equal worth."""
    rng, source = np.random.default_rng(seed), sources(seed, n, each)
    rewards = np.stack([correlated(rng, source, shared) for _ in range(3)], axis=1)
    if heavy:
        rewards = -np.exp(rewards)
    table = _table(rng, rewards, source, ["plain", "small", "copy"])
    temperature = rng.choice([0.0, 0.7, 1.0], size=(len(table), 1)).astype(np.float32)
    return replace(table, features=temperature, feature_names=("temperature",))


def sources(seed: int, n: int, each: int) -> NDArray[np.intp]:
    """[n, or the next multiple of `each` below] the source of each query."""
    if each != UNEVEN:
        return np.repeat(np.arange(n // each), each)
    return np.repeat(np.arange(n), np.random.default_rng(seed).integers(1, 7, n))[:n]


def correlated(rng: np.random.Generator, source: NDArray[np.intp], shared: float) -> Float64:
    """[n] normal numbers, of whose variance a source has the share in common."""
    alike = rng.normal(size=source[-1] + 1)[source]
    return np.asarray(
        math.sqrt(shared) * alike + math.sqrt(1 - shared) * rng.normal(size=len(source))
    )


def _table(
    rng: np.random.Generator, rewards: Float64, source: NDArray[np.intp], arms: list[str]
) -> RewardTable:
    """Embeddings are alike within a source, as of queries about one text."""
    n = len(rewards)
    x = rng.normal(size=(source[-1] + 1, 4))[source] + 0.1 * rng.normal(size=(n, 4))
    return RewardTable(
        query_ids=[str(i) for i in range(n)],
        tasks=["made up"] * n,
        embeddings=x.astype(np.float32),
        arms=arms,
        rewards=rewards,
        reward_name="made up",
        embedder="made up",
        arms_fingerprint="",
        groups=[f"source {i}" for i in source],
        queries=[str(i) for i in range(n)],
    )


@dataclass(frozen=True)
class Law:
    """How the two servers of an audit draw.

    ends: least and most nats by which the end of an answer is less likely than other tokens, by
        prompt.
    top_p: of both servers' filter, which their log-probabilities know nothing of.
    more: points by which the server with drafts takes the likeliest token more often.
    """

    ends: tuple[float, float] = (99.0, 99.0)
    top_p: float = 1.0
    more: float = 0.0


AUDITS = {
    "no ends": Law(),
    "43% end": Law((1.6, 1.6)),
    "78% end": Law((0.1, 0.1)),
    "top-p 0.98": Law(top_p=0.98),
    "top-p 0.95": Law(top_p=0.95),
    "prompts unlike": Law((0.0, 6.0), top_p=0.95),
    "3 points more": Law(more=0.03),
    "6 points more": Law(more=0.06),
}
AUDITED = {"prompts": 8, "draws": 12, "tokens": 24, "words": 12}
LEVELS = 0.01 / 3  # of each of the audit's tests


def audit_table(many: int, seed: int) -> tuple[list[str], list[list[str]]]:
    rows = []
    for kind in AUDITS:
        drawn = track(range(many), f"audit, {kind}", console=Console(stderr=True))
        found = [audit_of(kind, seed + i) for i in drawn]
        tests = [[one.p_texts for one in found], [one.p_logprobs for one in found]]
        tests.append([one.p_likeliest for one in found])
        shares = [np.mean([p is not None and p <= LEVELS for p in each]) for each in tests]
        parted = np.mean([one.parted for one in found])
        rows.append([kind, *(f"{share:.2%}" for share in (*shares, parted))])
    return ["told apart", "texts", "log-probabilities", "likeliest", "any"], rows


def audit_of(kind: str, seed: int) -> TwoSample:
    law, rng = AUDITS[kind], np.random.default_rng(seed)
    ends = np.linspace(*law.ends, AUDITED["prompts"])
    worlds = [2 * rng.normal(size=(AUDITED["words"],) * 2) for _ in ends]
    asked = list(zip(worlds, ends, strict=True))
    plain = [_answers(rng, world, end, law, 0.0) for world, end in asked]
    drafted = [_answers(rng, world, end, law, law.more) for world, end in asked]
    return two_sample(plain, drafted, seed)


def _answers(
    rng: np.random.Generator, world: Float64, end: float, law: Law, more: float
) -> list[Said]:
    """Answers to a prompt of a model whose word 0 ends them and is not spelled. world: [V, V] its
    logits after each word."""
    logits = world - np.where(np.arange(len(world)) == 0, end, 0.0)
    nats = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    chances = np.stack([_filtered(row, law.top_p) for row in np.exp(nats)])
    best = nats.argmax(axis=1)
    rows = np.arange(len(best))
    likeliest = np.minimum(chances[rows, best] + more, 1.0)
    chances *= ((1 - likeliest) / np.maximum(1 - chances[rows, best], 1e-12))[:, None]
    chances[rows, best] = likeliest
    sums = chances.cumsum(axis=1)
    tops = [{str(w): float(row[w]) for w in np.argsort(-row)[:5]} for row in nats]
    known = [
        [Place(str(w), float(nat), {**top, str(w): float(nat)}) for w, nat in enumerate(row)]
        for row, top in zip(nats, tops, strict=True)
    ]
    starts, made = [row[:-1].tolist() for row in sums], []
    for numbers in rng.random((AUDITED["draws"], AUDITED["tokens"])).tolist():
        at, places = 1, []
        for number in numbers:
            word = bisect_left(starts[at], number)
            if word == 0:
                break
            places.append(known[at][word])
            at = word
        made.append(Said(" ".join(place.token for place in places), (), tuple(places), "stop"))
    return made


def _filtered(chances: Float64, top_p: float) -> Float64:
    order = np.argsort(-chances)
    before = chances[order].cumsum() - chances[order]
    kept = np.zeros_like(chances)
    kept[order] = np.where(before < top_p, chances[order], 0.0)
    return np.asarray(kept / kept.sum())


def _rare(rng: np.random.Generator, n: int, share: float) -> Float64:
    """A loss of 1 in `share` of the queries, as much in all as the others gain."""
    return np.where(rng.random(n) < share, -1.0, share / (1 - share)) + rng.normal(size=n) / 1000


def _in_use(drawn: Float64) -> float:
    units = independent(len(drawn))
    return gain_of(drawn, units, resamples(units, 0)).low


def _plain(drawn: Float64) -> float:
    from scipy.stats import t

    n = len(drawn)
    counts = bounds.resample(n, 0)
    margin = float(t.ppf(0.95, n - 1)) * float(drawn.std(ddof=1)) / math.sqrt(n)
    return min(float(drawn.mean()) - margin, float(np.quantile(counts @ drawn / n, 0.05)))


def _bernstein(drawn: Float64) -> float:
    """Maurer and Pontil 2009, theorem 4, with the range that was seen for the one that is known."""
    n, log = len(drawn), math.log(2 / 0.05)
    seen = float(np.ptp(drawn))
    margin = math.sqrt(2 * float(drawn.var(ddof=1)) * log / n) + 7 * seen * log / (3 * (n - 1))
    return float(drawn.mean()) - margin


if __name__ == "__main__":
    main()
