"""`draftpick learn`: what a log of decisions teaches a policy that learns."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.files import check_folder

from ..commands.options import AsJson
from ..tabulated import Tabulated, cell, plain, tell

if TYPE_CHECKING:
    from policies.online import OnlinePolicy, Status

    from ..logs.reader import DecisionRows


@dataclass(frozen=True)
class LearnOutcome:
    """What came of a log.

    reward: what was learned from.
    rows: decisions in the log. used: those learned from. own: those that the policy drew.
    excluded: why -> how many do not count.
    taken: arm -> rows. drift: arm -> the evidence for a change, 1 where it is called one; None
        where there are too few rows.
    remarks: sentences.
    """

    reward: str
    rows: int
    used: int
    own: int
    excluded: dict[str, int]
    taken: dict[str, int]
    drift: dict[str, float | None]
    status: Status
    remarks: list[str]


def learn(
    logs: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder that `draftpick generate --log FOLDER` wrote."),
    ],
    policy: Annotated[
        str, typer.Option(help="Policy to update: a folder, runs:/ID/policy or models:/NAME@alias.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the updated policy.")],
    reward: Annotated[
        str | None,
        typer.Option(
            help="Reward: {router.logs.record.LOG_REWARDS}. Default: the policy's own, or "
            "decode_tokens_per_s for a speed-up."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Update an online policy from a log of decisions. The policy comes from `draftpick train
    --policy thompson`, and the log must hold embeddings (--log-embeddings).

    \b
    Examples:
      draftpick train --rewards rewards --policy thompson --out policy
      draftpick generate --prompts prompts.jsonl --policy policy --dynamic \\
        --log log --log-embeddings
      draftpick learn --logs log --policy policy --out policy-2
    """
    from policies import PolicyError, load
    from policies.online import OnlinePolicy

    from ..logs.reader import read_log
    from ..routing.learning import online

    check_folder(out, "--out")
    learner = online(load(policy))
    if not isinstance(learner, OnlinePolicy):
        raise PolicyError(f"the policy {learner.name!r} learns from answers as they come, not logs")
    found = replay(read_log(logs), learner, reward)
    learner.save(out)
    said = [*_lines(found), f"saved to {out}"]
    tell(plain(found), [_table(found)], said, as_json=as_json, err=True)


def replay(rows: DecisionRows, policy: OnlinePolicy, reward: str | None = None) -> LearnOutcome:
    """Teach the policy every line of a log that can be used, in order.

    reward: a name in LOG_REWARDS; None as in `Learning`. Raises PolicyError where the log is of
    other arms or another embedder or holds no line that can be used, DraftpickError for a reward
    that says something else than what the policy was trained on.
    """
    from policies import PolicyError
    from policies.online.drift import MIN_REWARDS

    from ..logs.record import LOG_REWARDS
    from ..logs.rows import usable
    from ..routing.learning import Learning

    learning = Learning(policy, reward)
    held = usable(rows, policy, learning.reward, LOG_REWARDS[learning.reward])
    before, known = policy.fingerprint, set(policy.arms)
    inputs = held.table.read_by(policy.origin)
    taken, excluded, own = Counter[str](), Counter(held.excluded), 0
    for x, each in zip(inputs, held.decisions, strict=True):
        if each.arm not in known:
            excluded["of an arm that the policy does not have"] += 1
            continue
        mine = each.policy == before and each.choice == "drawn"
        learning.take(x, each.arm, each.outcome, each.propensity, own=mine)
        taken[each.arm] += 1
        own += mine
    learning.settle()
    drift, remarks = dict[str, float | None](), list[str]()
    for arm in policy.arms:
        try:
            drift[arm] = policy.drift_evidence(arm)
        except PolicyError:
            drift[arm] = None
    few = [arm for arm in policy.arms if drift[arm] is None]
    if few:
        remarks.append(
            f"a drift detector needs {MIN_REWARDS} rewards of an arm to say anything; too few of "
            f"{', '.join(few)}"
        )
    if rows.broken:
        remarks.append(f"{rows.broken} lines cut short, by a kill or a full disk, left out")
    return LearnOutcome(
        reward=learning.reward,
        rows=len(rows.decisions),
        used=taken.total(),
        own=own,
        excluded={why: many for why, many in excluded.items() if many},
        taken={arm: taken[arm] for arm in policy.arms},
        drift=drift,
        status=policy.status,
        remarks=remarks,
    )


def _table(found: LearnOutcome) -> Tabulated:
    rows = [
        [
            arm,
            str(found.taken[arm]),
            str(found.status.drifts[arm]),
            cell(found.drift[arm], ".2f"),
        ]
        for arm in found.taken
    ]
    heads = ["arm", "rows", "changes found", "evidence of another"]
    return Tabulated(f"Learned from {found.reward}", heads, rows)


def _lines(found: LearnOutcome) -> list[str]:
    status: Any = found.status
    lines = [
        f"{found.used} of {found.rows} decisions taught the policy, {found.own} of them its own"
    ]
    lines += [f"  {many} left out: {why}" for why, many in found.excluded.items()]
    lines.append(f"best fixed arm: {status.best_fixed}")
    if found.own and math.isfinite(status.gain):  # nothing may have followed the last change
        lines.append(
            f"gain over it since the last change: {status.gain:.4g} per request, "
            f"{100 * status.confidence:.4g}% between {status.gain_low:.4g} and "
            f"{status.gain_high:.4g}"
        )
    if status.switched_back:
        lines.append(
            "the policy is worse than that arm, with confidence; the arm now answers everything"
        )
    return lines + [f"note: {words}" for words in found.remarks]
