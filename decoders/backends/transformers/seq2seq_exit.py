"""Early exit of an encoder-decoder: a lens from the first decoder blocks to the target's head.

Kim et al. (BiLD, section 4.4) read the first layer's states by the last one's norm and head, having
trained the model for it; the lens replaces that, so that the target stays as it was. With the
identity in it, it is their way.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...sampling.draft_vocab import DraftVocab
from ..llama.exit_head import AdapterConfig, Lens, load_parts
from ..weights.packed import linear, pack
from .hf_seq2seq import HFSeq2SeqBackend


def plain_lens(target: HFSeq2SeqBackend, exit_layer: int) -> Lens:
    """Untrained: the target's own final norm, and the identity."""
    norm = target.model.decoder.final_layer_norm.weight.detach().float().clone()
    lens = torch.eye(len(norm), device=norm.device)
    eps = target.model.config.layer_norm_epsilon
    return Lens(AdapterConfig(exit_layer, blocks=0), norm, lens, eps)


def load_lens(folder: Path, target: HFSeq2SeqBackend) -> Lens:
    """Raises ValueError where it was trained for another target."""
    hidden, eps = target.model.config.d_model, target.model.config.layer_norm_epsilon
    config, parts = load_parts(folder, hidden, target.device, target.dtype)
    if config.blocks:
        raise ValueError(
            f"{folder.name} has {config.blocks} layer(s) of a decoder-only target and this one is "
            "an encoder-decoder; train one with `draftpick align --kind exit`"
        )
    return Lens(config, parts["norm"], parts["lens"], eps).requires_grad_(False)


class LensHead:
    """A lens, then the head's rows for the draft tokens."""

    def __init__(self, target: HFSeq2SeqBackend, lens: Lens, vocab: DraftVocab | None) -> None:
        self.lens, self.vocab = lens, vocab
        self.exit_layer = lens.config.exit_layer
        self._scale, head = target.head_scale, target.model.lm_head.weight.detach()
        self._head = head if vocab is None else pack(head[vocab.to_target])
        self.adapter_parameters = sum(p.numel() for p in lens.parameters())
        self.parameters = self.adapter_parameters + self._head.numel()

    def read(self, states: Tensor, start: int) -> Tensor:
        """Read the state; nothing of earlier positions is needed."""
        return self.lens.read(states[-1]) * self._scale

    def score(self, state: Tensor) -> Tensor:
        return linear(state, self._head)
