"""What a reward table is made of: reward, arms, embedder, and which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError, NoSuchName

if TYPE_CHECKING:
    from .embedders import Embedder
    from .rewards import Reward

REPETITIVE = ("all", "without")
MOST_WEIGHT = 100  # how much more often one setting than another


@dataclass(frozen=True)
class TableOptions:
    """How a collection is read.

    reward: a name, a Reward of one's own, or None for the default: `modelled`, and `measured` for a
        collection of endpoints.
    alpha: weight of similarity against cost, in [0, 1].
    arms: a choice of them, None for all; size and latency scores are scaled by the largest and the
        slowest of the choice (Huang et al., A.5).
    embedder: what the policy is to read (see `Collection.embeddings`), None for what the collection
        was made with.
    temperatures: a choice of them, None for all that were collected and the reward speaks of.
    features: what the policy is to read besides (names in FEATURES), None for all that are not the
        same in every row.
    repetitive: "without" leaves out answers of the target that repeat themselves to the end.
    at_once: a choice of the numbers of answers that were written at once, None for all that were
        collected and the reward speaks of.
    weights: how often traffic has each setting, a temperature and a number of answers at once; 1
        for those left out, 0 leaves the rows of one out.

    Raises DraftpickError for an unknown reward or `repetitive`, an alpha outside [0, 1], and
    weights that are not from 0 to MOST_WEIGHT.
    """

    reward: str | Reward | None = None
    alpha: float = 0.5
    arms: Sequence[str] | None = None
    embedder: str | Embedder | None = None
    temperatures: Sequence[float] | None = None
    features: Sequence[str] | None = None
    repetitive: str = "all"
    at_once: Sequence[int] | None = None
    weights: Mapping[tuple[float, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from . import rewards  # heavy, and command lines only name the options

        if self.reward is not None:
            rewards.get(self.reward)
        rewards.check_alpha(self.alpha)
        if self.repetitive not in REPETITIVE:
            raise NoSuchName("choice of repetitive answers", self.repetitive, REPETITIVE)
        if not all(0 <= weight <= MOST_WEIGHT for weight in self.weights.values()):
            raise DraftpickError(f"weights are whole numbers from 0 to {MOST_WEIGHT}")
