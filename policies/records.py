"""The records that pass between reward tables, policies, their trainers and the router."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName

from .errors import PolicyError

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RewardTable:
    """Every arm's reward on every query: the full information that a policy learns from.

    query_ids, tasks: one per row.
    embeddings: [n, d] float32.
    arms: the columns, in order.
    rewards: [n, A] float64, higher is better; nan where that arm failed on that query.
    reward_name: which reward, with its version.
    embedder: fingerprint of the embedding space.
    arms_fingerprint: of the arms' recipes.
    groups: one per row; rows that share one depend on each other, as those of one query asked at
        several temperatures do, and those of queries about one text. They are never split apart,
        and every bound takes groups alone for independent. Empty for each row its own.
    queries: one per row, the query that it is of; a query counts once, however many rows it has.
        Empty where each group is one query.
    texts: [n], a digest of each query's text; [] where nobody said. No part of the digest.
    features: [n, f] float32, what else a policy reads of the request, such as its temperature.
    feature_names: of its columns.
    losses: [n, A] float64 in [0, 1], what an arm's answer loses against the target's, 0 for a
        lossless arm; nan where that arm failed. None where nobody asked.
    machine: where the rewards were collected, in words; no part of the digest.
    repeats: [R, n, A], the rewards by each of R measurements of the costs behind them, for bounds
        to include how far costs can be trusted; no part of the digest. None where costs play no
        part, or were measured once.
    timed: whether rewards are timings; no part of the digest.
    drawn: [D, n, A], the rewards by each answer that was drawn for a row at a temperature above 0,
        whose mean `rewards` are; nan where a row has fewer, and for an arm that failed. No part of
        the digest. None where nothing was drawn, or nobody said.

    weights: [n], above 0, how often traffic has what each row is of: means over a query's rows go
        by them. None where all count alike.

    The arrays are copied and made read-only.

    How a failed arm (nan) counts is one rule for the whole package. Evaluation leaves it out:
    a query's value is the expectation over the arms that did not fail, probabilities rescaled
    to sum to 1 (see ``evaluate``). Learning counts it as the worst reward that any arm earned on
    that query (``filled``), so that failing never makes an arm attractive. A query on which every
    arm failed says nothing and is dropped.
    """

    query_ids: list[str]
    tasks: list[str]
    embeddings: Float32
    arms: list[str]
    rewards: Float64
    reward_name: str
    embedder: str
    arms_fingerprint: str
    groups: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    features: Float32 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    feature_names: tuple[str, ...] = ()
    losses: Float64 | None = None
    machine: str = ""
    repeats: Float64 | None = None
    drawn: Float64 | None = None
    timed: bool = False
    weights: Float64 | None = None

    def __post_init__(self) -> None:
        n, arms = len(self.query_ids), len(self.arms)
        if n == 0 or arms == 0:
            raise PolicyError("a reward table needs at least one query and one arm; collect first")
        if len(set(self.arms)) != arms:
            raise PolicyError(f"an arm is listed twice: {', '.join(self.arms)}")
        lists = {
            name: list(getattr(self, name)) for name in ("query_ids", "tasks", "arms", "texts")
        }
        lists["groups"] = list(self.groups or self.query_ids)
        lists["queries"] = list(self.queries or lists["groups"])
        for name in ("tasks", "groups", "queries", *(["texts"] if self.texts else [])):
            if len(lists[name]) != n:
                raise PolicyError(f"the reward table has {n} rows, but {len(lists[name])} {name}")
        group_of: dict[str, str] = {}
        for query, group in zip(lists["queries"], lists["groups"], strict=True):
            if group_of.setdefault(query, group) != group:
                raise PolicyError(
                    f"the query {query!r} is in two groups, {group_of[query]!r} and {group!r}; "
                    "rows of one query need the same group"
                )
        if lists["queries"] == lists["groups"]:
            lists["queries"] = []
        names = tuple(self.feature_names)
        for name, value in (lists | {"feature_names": names}).items():
            object.__setattr__(self, name, value)
        if not names:
            object.__setattr__(self, "features", np.zeros((n, 0)))
        self._hold("embeddings", "<f4", (n, *np.shape(self.embeddings)[-1:]))
        self._hold("features", "<f4", (n, len(names)))
        self._hold("weights", "<f8", (n,))
        for name in ("rewards", "losses"):
            self._hold(name, "<f8", (n, arms))
        for name in ("repeats", "drawn"):
            self._hold(name, "<f8", (n, arms), each=1)
        if not np.isfinite(self.embeddings).all():
            raise PolicyError("an embedding holds nan or infinity; embed those queries again")
        if not np.isfinite(self.features).all():
            raise PolicyError("a feature holds nan or infinity; leave that query out")
        if np.isinf(self.rewards).any():
            raise PolicyError("a reward is infinite; use nan for an arm that failed on a query")
        weights = np.ones(1) if self.weights is None else self.weights
        if not (np.isfinite(weights) & (weights > 0)).all():
            raise PolicyError("a row's weight is no number above 0; leave that row out")
        if self.losses is not None and ((self.losses < 0) | (self.losses > 1)).any():
            raise PolicyError("a loss is outside [0, 1]; scale the losses")

    def _hold(self, name: str, kind: str, shape: tuple[int, ...], each: int = 0) -> None:
        """Copy an array that was given and make it read-only. each: leading axes of any length."""
        if getattr(self, name) is None:
            return
        array = np.array(getattr(self, name), dtype=kind, order="C")
        if array.ndim != each + len(shape) or array.shape[each:] != shape:
            raise PolicyError(
                f"{name} have shape {array.shape}, but the table's rows and columns need {shape}"
            )
        array[np.isnan(array)] = np.nan  # one bit pattern for nan, so that digests agree
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def query_of(self) -> list[str]:
        """[n], the query of each row."""
        return self.queries or self.groups

    @property
    def known_by(self) -> dict[str, set[str]]:
        """Name what else each query may be met again by: its group and its text."""
        texts = self.texts or self.groups
        rows = zip(self.query_of, self.groups, texts, strict=True)
        return {query: {group, text} for query, group, text in rows}

    @property
    def dimension(self) -> int:
        """Width d of the embeddings."""
        return int(self.embeddings.shape[1])

    @cached_property
    def inputs(self) -> Float32:
        """[n, d + f], what policies read: each row's embedding, then its features."""
        if not self.feature_names:
            return self.embeddings
        return np.concatenate([self.embeddings, self.features], axis=1)

    @property
    def width(self) -> int:
        """d + f, the width of the inputs."""
        return self.dimension + len(self.feature_names)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the whole content: equal tables have equal digests."""
        head = [self.query_ids, self.tasks, self.arms, self.reward_name, self.embedder]
        text = json.dumps([*head, self.arms_fingerprint, self.dimension], ensure_ascii=True)
        sha = hashlib.sha256(text.encode())
        sha.update(self.embeddings.tobytes())
        sha.update(self.rewards.tobytes())
        if self.query_of != self.query_ids or self.feature_names:
            more = json.dumps([self.query_of, self.feature_names], ensure_ascii=True)
            sha.update(more.encode() + self.features.tobytes())
        if self.queries:
            sha.update(json.dumps(self.groups, ensure_ascii=True).encode())
        if self.losses is not None:
            sha.update(self.losses.tobytes())
        if self.weights is not None:
            sha.update(self.weights.tobytes())
        return sha.hexdigest()

    def read_by(self, origin: Origin) -> Float32:
        """[n, d + f], what a policy of that origin reads of these rows; d is 0 where it reads
        features alone. Raises PolicyError where the table lacks one of its features."""
        columns = []
        for name in origin.features:
            if name not in self.feature_names:
                raise PolicyError(
                    f"the policy {origin.name!r} reads the feature {name!r}, but the table has "
                    f"{', '.join(self.feature_names) or 'none'}; collect again"
                )
            columns.append(self.feature_names.index(name))
        if origin.embedder == ANY and columns:
            return self.features[:, columns]
        return np.concatenate([self.embeddings, self.features[:, columns]], axis=1)

    def rows(self, index: Sequence[int] | NDArray[np.intp]) -> RewardTable:
        """Take only these rows, in this order."""
        keep = np.asarray(index, dtype=np.intp)
        return replace(
            self,
            query_ids=[self.query_ids[i] for i in keep],
            tasks=[self.tasks[i] for i in keep],
            embeddings=self.embeddings[keep],
            rewards=self.rewards[keep],
            groups=[self.groups[i] for i in keep],
            queries=[self.queries[i] for i in keep] if self.queries else [],
            texts=[self.texts[i] for i in keep] if self.texts else [],
            features=self.features[keep],
            losses=None if self.losses is None else self.losses[keep],
            repeats=None if self.repeats is None else self.repeats[:, keep],
            drawn=None if self.drawn is None else self.drawn[:, keep],
            weights=None if self.weights is None else self.weights[keep],
        )

    @property
    def draws(self) -> NDArray[np.intp]:
        """[n], the answers that were drawn for each row; 0 where none was, or nobody said."""
        if self.drawn is None:
            return np.zeros(len(self), dtype=np.intp)
        return np.asarray((~np.isnan(self.drawn)).any(axis=2).sum(axis=0), dtype=np.intp)

    @property
    def lucky(self) -> bool:
        """Whether the best arm of a row is so by luck in part: by its timing, or by an answer that
        was drawn at a temperature above 0."""
        if self.timed or self.draws.any():
            return True
        if "temperature" not in self.feature_names:
            return False
        return bool((self.features[:, self.feature_names.index("temperature")] > 0).any())

    def filled(self) -> RewardTable:
        """Fill gaps for learners: a failed arm earns the query's worst reward; empty queries go."""
        some = np.flatnonzero(~np.isnan(self.rewards).all(axis=1))
        if len(some) == 0:
            raise PolicyError("every arm failed on every query; collect again before training")
        table = self if len(some) == len(self) else self.rows(some)
        if not np.isnan(table.rewards).any():
            return table

        def whole(rewards: Float64) -> Float64:
            gaps = np.isnan(rewards)
            worst = np.where(gaps, np.inf, rewards).min(axis=-1, keepdims=True)
            return np.where(gaps & np.isfinite(worst), worst, rewards)

        repeats = None if table.repeats is None else whole(table.repeats)
        drawn = None if table.drawn is None else whole(table.drawn)
        return replace(table, rewards=whole(table.rewards), repeats=repeats, drawn=drawn)

    def best_arms(self) -> NDArray[np.intp]:
        """[m] index of the best arm per query, never a failed one; queries as in ``filled``."""
        some = ~np.isnan(self.rewards).all(axis=1)
        return np.asarray(np.nanargmax(self.rewards[some], axis=1), dtype=np.intp)

    def split(self, held_out: float, seed: int) -> tuple[RewardTable, RewardTable | None]:
        """(train, validation): a random share of every task is held out; None where it is empty.

        A group's rows stay together, in the task of its first row. Raises PolicyError unless
        0 <= held_out < 1.
        """
        if not 0 <= held_out < 1:
            raise PolicyError(f"the held-out share must be in [0, 1), not {held_out}")
        rng = np.random.default_rng(seed)
        out = set[str]()
        for members in by_task(self.groups, self.tasks).values():
            take = min(round(held_out * len(members)), len(members) - 1)
            out.update(members[i] for i in rng.permutation(len(members))[:take])
        if not out:
            return self, None
        held = [i for i, group in enumerate(self.groups) if group in out]
        return self.rows(np.setdiff1d(np.arange(len(self)), held)), self.rows(held)


