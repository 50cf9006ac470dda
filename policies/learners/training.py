"""The one training loop: an MLP over embeddings, a loss passed in, statistics per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..base import moments, origin_of
from ..errors import PolicyError
from ..evaluation.evaluate import greedy_probs, per_query
from ..records import EpochStats, Fitted, Float64, RewardTable
from .network import Layer, NetworkPolicy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# (outputs [B, A], rewards [B, A], generator) -> scalar to minimise
Loss = Callable[["Tensor", "Tensor", "torch.Generator"], "Tensor"]

CHOOSING_SHARE = 0.2  # of every task's training queries, for keep_best to choose the epoch by


@dataclass(frozen=True)
class Training:
    """Hyper-parameters. The defaults are the paper's (appendix A.3, table 9).

    hidden: width of both hidden layers.
    keep_best: end with the weights of the epoch whose greedy reward was highest, instead of the
        last epoch's, on a fifth of every task's training queries that is not trained on; the
        validation table is left for the report.
    patience: with keep_best, stop after this number of epochs without a better one; 0 never
        stops early.
    standardise: bring every input to mean 0 and deviation 1 over the training table, and features
        to a larger one, as `moments` says (not in the paper: raw hidden states differ by orders of
        magnitude between inputs and saturate the first tanh).
    """

    epochs: int = 3
    lr: float = 1e-3
    weight_decay: float = 1e-2
    batch_size: int = 64
    hidden: int = 512
    standardise: bool = True
    keep_best: bool = False
    patience: int = 0
    betas: ClassVar[tuple[float, float]] = (0.9, 0.99)
    eps: ClassVar[float] = 1e-8

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "hidden"):
            if getattr(self, name) < 1:
                raise PolicyError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.lr > 0 or self.weight_decay < 0:
            raise PolicyError("lr must be above 0 and weight_decay at least 0")
        if self.patience < 0:
            raise PolicyError(f"patience must be at least 0, not {self.patience}")

    def options(self) -> dict[str, Any]:
        """List the options as a policy remembers them."""
        return asdict(self) | {"betas": self.betas, "eps": self.eps}


@dataclass(frozen=True)
class Head:
    """The outputs' meaning: see NetworkPolicy. center, scale: undo a scaling of the targets."""

    kind: str = "softmax"
    temperature: float = 0.0
    center: float = 0.0
    scale: float = 1.0


def train(
    name: str,
    table: RewardTable,
    validation: RewardTable | None,
    seed: int,
    training: Training,
    loss: Loss,
    options: dict[str, Any],
    head: Head | None = None,
    prior: Float64 | None = None,
) -> Fitted:
    """Fit the paper's MLP (3 linear layers, tanh) with AdamW on shuffled batches, to which a table
    with weights gives each row as often as they say.

    Deterministic for a seed on one machine.

    options: recorded in the policy's origin.
    validation: measured after every epoch, and never chosen by.
    prior: [A] outputs to start from, the same for every query; the last layer's weights then start
        at 0, and keep_best may keep this start. None draws the last layer as the others.

    Raises PolicyError where training diverges, and where keep_best has too few queries to choose
    by.
    """
    import torch

    head = head or Head()
    whole, (full, choosing) = table, _parts(table, training, seed)
    table = full.filled()
    mean, std = moments(table.inputs, training.standardise, len(table.feature_names))
    x = torch.tensor((table.inputs - mean) / std)  # [n, d]
    rewards = torch.tensor(table.rewards, dtype=torch.float32)  # [n, A]
    often = None if table.weights is None else torch.tensor(table.weights)
    generator = torch.Generator().manual_seed(seed)
    widths = [table.width, training.hidden, training.hidden, len(table.arms)]
    weights = _initial(widths, generator)
    if prior is not None:
        with torch.no_grad():
            weights[-2].zero_()
            weights[-1].copy_(torch.tensor(prior))
    optimiser = torch.optim.AdamW(
        weights,
        training.lr,
        betas=training.betas,
        eps=training.eps,
        weight_decay=training.weight_decay,
    )
    origin = origin_of(name, whole, seed, options)

    def snapshot() -> NetworkPolicy:
        arrays = [w.detach().numpy().copy() for w in weights]
        layers = [Layer(w, b) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]
        out = layers[-1]
        layers[-1] = Layer(out.weight * head.scale, out.bias * head.scale + head.center)
        return NetworkPolicy(origin, layers, mean, std, head.kind, head.temperature)

    history: list[EpochStats] = []
    policy = snapshot()
    best, best_epoch = (-math.inf, policy), 0
    if prior is not None and choosing is not None:
        best = (_greedy_mean(policy, choosing), policy)
    for epoch in range(1, training.epochs + 1):
        began, losses = time.perf_counter(), []
        diverged = PolicyError(f"training diverged in epoch {epoch}; lower the learning rate")
        if often is None:
            order = torch.randperm(len(x), generator=generator)
        else:
            order = torch.multinomial(often, len(x), replacement=True, generator=generator)
        for start in range(0, len(x), training.batch_size):
            batch = order[start : start + training.batch_size]
            outputs = _forward(weights, x[batch])
            if not outputs.isfinite().all():
                raise diverged
            value = loss(outputs, rewards[batch], generator)
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            raise diverged
        policy = snapshot()
        history.append(_stats(epoch, losses, policy, full, validation, choosing, began))
        score = history[-1].choosing_greedy
        if score is not None and score > best[0]:
            best, best_epoch = (score, policy), epoch
        elif choosing is not None and training.patience and epoch - best_epoch >= training.patience:
            break
    return Fitted(policy if choosing is None else best[1], history)


