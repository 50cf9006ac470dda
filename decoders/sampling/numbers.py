"""Scores that are no numbers. A model whose weights are damaged, or whose sums overflow, gives nan
for every token; the greatest of these is the first token for ever, and a draw from them any token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..records import NAN


def numbered(ids: Tensor, scores: Tensor) -> Tensor:
    """ids [...] chosen by scores [..., N]; NAN in the place of those whose score is none. As the
    most likely of scores with a nan among them is a nan, and as all probabilities of such scores
    are, the chosen one's tells of the others. Nothing is read from the device."""
    own = scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return torch.where(own.isnan(), NAN, ids)
