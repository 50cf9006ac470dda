"""`draftpick evaluate`: what a policy is worth, exactly on a full table or estimated from logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError

from ..tabulated import Tabulated, cell, plain, tell
from .options import AsJson

if TYPE_CHECKING:
    from collect.store.collection import Collection
    from policies import Evaluation, Policy, RewardTable
    from policies.ope.estimators import Estimate

    from ..logs.judge import Judgement


def evaluate(
    logs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder that `draftpick generate --log FOLDER` wrote."),
    ] = None,
    rewards: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder that `draftpick collect --out DIR` wrote."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy to evaluate: a folder, runs:/ID/policy or models:/NAME@alias. Default, "
            "with --logs: the policies that wrote the log."
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="With --logs: {router.logs.record.LOG_REWARDS}; default: tokens_per_s. With "
            "--rewards: {collect.REWARDS}; default: the policy's own."
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="With --rewards: weight as in `draftpick train`. Default: 0.5 with --reward, else "
            "the policy's own."
        ),
    ] = None,
    tau: Annotated[float, typer.Option(help="Largest importance weight of switch-dr.")] = 10.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of resamples and of the log's folds.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Estimate what a policy earns, from logs or on a collection. A collection (--rewards) gives
    the exact value. Logs (--logs) give off-policy estimates, of other policies only where arms were
    sampled (--explore or --dynamic).

    \b
    Examples:
      draftpick generate --prompts prompts.jsonl --explore 0.2 --log log
      draftpick evaluate --logs log
      draftpick evaluate --logs log --policy other --reward log_tokens_per_s
      draftpick evaluate --rewards rewards --policy policy --reward modelled
    """
    if (logs is None) == (rewards is None):
        raise DraftpickError("give either --logs FOLDER or --rewards DIR")
    if rewards is not None and policy is None:
        raise DraftpickError("--rewards needs --policy: the policy to evaluate on it")
    from policies import load

    from ..logs.judge import judge
    from ..logs.reader import read_log

    judged = None if policy is None else load(policy)
    if logs is not None:
        found = judge(read_log(logs), judged, reward or "tokens_per_s", tau=tau, seed=seed)
        said = judgement_lines(found)
        tell(plain(found), judgement_tables(found), said, as_json=as_json, err=True)
    elif rewards is not None and judged is not None:
        _from_table(rewards, judged, reward, alpha, seed, as_json)


def _from_table(
    rewards: Path,
    policy: Policy,
    reward: str | None,
    alpha: float | None,
    seed: int,
    as_json: bool,
) -> None:
    from collect.store.collection import Collection
    from policies import report
    from policies.evaluation.evaluate import OPTIMISTIC

    collection = Collection.open(rewards)
    table = table_for(collection, policy, *reward_asked(reward, alpha, policy))
    found = report(policy, table, seed=seed)
    warnings = []
    if policy.origin.table_digest == table.digest:
        warnings.append(
            "the policy was trained on these very queries, which is optimistic; collect others to "
            "judge it"
        )
    if found.optimistic:
        warnings.append(OPTIMISTIC)
    named = {"policy": policy.name, "reward": table.reward_name}
    record = plain(named | values_json(found) | {"warnings": warnings})
    made = values_table(f"Policy {policy.name}: mean {table.reward_name}", found)
    tell(record, [made], [f"warning: {words}" for words in warnings], as_json=as_json, err=True)


def table_for(collection: Collection, policy: Policy, reward: str, alpha: float) -> RewardTable:
    """A collection's rewards, with what the policy reads. Raises PolicyError where it does not fit
    the collection."""
    from collect.embedders import is_own, same_space
    from collect.table import reward_table
    from collect.table_options import TableOptions
    from policies import check_compatible
    from policies.records import ANY

    reads = policy.embedder
    read = policy.origin.features  # also those that are the same in every row here
    options = TableOptions(reward, alpha, features=read)
    table = reward_table(collection, options)
    if reads != ANY and not is_own(reads) and not same_space(reads, table.embedder):
        table = reward_table(collection, replace(options, embedder=reads))
    same = set(policy.arms) == set(table.arms)
    space = reads if same_space(reads, table.embedder) else table.embedder
    check_compatible(policy, table.arms, space, table.arms_fingerprint if same else None)
    return table


