"""Policies that are measured next to the arms: several in one run, each perhaps of many seeds."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collect.queries import OVERALL
from decoders.common.errors import DraftpickError

from ..routing.router import Router
from .records import BASELINE, ROUTED

if TYPE_CHECKING:
    from policies import Policy

DRAWN = " (dynamic)"
_NAME = re.compile(r"[\w.+-]+")
AGGREGATED = (
    "speedup_vs_ar",
    "speedup_mean_over_tasks",
    "decode_speedup_vs_ar",
    "tokens_per_s",
    "acceptance_rate",
    "quality",
)


@dataclass(frozen=True)
class Candidate:
    """One more method of a run: a policy that picks the arm.

    group: what its seeds share, the name that the user gave.
    method: its own row, `group.1`, `group.2`, ... where the group has several.
    dynamic: the arm is drawn from the policy rather than its best.
    label: changes with the policy's content, for the run's settings.
    """

    group: str
    method: str
    router: Router
    dynamic: bool
    label: str


def named_folders(pairs: Sequence[str]) -> list[tuple[str, str]]:
    """NAME=POLICY pairs as given; raises DraftpickError for any that is not."""
    found = []
    for pair in pairs:
        name, equals, folder = pair.partition("=")
        if not equals or not folder or not _NAME.fullmatch(name):
            raise DraftpickError(
                f"--candidate takes NAME=POLICY, for instance --candidate knn=policies/knn, "
                f"not {pair!r}"
            )
        found.append((name, folder))
    return found


def candidates_of(
    router: Router, named: Sequence[tuple[str, str | Policy]], dynamic: bool = False
) -> list[Candidate]:
    """A candidate for each (name, policy), and with `dynamic` one more that draws.

    named: a name may come several times; its policies are then the seeds of one group.
    policy: a folder, a `runs:/` or `models:/` URI, or a Policy.

    Raises DraftpickError for the name of an arm or of another row, PolicyError for a policy that
    does not fit the router's engine.
    """
    import policies

    taken = {*router.engine.arm_names, ROUTED, BASELINE, "oracle"}
    counts, seen = Counter(name for name, _ in named), Counter[str]()
    found: list[Candidate] = []
    for name, given in named:
        if name in taken:
            raise DraftpickError(f"the candidate {name!r} is named like another row; rename it")
        seen[name] += 1
        own = name if counts[name] == 1 else f"{name}.{seen[name]}"
        policy = policies.load(given) if isinstance(given, str | Path) else given
        label = policy_label(given) if isinstance(given, str | Path) else policy.name
        chooser = Router(router.engine, policy, log=router.log)
        found.append(Candidate(name, own, chooser, False, label))
        if dynamic:
            found.append(Candidate(name + DRAWN, own + DRAWN, chooser, True, label))
    methods = Counter(one.method for one in found)
    twice = [method for method, count in methods.items() if count > 1 or method in taken]
    if twice:
        raise DraftpickError(f"two rows would be called {twice[0]!r}; rename a candidate")
    return found


def policy_label(uri: str | Path) -> str:
    """A name for a policy that changes with its content: a folder's comes with a hash."""
    folder = Path(uri)
    if not folder.is_dir():
        return str(uri)
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{folder.name}@{digest.hexdigest()[:12]}"


def over_seeds(
    cells: dict[str, dict[str, Any]],
    intervals: Mapping[str, Mapping[str, tuple[float, float] | None]],
    groups: dict[str, list[str]],
    tasks: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """group -> task -> the seeds' mean and deviation of each field of AGGREGATED, and ci95.

    cells: method -> task -> its cell.
    intervals: group -> task -> that of all its seeds' answers, over questions.

    The deviation is the sample's, None of a single seed: what another training would change.
    """
    found: dict[str, dict[str, Any]] = {}
    for group, methods in groups.items():
        found[group] = {
            task: _aggregate([cells[method][task] for method in methods], intervals[group][task])
            for task in (OVERALL, *tasks)
        }
    return found


def _aggregate(
    cells: Sequence[dict[str, Any] | None], ci95: tuple[float, float] | None
) -> dict[str, Any] | None:
    """None where no seed answered."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    figures: dict[str, Any] = {"seeds": len(known), "ci95": ci95}
    for name in AGGREGATED:
        values = [cell[name] for cell in known if cell[name] is not None]
        figures[name] = float(np.mean(values)) if values else None
        figures[f"{name}_deviation"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return figures