@dataclass(frozen=True)
class Decision:
    """One choice.

    index: the arm's place in the policy's arms.
    propensity: how likely it was to be chosen (1.0 when greedy).
    scores: [A], probabilities for policies that are distributions, predicted rewards for policies
        that predict them.
    probabilities: [A], what the arm was drawn from, of a policy that may have changed by the time
        somebody asks; None of the others, and where nothing was drawn.
    """

    arm: str
    index: int
    propensity: float
    scores: list[float]
    probabilities: list[float] | None = None


@dataclass(frozen=True)
class Origin:
    """The provenance of a policy; stored next to its weights.

    name: the fit function's name.
    arms: in the order of the policy's outputs.
    embedder: fingerprint of the embedding space, or ``ANY`` for a policy that does not look at the
        query.
    dimension: d, 0 for a policy that takes any.
    options: what it was fitted with.
    features: what it reads after the embedding, in order.
    machine: where its rewards were collected, in words.
    """

    name: str
    arms: tuple[str, ...]
    embedder: str
    dimension: int = 0
    reward_name: str = ""
    table_digest: str = ""
    arms_fingerprint: str = ""
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    machine: str = ""

    @property
    def width(self) -> int:
        """d + f, what one query's input has; 0 for a policy that takes any."""
        return self.dimension + len(self.features)


