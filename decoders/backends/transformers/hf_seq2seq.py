"""T5-like transformers models behind the Backend seam.

The prompt goes through the encoder once. What the loop extends and rolls back is the decoder's
sequence, which begins with its start token; the keys and values that the decoder computes from the
encoder's states at its first pass are kept for the whole answer.

These models know no position ids: self-attention adds to its scores a learnt bias for the distance
of two cache slots, by head. In a tree a node's depth counts, not its slot. The masks that the
decoder's blocks are given make up for the difference, and the blocks are called one by one, as
UMT5's have a bias each and a token may leave after any of them. For an early exit the lower blocks
run ahead of the others: their caches then hold more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedModel,
)

from ...common.errors import ContextTooLong, DraftpickError
from ...common.sync import synchronize
from ...records import Prefilled
from ..kept_states import KeptStates
from ..llama.reading import require_prompt
from ..llama.tree import Tree, require_chain, require_rollback
from . import pretrained
from .hf import MASKED_ATTENTION, PreallocatedLayer, cache_argument, keep_nodes

MODEL_TYPES = ("t5", "mt5", "umt5")
CONTEXT = 1024  # unless asked for more: positions are relative, so that only memory bounds them


class HFSeq2SeqBackend(KeptStates):
    """One source and its answer. context: the most tokens of either, the start token included."""

    trees_unsupported_reason: str | None = None

    def __init__(self, model: PreTrainedModel, context: int | None = None) -> None:
        super().__init__()
        self.model, context = model.eval(), context or CONTEXT
        config = model.config
        if config.model_type not in MODEL_TYPES:
            raise DraftpickError(
                f"{config.model_type} is no T5-like encoder-decoder; name a model of type "
                f"{', '.join(MODEL_TYPES)}"
            )
        kernel = model.decoder.config._attn_implementation
        if kernel not in MASKED_ATTENTION:
            raise DraftpickError(
                f"attention {kernel!r} takes no masks; load the {config.model_type} model with "
                f"attn_implementation {' or '.join(MASKED_ATTENTION)}"
            )
        self.start_id = start_token(model)
        self.vocab_size: int = config.vocab_size
        self.parameters = sum(p.numel() for p in model.parameters())
        self.context = context
        self.device, self.dtype = model.device, model.dtype
        self._layers = [PreallocatedLayer(context) for _ in range(config.num_decoder_layers)]
        self.layers, self.head_scale = len(self._layers), head_scale(config)
        self._blocks: list[Any] = list(model.decoder.block)
        self._takes = cache_argument(self._blocks[0].forward)
        self._biases = [_bias_by_distance(block, context) for block in self._blocks]
        self._tree: Tree | None = None
        self._ahead_layer = 0  # the exit that ran ahead last; 0 where none did
        self.state_size: int = config.d_model

    @classmethod
    def load(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, context: int | None = None
    ) -> HFSeq2SeqBackend:
        return cls(pretrained.load(AutoModelForSeq2SeqLM, folder, dtype, device), context)

    def sharing_weights(self, context: int) -> HFSeq2SeqBackend:
        return type(self)(self.model, context)

    @property
    def length(self) -> int:
        """Positions of the decoder that are held; 1 after `prefill`."""
        return self._layers[-1].filled

    @property
    def ahead(self) -> int:
        return self._layers[0].filled

    @torch.inference_mode()
    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        """Encode `prompt_ids` [S] and read the start token. The embedding is the mean of the
        encoder's states over the prompt."""
        started = time.perf_counter()
        require_prompt(prompt_ids, self.context)
        self.truncate(0)
        encoder = self.model.get_encoder()
        source = torch.tensor([prompt_ids], device=self.device)
        self._states = encoder(source).last_hidden_state  # [1, S, d]
        self._cache = EncoderDecoderCache(Cache(layers=self._layers), DynamicCache())
        logits = self.extend(torch.tensor([self.start_id], device=self.device))  # [1, V]
        embedding = self._states[0].float().mean(0)
        synchronize(self.device)
        return Prefilled(logits[0], embedding, time.perf_counter() - started)

    @torch.inference_mode()
    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        start, end = self.length, self.length + len(ids)
        masks = self._masks(start, len(ids), parents, len(self._blocks))
        done, layer = self.ahead - start, self._ahead_layer
        if done > 0:  # run already, as a chain: a tree's first nodes are one then
            if done < len(ids):
                rest = [mask[:, :, done:] for mask in masks[:layer]]
                self._pointwise(self._embed(ids[done:]), 0, self.ahead, rest)
            at_exit = self._exits[layer][start:end].unsqueeze(0)
            h = self._pointwise(at_exit, layer, start, masks[layer:])
        else:
            h = self._pointwise(self._embed(ids), 0, start, masks)
        self._cut_caches(end)
        states = self._normed(h[0])
        if self._final is not None:
            self._final[start:end] = states
        return self._logits(states)

    @torch.inference_mode()
    def extend_until(
        self, token: int, leaves: Callable[[Tensor, Tensor, int], bool]
    ) -> tuple[Tensor, int]:
        """Append one token, through no more of the decoder's layers than it needs."""
        self._cut_caches(self.length)
        start = self.length
        masks, left, depth = self._masks(start, 1, None, len(self._blocks)), False, 0
        h = self._embed(torch.tensor([token], device=self.device))
        for block, layer, mask in zip(self._blocks, self._layers, masks, strict=True):
            if left:
                append_skipped(block, h, layer)
                continue
            below, h = h, self._through(block, h, mask)
            depth += 1
            left = depth < len(self._blocks) and leaves(h[0, 0], below[0, 0], depth)
        if self._final is not None:
            self._final[start] = self._normed(h[0, 0])
        return h[0, 0], depth

    @torch.inference_mode()
    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., d] after any layer, by the final norm and head."""
        return self._logits(self._normed(hidden))

    def truncate(self, length: int) -> None:
        require_rollback(length, self.length, self._tree)
        self._cut_caches(length)
        self._tree = None

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        assert self._tree is not None
        keep_nodes(self._tree, self._layers, self._kept(), nodes, self.device)

    # -- final states -------------------------------------------------------------------------

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d]."""
        return self._embed(ids)[0]

    @torch.inference_mode()
    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows of the head, with the scale that the head wants of its input."""
        rows: Tensor = self.model.lm_head.weight[ids] * self.head_scale
        return rows

    # -- early exit ---------------------------------------------------------------------------

    def lower_parameters(self, exit_layer: int) -> int:
        """Weights below the exit. Cross-attention's maps of the encoder's states are left out: they
        were read with the prompt, and their keys and values are kept."""
        return sum(_read_for_a_token(block) for block in self._blocks[:exit_layer])

    @torch.inference_mode()
    def lower(self, exit_layer: int, ids: Tensor) -> Tensor:
        if self._ahead_layer != exit_layer:  # what another exit ran ahead is forgotten
            self._cut_caches(self.length)
            self._ahead_layer = exit_layer
        masks = self._masks(self.ahead, len(ids), None, exit_layer)
        return self._pointwise(self._embed(ids), 0, self.ahead, masks)[0]

    # -- passes -------------------------------------------------------------------------------

    def _normed(self, hidden: Tensor) -> Tensor:
        """The decoder's final norm of states [..., d]."""
        states: Tensor = self.model.decoder.final_layer_norm(hidden)
        return states

    def _logits(self, states: Tensor) -> Tensor:
        """[..., V] of final states [..., d]."""
        logits: Tensor = self.model.lm_head(states * self.head_scale)
        return logits

    def _pointwise(self, h: Tensor, first: int, start: int, masks: Sequence[Tensor]) -> Tensor:
        """h [1, T, d] of positions start.. through as many blocks as there are masks, from block
        `first` on, and kept at every exit on the way."""
        for layer, mask in enumerate(masks, first + 1):
            h = self._through(self._blocks[layer - 1], h, mask)
            if layer in self._exits:
                self._exits[layer][start : start + h.shape[1]] = h[0]
        return h

    def _cut_caches(self, length: int) -> None:
        """Forget what blocks hold beyond `length`."""
        for layer in self._layers:
            layer.filled = length

    def _embed(self, ids: Tensor) -> Tensor:
        h: Tensor = self.model.decoder.embed_tokens(ids.unsqueeze(0))  # [1, T, d]
        return h

    def _through(self, block: Any, h: Tensor, mask: Tensor) -> Tensor:
        """[1, T, d] through one block, which appends to its cache."""
        held = {"encoder_hidden_states": self._states, self._takes: self._cache}
        out = block(h, attention_mask=mask, **held)
        after: Tensor = out[0] if isinstance(out, tuple) else out  # [1, T, d]
        return after

    def _masks(
        self, start: int, t: int, parents: Sequence[int] | None, layers: int
    ) -> list[Tensor]:
        """For each of the first `layers` [1, H, t, S]: what it is to add to the scores of t new
        positions from `start` on, next to the bias that it adds on its own.

        parents: as for `extend`; the tree grows, or is closed.
        """
        end = start + t
        if end > self.context:
            raise ContextTooLong(start, t, self.context)
        slots = positions = torch.arange(end, device=self.device)
        if parents is None:
            require_chain(self._tree)
            self._tree = None
            unseen = slots > slots[-t:, None]  # [t, S]
        else:
            self._tree = self._tree or Tree(start)
            unseen = ~self._tree.grow(parents)[1].to(self.device)
            positions = torch.tensor(self._tree.positions, device=self.device)
        apart, slots_apart = _distances(positions, t), _distances(slots, t)
        masks: list[Tensor] = []
        for own in self._biases[:layers]:
            if own is not None:
                bias = own[:, apart].masked_fill(unseen, torch.finfo(own.dtype).min)  # [H, t, S]
                masks.append((bias - own[:, slots_apart]).unsqueeze(0))
            else:
                masks.append(bias.unsqueeze(0))
        return masks


