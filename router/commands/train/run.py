"""Carry out a plan of `draftpick train`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from collect import rewards as known
from collect.store.collection import Collection
from collect.store.manifest import Manifest
from collect.summary import cautions
from collect.table import only_alone, read_rewards, reward_table
from collect.table_options import TableOptions
from decoders.common import plugins
from decoders.common.files import check_folder
from policies import Evaluation, PolicyError, RewardTable, report
from policies.evaluation.evaluate import OPTIMISTIC
from policies.fitting import OWN_GUARDS, GuardReport
from policies.selection.crossfit import subsample
from policies.tracking.run import HELD_OUT, Task, TrainedRun, train_run
from policies.tracking.run_log import MODEL_LOGGERS

from .plan import TrainPlan


@dataclass(frozen=True)
class TrainOutcome:
    """What a run came to.

    features: what the policy reads besides the query.
    left_out: rows that the table lacks, in words; "" for none.
    cautions: sentences about what the collection's figures leave out.
    held_out: whether the run was judged on queries that were held out.
    judged_by, judged: the other reward of --judge-by and what the policy earns of it.
    promise: of a policy that has a guard of its own, such as that of risk control; None of others.
    registered_as: the name of the registered model.
    """

    run: TrainedRun
    features: tuple[str, ...]
    left_out: str
    cautions: list[str]
    held_out: bool
    judged_by: str
    judged: Evaluation | None
    promise: GuardReport | None
    registered_as: str | None


def run(plan: TrainPlan) -> TrainOutcome:
    """Read the collection, train, and log to MLflow.

    Raises DraftpickError for what the collection lacks, PolicyError for what cannot be trained or
    logged.
    """
    if plan.asked.out is not None:
        check_folder(plan.asked.out, "--out")
    collection = Collection.open(plan.asked.rewards)
    whole, left_out = read_rewards(collection, plan.table)
    task = _task(plan, whole, collection.manifest)
    table, held = task.table, task.validation
    judge = None
    if plan.asked.judge_by is not None:
        judge = judged_rows(collection, plan.asked.judge_by, plan.table, table, held)
    done = train_run(task, tracking_uri=plan.asked.tracking_uri, experiment=plan.asked.experiment)
    made, own = done.fitted.policy, OWN_GUARDS.get(plan.policy)
    return TrainOutcome(
        run=done,
        features=tuple(table.feature_names),
        left_out=str(left_out),
        cautions=[
            *cautions(collection, plan.table.reward),
            *left_out.cautions,
            *[OPTIMISTIC] * done.evaluation.optimistic,
        ],
        held_out=held is not None,
        judged_by="" if judge is None else judge.reward_name,
        judged=None if judge is None else report(made, judge, seed=plan.asked.seed),
        promise=own.report(made, held or table, plan.asked.seed) if own is not None else None,
        registered_as=plan.asked.register,
    )


def _task(plan: TrainPlan, table: RewardTable, manifest: Manifest) -> Task:
    seed = plan.asked.seed
    settings, guard = dict(plan.settings), plan.guard
    held, share = None, plan.asked.validation_share
    if plan.risk is not None:
        kept = [arm.name for arm in manifest.arms if arm.lossless and arm.name in table.arms]
        settings |= dict(plan.risk) | {"lossless": kept}
        table = OWN_GUARDS[plan.policy].prepared(table)
        table, held = table.split(HELD_OUT if share is None else share, seed)
        share = 0.0
    elif plan.asked.judge_by is not None or plan.asked.train_size is not None:
        if share is None:
            share = HELD_OUT if plan.asked.judge_by is not None or not guard else 0.0
        table, held = table.split(share, seed)
        if plan.asked.train_size is not None:
            table = subsample(table, plan.asked.train_size, seed)
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), None)
    plugins.load("policies")
    model, here = MODEL_LOGGERS.get("text"), manifest.identity
    return Task(
        table,
        held,
        policy=plan.policy,
        options=settings,
        guard=guard,
        plain=plain if plain in table.arms else None,
        seed=seed,
        held_out=share,
        out=plan.asked.out,
        run_name=plan.policy,
        register=plan.asked.register,
        params={
            "alpha": plan.table.alpha,
            "rewards": str(plan.asked.rewards),
            "validation_share": share,
            "arms": ",".join(table.arms),
            "features": ",".join(table.feature_names) or "none",
            "repetitive": plan.table.repetitive,
            "weights": str(dict(plan.table.weights) or ""),
            "train_size": plan.asked.train_size,
            "judge_by": plan.asked.judge_by,
        },
        log_model=model and partial(model, here.embedder, here.max_new_tokens),
    )


def judged_rows(
    collection: Collection,
    reward: str,
    options: TableOptions,
    table: RewardTable,
    held: RewardTable | None,
) -> RewardTable:
    """The held-out queries' rows, with what the policy reads; all the queries where none are held
    out.

    options, table: what is trained on. A reward of greedy answers on their own is judged on those.

    Raises DraftpickError for an unknown reward, and one that was not collected; PolicyError where
    no row of these queries is left.
    """
    asked = replace(
        options,
        reward=reward,
        arms=table.arms,
        embedder=table.embedder,
        features=table.feature_names,
    )
    if only_alone(collection, known.get(reward)):
        asked = replace(asked, temperatures=None, at_once=None, weights={})
    found = reward_table(collection, asked)
    queries = set((table if held is None else held).query_of)
    rows = [i for i, query in enumerate(found.query_of) if query in queries]
    if not rows:
        raise PolicyError(f"no held-out query has the reward {reward!r}; collect more")
    return found.rows(rows)