def reward_asked(reward: str | None, alpha: float | None, *policies: Policy) -> tuple[str, float]:
    """A reward and its weight: those asked for, else those that all the policies were trained on.
    Raises as `trained_on`."""
    named, weight = (reward, 0.5) if reward is not None else trained_on(*policies)
    return named, weight if alpha is None else alpha


def trained_on(*policies: Policy) -> tuple[str, float]:
    """The reward that all of them were trained on, and its weight. Raises PolicyError where these
    are several, or none that collections have."""
    from collect.rewards import REWARDS
    from policies import PolicyError

    labels = list(dict.fromkeys(one.origin.reward_name for one in policies))
    if len(labels) > 1:
        raise PolicyError(
            f"the policies were trained on different rewards ({' and '.join(labels)}); name the "
            "one to compare by with --reward"
        )
    label, _, weight = labels[0].partition(" alpha=")
    name = label.partition("@")[0]
    if name not in REWARDS:
        raise PolicyError(
            f"the policy {policies[0].name!r} was trained on {name or 'no reward'!r}, which "
            f"collections do not have; name one with --reward: {', '.join(REWARDS)}"
        )
    return name, float(weight or 0.5)


def values_json(found: Evaluation) -> dict[str, Any]:
    """JSON-ready: what the policy and each other choice earn."""
    return {
        "best_fixed": found.best_fixed,
        "values": {
            row.name: {"mean": row.mean, "ci95": [row.low, row.high], "queries": row.queries}
            for row in [*found.rows, found.gain]
        },
        "by_task": found.by_task,
    }


def values_table(title: str, found: Evaluation, more: Sequence[list[str]] = ()) -> Tabulated:
    """The same as a table. more: further rows."""
    named = {
        "greedy": "**policy (greedy)**",
        "dynamic": "policy (sampled)",
        "best-fixed": f"best fixed ({found.best_fixed})",
        found.gain.name: "policy - best fixed",
        "oracle": found.oracle,
    }
    rows = [
        [
            named.get(row.name, row.name),
            f"{row.mean:.4f}",
            row.interval(" .. "),
            str(row.queries),
        ]
        for row in [*found.rows, found.gain]
    ]
    return Tabulated(title, ["choice", "reward", "95% interval", "queries"], [*rows, *more])


def judgement_tables(found: Judgement) -> list[Tabulated]:
    """Who chose, every arm, and where a policy is judged its estimates."""
    versions = [
        [f"{each.name} {each.policy}", each.choice, str(each.rows), *_figures(each.value)]
        for each in found.versions
    ]
    arms = [
        [each.arm, str(each.taken), str(each.failed), cell(each.mean, ".4g"),
         *(_figures(each.always) if each.always else ["-", "-"]), f"{each.effective:.0f}"]
        for each in found.arms
    ]  # fmt: skip
    chosen = ["policy", "choice", "rows", "mean", "95% interval"]
    heads = ["arm", "taken", "failed", "mean when taken", "always", "95% interval"]
    made = [
        Tabulated(f"Who chose: {found.reward}", chosen, versions),
        Tabulated(f"Arms: {found.reward}", [*heads, "effective rows"], arms),
    ]
    heads = ["estimator", "value", "95% interval", "gain", "95% interval", "effective rows"]
    for way, each in found.comparisons.items():
        rows = [["logged", *_figures(each.logged), "", "", str(each.rows)]] + [
            [name, *_figures(value), *_figures(each.gains[name], sign="+"),
             cell(None if name == "dm" else each.effective, ".0f")]
            for name, value in each.values.items()
        ]  # fmt: skip
        made.append(Tabulated(f"Policy {found.policy} ({way}): {found.reward}", heads, rows))
    return made


def judgement_lines(found: Judgement) -> list[str]:
    """Sentences on what was counted and what was not, then the warnings."""
    left = [f"  {many} left out: {why}" for why, many in found.excluded.items()]
    return [
        f"{found.used} of {found.rows} decisions count",
        *left,
        *(f"warning: {words}" for words in found.warnings),
    ]


def _figures(found: Estimate, sign: str = "") -> list[str]:
    """Value and interval."""
    value, low, high = (cell(each, f"{sign}.4g") for each in (found.value, found.low, found.high))
    return [value, "-" if low == high == "-" else f"{low} to {high}"]