ANY = "any"


@dataclass(frozen=True)
class EpochStats:
    """The figures of one epoch of training, measured on the whole table after its last step.

    loss: mean over the epoch's steps.
    entropy: of the policy, mean over training queries, nats.
    train_reward, validation_reward: exact values of the sampling policy; the *_greedy ones take its
        most likely arm; None without validation data.
    arm_shares: mean probability per arm.
    seconds: wall time of the epoch.
    choosing_greedy: the greedy one on the part of the training table that keep_best chooses the
        epoch by, and that is not trained on; None without keep_best.
    """

    epoch: int
    loss: float
    entropy: float
    train_reward: float
    train_greedy: float
    validation_reward: float | None
    validation_greedy: float | None
    arm_shares: dict[str, float]
    seconds: float
    choosing_greedy: float | None = None


@runtime_checkable
class Policy(Protocol):
    """The methods of a policy that the router needs.

    x: [n, d + f] or [d + f] float32, numpy or torch: an embedding, then the features that the
        policy's origin names.
    """

    @property
    def name(self) -> str: ...

    @property
    def arms(self) -> list[str]: ...

    @property
    def embedder(self) -> str: ...

    @property
    def origin(self) -> Origin: ...

    def scores(self, x: Any) -> Float64:
        """[n, A]: probabilities or predicted rewards, whichever the policy works with."""

    def distribution(self, x: Any) -> Float64:
        """[n, A] probabilities; every row sums to 1."""

    def choose(self, x: Any, rng: np.random.Generator | None = None) -> Decision:
        """One arm for one query: the most likely without rng, a draw with it ("dynamic")."""

    def save(self, folder: str | Path) -> Path:
        """Write the policy; a kill at any moment leaves the old one or the new one."""


