"""Whether speed or acceptance fell between two collections, two benchmark runs or two checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json
from policies.evaluation.bootstrap import interval, ratio, resampled_sums

from ..tabulated import plain
from .journal import read_rows

FEWEST = 12  # sources, below which nothing is said beyond doubt
DOUBT = 0.05  # chance that anything is said to have fallen where nothing did
FIGURES = {
    "tokens/s": (0, 1), "acceptance": (3, 2), "tokens a pass": (4, 5), "drafted a pass": (2, 5),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One answer, or one window of a check.

    key: what it has in common with the same one elsewhere; None for nothing.
    source: what is independent of others.
    sums: tokens, seconds, drafted, accepted, tokens after the first, passes; nan for what is not
    known.
    """

    arm: str
    key: Hashable
    source: str
    sums: tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class Change:
    """A figure of an arm, after over before. low, high: corrected for all that are compared, so
    that a fall is seen in DOUBT of the comparisons at most where there is none; nan where the
    sources are too few.
    excused: it is lower because drafts have another length, which some arms choose by what passes
    cost. Longer drafts are accepted less, and tokens a pass tell whether they are worse; shorter
    ones of which more is accepted give fewer tokens a pass.
    """

    arm: str
    figure: str
    before: float
    after: float
    low: float
    high: float
    paired: bool
    sources: int
    excused: bool = False

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def fell(self) -> bool:
        return self.high < 1 and not self.excused


def compared(before: Sequence[Measured], after: Sequence[Measured], seed: int = 0) -> list[Change]:
    """Every figure that both know of every arm that both have. Raises DraftpickError for none."""
    figures = list[Callable[[float], Change]]()
    for arm in dict.fromkeys(each.arm for each in before):
        one, two = ([each for each in rows if each.arm == arm] for rows in (before, after))
        shared = ({each.key for each in one} & {each.key for each in two}) - {None}
        paired = len({each.source for each in one if each.key in shared}) >= FEWEST
        if paired:
            one = [each for each in one if each.key in shared]
            source = {each.key: each.source for each in one}
            two = [replace(each, source=source[each.key]) for each in two if each.key in shared]
        for figure, (over, under) in FIGURES.items():
            known = [
                [each for each in rows if np.isfinite([each.sums[over], each.sums[under]]).all()]
                for rows in (one, two)
            ]
            if paired:
                both = {each.key for each in known[0]} & {each.key for each in known[1]}
                known = [[each for each in rows if each.key in both] for rows in known]
            overs, unders = (
                [sum(each.sums[place] for each in rows) for rows in known]
                for place in (over, under)
            )
            if min(unders) > 0 and max(overs) > 0:
                sums = _by_source(known, (over, under), paired)
                figures.append(partial(_change, arm, figure, paired, sums, seed))
    if not figures:
        raise DraftpickError(
            "the two have no arm in common of which both know the speed or the acceptance; "
            "compare what was measured with the same arms"
        )
    return _excused([change(DOUBT / len(figures)) for change in figures])


def _excused(changes: Sequence[Change]) -> list[Change]:
    by = {(each.arm, each.figure): each for each in changes}

    def excused(change: Change) -> bool:
        length = by.get((change.arm, "drafted a pass"))
        if change.high >= 1 or length is None:
            return False
        if change.figure == "acceptance":
            return length.low > 1
        accepted = by.get((change.arm, "acceptance"))
        return change is length or (
            change.figure == "tokens a pass"
            and length.high < 1
            and accepted is not None
            and accepted.low > 1
        )

    return [replace(each, excused=excused(each)) for each in changes]


def _by_source(
    sides: Sequence[Sequence[Measured]], figure: tuple[int, int], paired: bool
) -> list[NDArray[np.float64]]:
    """Sums over and under of both sides, [sources, 2]; the same sources where paired."""
    names = [dict.fromkeys(each.source for each in rows) for rows in sides]
    made = []
    for rows, own in zip(sides, names[:1] * 2 if paired else names, strict=True):
        place = {name: at for at, name in enumerate(own)}
        sums = np.zeros((len(place), 2))
        for each in rows:
            sums[place[each.source]] += [each.sums[at] for at in figure]
        made.append(sums)
    return made


