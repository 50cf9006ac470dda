"""Policies that are measured next to the arms, several in one run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import policies
from decoders.common.errors import DraftpickError

from ..routing.router import Router
from .records import BASELINE, ORACLE, ROUTED

DRAWN = " (dynamic)"
_NAME = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Candidate:
    """One more method of a run: a policy that picks the arm.

    method: its row, by the name that the user gave.
    dynamic: the arm is drawn from the policy rather than its best.
    label: changes with the policy's content, for the run's settings.
    """

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
    router: Router, named: Sequence[tuple[str, str | policies.Policy]], dynamic: bool = False
) -> list[Candidate]:
    """A candidate for each (name, policy), and with `dynamic` one more that draws.

    policy: a folder, a `runs:/` or `models:/` URI, or a Policy.

    Raises DraftpickError for the name of an arm or of another row, PolicyError for a policy that
    does not fit the router's engine.
    """
    taken = {*router.engine.arm_names, ROUTED, BASELINE, ORACLE}
    found: list[Candidate] = []
    for name, given in named:
        if name in taken:
            raise DraftpickError(f"the candidate {name!r} is named like another row; rename it")
        taken.add(name)
        policy = policies.load(given) if isinstance(given, str | Path) else given
        label = policy_label(given if isinstance(given, str | Path) else policy.name, policy)
        chooser = Router(router.engine, policy, log=router.log)
        found.append(Candidate(name, chooser, False, label))
        if dynamic:
            found.append(Candidate(name + DRAWN, chooser, True, label))
    return found


def policy_label(uri: str | Path, policy: policies.Policy) -> str:
    """A name for a policy that changes with its content: a folder's comes with a hash of its files,
    another, such as of a model in MLflow, which a promotion changes, with the policy's own."""
    folder = Path(uri)
    if not folder.is_dir():
        return f"{uri}@{getattr(policy, 'fingerprint', policy.name)[:12]}"
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{folder.name}@{digest.hexdigest()[:12]}"
