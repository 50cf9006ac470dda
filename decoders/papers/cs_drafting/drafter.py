"""Cascade speculative drafting: the nest of vertical and horizontal cascades over a row of draft
models (D14 with D15; Chen et al., "Cascade Speculative Drafting", Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...lengths import FixedLength
from ...protocols import Backend, Drafter
from .horizontal import HorizontalDrafter, Part
from .vertical import VerticalDrafter


def cs_drafter(
    verifier_models: Sequence[Backend],
    last: Drafter,
    K: Sequence[Sequence[int]],
    lenience: float,
    longest: int,
) -> HorizontalDrafter:
    """What drafts for the target.

    verifier_models: from larger to smaller.
    last: drafts with no help.
    K: row 0 is for the target, row i + 1 for verifier_models[i]; each says how many tokens the
        models after the row's own add in turn.
    longest: bounds any one draft.

    A model's step is the same inside a larger model's step and next to it, so each model has one
    drafter and one cache.
    """
    drafters = [last]

    def row(i: int) -> HorizontalDrafter:
        parts = [Part(d, tokens) for d, tokens in zip(drafters, K[i][i:], strict=True)]
        return HorizontalDrafter(parts, owned=1)  # the largest holds the others inside

    for i in reversed(range(len(verifier_models))):
        step = VerticalDrafter(verifier_models[i], row(i + 1), FixedLength(longest), lenience)
        drafters.insert(0, step)
    return row(0)
