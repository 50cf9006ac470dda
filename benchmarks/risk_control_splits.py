"""How often a bound on the loss is violated over many calibrations, and the speed that it buys.

    python benchmarks/risk_control_splits.py --rewards rewards --max-loss 0.05 0.1 0.2
    python benchmarks/risk_control_splits.py --simulate 2000

Half of a table's queries are learnt from. The other half is taken for the whole world: each split
draws queries from it to calibrate on, and what comes out is judged on all of it, so that its true
loss is known. `violated`: the share of splits whose true loss is above --max-loss. `loss`: the true
one, mean over splits. `gain`: mean reward over that of the fastest lossless arms. `lossy`: the
share of queries that a lossy arm answers. No clock is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from collect.store.collection import Collection
from collect.table_options import TableOptions
from decoders.common.terminal import tables
from policies import RewardTable
from policies.risk_control.bounds import Risk
from policies.risk_control.thresholds import calibrate, learn, parted

HEADINGS = ["guarantee", "queries", "violated", "loss", "reward", "gain", "lossy", "unused"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--rewards", type=Path, help="a collection with lossy arms")
    source.add_argument("--simulate", type=int, metavar="N", help="a made-up table of N queries")
    parser.add_argument("--reward", default="modelled")
    parser.add_argument("--max-loss", nargs="+", type=float, default=[0.05, 0.1])
    parser.add_argument("--confidence", nargs="+", type=float, default=[0.8, 0.95])
    parser.add_argument("--queries", type=int, help="calibrated on; default: half the table's")
    parser.add_argument("--model", default="ridge")
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.rewards:
        table, lossless = collected(given.rewards, given.reward)
    else:
        table, lossless = simulated(given.simulate, given.seed), ["plain", "copy"]
    rows = []
    for max_loss in given.max_loss:
        for confidence in [None, *given.confidence]:
            found = repeat_calibration(
                table,
                Risk(max_loss, confidence),
                lossless=lossless,
                model=given.model,
                queries=given.queries,
                splits=given.splits,
                seed=given.seed,
            )
            surely = "in expectation" if confidence is None else f"{confidence:.4g}"
            rows.append(
                [
                    f"{max_loss:g}, {surely}",
                    str(found.queries),
                    f"{found.violated:.3f}",
                    f"{found.loss:.4f}",
                    f"{found.reward:.3f}",
                    f"{found.reward / found.lossless_reward - 1:+.1%}",
                    f"{found.lossy:.0%}",
                    f"{found.unused:.0%}",
                ]
            )
    console = Console()
    for table_ in tables(f"{given.splits} calibrations each", HEADINGS, rows, console.width):
        console.print(table_)


@dataclass(frozen=True)
class RepeatedCalibration:
    """Risk control over many calibrations.

    splits: the number of calibrations.
    queries: calibration queries in each.
    violated: the share whose true expected loss is above max_loss; at most 1 - confidence.
    loss: the true expected loss, mean over calibrations; in expectation at most max_loss.
    reward, lossless_reward: mean, of the policy and of the fastest lossless arms.
    lossy: the share of queries served by lossy arms.
    unused: the share of calibrations that allow no lossy arm.
    """

    splits: int
    queries: int
    violated: float
    loss: float
    reward: float
    lossless_reward: float
    lossy: float
    unused: float


def repeat_calibration(
    table: RewardTable,
    risk: Risk,
    *,
    lossless: Sequence[str],
    model: str = "ridge",
    calibration_share: float = 0.5,
    queries: int | None = None,
    splits: int = 1000,
    seed: int = 0,
) -> RepeatedCalibration:
    """Calibrate many times where the truth is known.

    The predictors are learnt once, on one part of the table. The other part is the population:
    calibration queries are drawn from it with replacement, and the true loss is the mean over it.

    queries: drawn for each calibration; None for the size of the population.
    """
    learning, world = parted(table, calibration_share, seed)
    grid = learn(learning, list(lossless), model, seed)
    every = calibrate(grid, world)
    m, n = len(every), queries or len(every)
    rng = np.random.default_rng(seed)
    shares = rng.multinomial(n, np.full(m, 1 / m), size=splits) / n  # [splits, m]
    steps = risk.controlled(shares @ risk.comparable(every.losses[:, 1:]), n)  # [splits]
    loss, reward, lossy = (
        of.mean(axis=0) for of in (every.losses, every.rewards, every.lossy)
    )  # [Z + 1] each
    return RepeatedCalibration(
        splits=splits,
        queries=n,
        violated=float((loss[steps] > risk.max_loss).mean()),
        loss=float(loss[steps].mean()),
        reward=float(reward[steps].mean()),
        lossless_reward=float(reward[0]),
        lossy=float(lossy[steps].mean()),
        unused=float((steps == 0).mean()),
    )


def collected(folder: Path, reward: str) -> tuple[RewardTable, list[str]]:
    """A collection's table and its lossless arms."""
    from collect.table import reward_table
    from policies.risk_control import with_temperature

    collection = Collection.open(folder)
    table, arms = reward_table(collection, TableOptions(reward)), collection.manifest.arms
    lossless = [arm.name for arm in arms if arm.lossless and arm.name in table.arms]
    return with_temperature(table), lossless


def simulated(n: int, seed: int) -> RewardTable:
    """Two lossless arms, and two faster ones that lose more where the first input is large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    chance = np.minimum([1, 2] / (1 + np.exp(3 - 2 * x[:, :1])), 1)  # [n, 2] of losing anything
    losses = np.where(rng.random((n, 2)) < chance, rng.random((n, 2)), 0.0)
    noise = 0.2 * x[:, 1:5] + 0.1 * rng.normal(size=(n, 4))
    return RewardTable(
        query_ids=[str(i) for i in range(n)],
        tasks=["simulated"] * n,
        embeddings=x,
        arms=["plain", "copy", "bild", "cascade"],
        rewards=noise + np.array([1.0, 1.5, 2.0, 2.3]),
        reward_name="speed",
        embedder="simulated",
        arms_fingerprint="",
        features=np.zeros((n, 1), dtype=np.float32),
        feature_names=("temperature",),
        losses=np.concatenate([np.zeros((n, 2)), losses], axis=1),
    )


if __name__ == "__main__":
    main()