def _change(
    arm: str,
    figure: str,
    paired: bool,
    sums: Sequence[NDArray[np.float64]],
    seed: int,
    level: float,
) -> Change:
    """sums: as of `_by_source`. level: chance that a fall is seen where there is none."""
    shares = [float(each[:, 0].sum() / each[:, 1].sum()) for each in sums]
    low = high = math.nan
    fewest = min(len(each) for each in sums)
    if fewest >= FEWEST and shares[0] > 0 == shares[1]:
        some, share = np.count_nonzero(sums[0][:, 0]), len(sums[0]) / sum(map(len, sums))
        if share**some < level:  # that all sources with any are on this side by chance
            low = high = 0.0
    elif fewest >= FEWEST and min(shares) > 0:
        resamples = max(2000, math.ceil(40 / level))
        if paired:
            both = resampled_sums(np.concatenate(sums, axis=1), seed, resamples)
            drawn = [ratio(both[:, at], both[:, at + 1]) for at in (0, 2)]
        else:
            made = [resampled_sums(each, seed + n, resamples) for n, each in enumerate(sums)]
            drawn = [ratio(each[:, 0], each[:, 1]) for each in made]
        # one side of the interval is a test's; few sources make percentiles too narrow
        low, high = interval(ratio(drawn[1], drawn[0]), 1 - 2 * level)
        wider = math.sqrt(fewest / (fewest - 1)) * (1 + 1 / fewest)
        middle = shares[1] / shares[0]
        low, high = (middle * (end / middle) ** wider for end in (low, high))
    return Change(arm, figure, shares[0], shares[1], low, high, paired, fewest)


def read_measured(path: Path) -> list[Measured]:
    """A collection, the folder of a benchmark, or the file that `draftpick check` wrote. Raises
    DraftpickError for anything else."""
    if (path / "rows.jsonl").is_file():
        return _benchmark(path)
    if (path / "manifest.json").is_file():
        return _collection(path)
    if path.is_file():
        return _check(path)
    raise DraftpickError(
        f"{path} is no collection, no folder of `draftpick specbench` and no report of "
        "`draftpick check`; name two of these, or two logs"
    )


def _benchmark(folder: Path) -> list[Measured]:
    made = []
    for row in read_rows(folder):
        for arm, answer in row.answers.items():
            if answer.error is not None or not answer.turns:
                continue
            results = [turn.result for turn in answer.turns]
            sums = (
                float(answer.decoded), answer.decode_s,
                float(sum(each.drafted for each in results)),
                float(sum(each.accepted for each in results)),
                float(answer.decoded), float(sum(each.rounds for each in results)),
            )  # fmt: skip
            made.append(Measured(arm, row.question_id, row.source, sums))
    return made


COLUMNS = ("query_id", "arm", "temperature", "running", "draw", "rounds", "drafted", "accepted",
           "new_tokens", "measured_tokens", "measured_decode_s", "error")  # fmt: skip


def _collection(folder: Path) -> list[Measured]:
    from collect.store.manifest import read_manifest
    from collect.store.tables import read_table

    read_manifest(folder)
    queries = read_table(folder, "queries", ("query_id", "group")).to_pylist()
    groups = {each["query_id"]: each["group"] for each in queries}
    made = []
    for row in read_table(folder, "outcomes", COLUMNS).to_pylist():
        if row["error"] is not None:
            continue
        measured = _number(row["measured_tokens"]), _number(row["measured_decode_s"])
        tokens = float(np.maximum(0.0, measured[0] - 1)), measured[1]  # not known stays nan
        drafted, accepted, rounds = (_number(row[n]) for n in ("drafted", "accepted", "rounds"))
        sums = *tokens, drafted, accepted, _number(row["new_tokens"]) - 1, rounds
        key = tuple(row[name] for name in ("query_id", "temperature", "running", "draw"))
        source = groups.get(row["query_id"]) or row["query_id"]
        made.append(Measured(row["arm"], key, source, sums))
    return made


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _check(path: Path) -> list[Measured]:
    try:
        record: Mapping[str, Any] = from_json(path.read_text(encoding="utf-8"))
        steps = record["steps"]
        return [
            Measured(
                f"{each['at_once']} at once", None, f"{path}#{number}",
                (each["tokens"], each["wall_s"], each["drafted"], each["accepted"],
                 each["rounds"] + each["accepted"], each["rounds"]),
            )
            for number, each in enumerate(steps)
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise DraftpickError(
            f"{path} is no report of `draftpick check`; name its --out file, a collection or the "
            "folder of a benchmark"
        ) from None


def as_json(changes: Sequence[Change]) -> dict[str, Any]:
    """JSON-ready; null is what is not known."""
    rows = [
        plain(each) | {"ratio": each.ratio if each.before else None, "fell": each.fell}
        for each in changes
    ]
    return {"changes": rows, "fell": any(each.fell for each in changes)}
