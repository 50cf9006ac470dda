"""Layers that look back a window, or to the start of a chunk, in a cache that keeps all positions.

transformers' own caches drop what such a layer will not look at again, and so cannot take back a
draft of any length. Here a layer keeps everything and the window is in the mask alone. For a chain
transformers makes that mask, of the cache's length; for a tree it is made here, of the positions
that slots stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...common.errors import DraftpickError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def layer_kinds(config: PreTrainedConfig) -> list[str]:
    """What each layer looks at. A text config that lists no kinds has layers of one kind, which
    follows from its sizes as in transformers' caches.

    Raises DraftpickError where a layer keeps a state in place of positions (Mamba, linear
    attention), or chooses among them by an index, neither of which can be rolled back here.
    """
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        kind = FULL
        if getattr(config, "sliding_window", None) is not None:
            kind = SLIDING
        elif getattr(config, "attention_chunk_size", None) is not None:
            kind = CHUNKED
        kinds = [kind] * config.num_hidden_layers
    others = sorted(set(kinds) - {FULL, SLIDING, CHUNKED})
    if others:
        raise DraftpickError(
            f"{config.model_type} has layers of {', '.join(others)}, which cannot roll back a "
            "rejected draft; choose a model whose layers all attend to positions, in full or "
            "through a window"
        )
    return list(kinds)


def within_reach(kind: str, config: PreTrainedConfig, sees: Tensor, positions: list[int]) -> Tensor:
    """What new nodes see of a tree in a layer of this kind.

    sees: [T, S] what they would see in a full layer.
    positions: [S] that the slots stand for, those of the T nodes last.
    """
    if kind == FULL:
        return sees
    slots = torch.tensor(positions)  # [S]
    nodes = slots[-len(sees) :, None]
    if kind == SLIDING:
        near: Tensor = slots > nodes - config.sliding_window
    else:
        near = slots // config.attention_chunk_size == nodes // config.attention_chunk_size
    return sees & near