def start_token(model: PreTrainedModel) -> int:
    """The decoder's first token. Raises DraftpickError where the model does not say."""
    start = model.config.decoder_start_token_id
    if start is None:
        start = model.generation_config.decoder_start_token_id
    if start is None:
        raise DraftpickError(
            f"this {model.config.model_type} model names no decoder_start_token_id; put it into "
            "its config.json (T5's is 0)"
        )
    return int(start)


def head_scale(config: Any) -> float:
    """What the head wants its input multiplied by: T5 and UMT5 scale it, as their head is the
    embedding too; mT5 does not."""
    scaled = getattr(config, "scale_decoder_outputs", config.model_type == "umt5")
    return float(config.d_model**-0.5) if scaled else 1.0


def _read_for_a_token(block: Any) -> int:
    """Weights of one decoder block that a new position reads."""
    across = block.layer[1].EncDecAttention
    kept = sum(p.numel() for p in (*across.k.parameters(), *across.v.parameters()))
    return int(sum(p.numel() for p in block.parameters()) - kept)


def _bias_by_distance(block: Any, context: int) -> Tensor | None:
    """[H, context] what the block's self-attention adds to a score at each distance of two slots;
    None where it adds nothing and goes by the bias of the last block that has one."""
    attention = block.layer[0].SelfAttention
    if not attention.has_relative_attention_bias:
        return None
    with torch.inference_mode():
        last: Tensor = attention.compute_bias(1, context, past_seen_tokens=context - 1)
        return last[0, :, 0].flip(-1)  # from [1, H, 1, context]


def _distances(positions: Tensor, t: int) -> Tensor:
    """[t, S] how far each of the last t of S positions lies after each; 0 for what comes later."""
    return (positions[-t:, None] - positions).clamp(min=0)


def append_skipped(block: Any, h: Tensor, layer: PreallocatedLayer) -> None:
    """Append keys and values of a state [1, T, d] that skips the block to the block's cache."""
    attention = block.layer[0].SelfAttention
    normed = block.layer[0].layer_norm(h)
    keys, values = attention.k(normed), attention.v(normed)  # [1, T, H * d_kv]
    heads = (attention.n_heads, -1)
    layer.update(
        keys.unflatten(-1, heads).transpose(1, 2), values.unflatten(-1, heads).transpose(1, 2)
    )