@runtime_checkable
class LearningPolicy(Policy, Protocol):
    """A policy that goes on learning while it serves."""

    def update(
        self, x: Any, arm: str, reward: float, propensity: float = 1.0, *, own: bool = True
    ) -> None:
        """Learn from one answer.

        x: [d + f], what the arm was chosen by.
        reward: nan where the arm failed.
        propensity: the chance that the arm had.
        own: whether this policy chose the arm.
        """


@dataclass(frozen=True)
class Fitted:
    """A trained policy and its history, one entry per epoch (empty where nothing iterates)."""

    policy: Policy
    history: list[EpochStats]


# A fit function: (table, validation=None, seed=0, *, options with defaults). Its options are read
# from its signature.
Fit = Callable[..., Fitted]


def check_compatible(
    policy: Policy,
    arms: Sequence[str],
    embedder: str,
    arms_fingerprint: str | None = None,
    dimension: int | None = None,
) -> None:
    """Refuse a policy that cannot serve here.

    Every arm of the policy must be available (more may be), and its embedding space must be the
    one in use. arms_fingerprint, where given, is of the policy's own arms as they are declared
    now; dimension, where given, the embedder's width. Raises PolicyError, naming both sides.
    """
    missing = [arm for arm in policy.arms if arm not in arms]
    if missing:
        raise PolicyError(
            f"the policy {policy.name!r} was trained for the arms {', '.join(policy.arms)}, but "
            f"the arms here are {', '.join(arms)} (missing: {', '.join(missing)}); train a policy "
            "for these arms or declare the missing ones"
        )
    if policy.embedder not in (ANY, embedder):
        raise PolicyError(
            f"the policy {policy.name!r} was trained on embeddings {policy.embedder}, but the "
            f"embedder here is {embedder}; use that embedder or train a policy for this one"
        )
    if policy.embedder != ANY and dimension and dimension != policy.origin.dimension:
        raise PolicyError(
            f"the policy {policy.name!r} reads embeddings of width {policy.origin.dimension}, but "
            f"those of {embedder} have {dimension}; use the embedder it was trained with"
        )
    trained = policy.origin.arms_fingerprint
    if arms_fingerprint and trained and trained != arms_fingerprint:
        raise PolicyError(
            f"the policy {policy.name!r} was trained for arms with fingerprint {trained}, but the "
            f"arms of the same names here have {arms_fingerprint}; collect and train again"
        )


def by_task(names: Sequence[str], tasks: Sequence[str]) -> dict[str, list[str]]:
    """Names of each task, the tasks sorted; a name is in the task of its first row alone."""
    task_of: dict[str, str] = {}
    for name, task in zip(names, tasks, strict=True):
        task_of.setdefault(name, task)
    found: dict[str, list[str]] = {task: [] for task in sorted(set(task_of.values()))}
    for name, task in task_of.items():
        found[task].append(name)
    return found


def arm_index(arms: Sequence[str], arm: str) -> int:
    """The arm's place; raises PolicyError with the names that exist."""
    if arm not in arms:
        raise NoSuchName("arm", arm, tuple(arms))
    return list(arms).index(arm)