def _parts(
    table: RewardTable, training: Training, seed: int
) -> tuple[RewardTable, RewardTable | None]:
    """Split into training rows and those that keep_best chooses by; None where it is off."""
    if not training.keep_best:
        return table, None
    usable = table.rows(np.flatnonzero(~np.isnan(table.rewards).all(axis=1)))
    kept, choosing = usable.split(CHOOSING_SHARE, seed)
    if choosing is None:  # tasks of a query or two each: a fifth of all of them together
        as_one = replace(usable, tasks=["all"] * len(usable))
        kept, choosing = as_one.split(CHOOSING_SHARE, seed)
    if choosing is None:
        raise PolicyError(
            "keep_best chooses the epoch by a part of the training queries, and there are too few "
            f"to part ({len(usable)}); collect at least 3, or train with keep_best=false"
        )
    return kept, choosing


def _initial(widths: list[int], generator: torch.Generator) -> list[Tensor]:
    """Weights and biases drawn as torch.nn.Linear draws them, from our own generator."""
    import torch

    parameters: list[Tensor] = []
    for fan_in, fan_out in pairwise(widths):
        bound = 1 / math.sqrt(fan_in)
        for shape in ((fan_out, fan_in), (fan_out,)):
            draw = torch.rand(shape, generator=generator) * 2 * bound - bound
            parameters.append(draw.requires_grad_())
    return parameters


def _forward(weights: list[Tensor], x: Tensor) -> Tensor:
    """[B, d] -> [B, A]."""
    import torch

    for i in range(0, len(weights), 2):
        x = torch.nn.functional.linear(torch.tanh(x) if i else x, weights[i], weights[i + 1])
    return x


def entropy(probs: Float64) -> Float64:
    """[n, A] -> [n], in nats."""
    logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
    return np.asarray(-(probs * logs).sum(axis=1), dtype=np.float64)


def _stats(
    epoch: int,
    losses: list[float],
    policy: NetworkPolicy,
    table: RewardTable,
    validation: RewardTable | None,
    choosing: RewardTable | None,
    began: float,
) -> EpochStats:
    probs = policy.distribution(table.inputs)
    held, held_greedy = None, None
    if validation is not None:
        held_probs = policy.distribution(validation.inputs)
        held = _mean(held_probs, validation)
        held_greedy = _mean(greedy_probs(held_probs), validation)
    chosen_by = None if choosing is None else _greedy_mean(policy, choosing)
    return EpochStats(
        epoch=epoch,
        loss=float(np.mean(losses)),
        entropy=float(entropy(probs).mean()),
        train_reward=_mean(probs, table),
        train_greedy=_mean(greedy_probs(probs), table),
        validation_reward=held,
        validation_greedy=held_greedy,
        arm_shares=dict(zip(table.arms, probs.mean(axis=0).tolist(), strict=True)),
        seconds=time.perf_counter() - began,
        choosing_greedy=chosen_by,
    )


def _greedy_mean(policy: NetworkPolicy, table: RewardTable) -> float:
    return _mean(greedy_probs(policy.distribution(table.inputs)), table)


def _mean(probs: Float64, table: RewardTable) -> float:
    values = per_query(probs, table.rewards)
    known = ~np.isnan(values)
    weights = np.ones(len(values)) if table.weights is None else table.weights
    return float(np.average(values[known], weights=weights[known])) if known.any() else math.nan
