"""Early exit on the native backend: an adapter with layers of its own, and their cache.

The lower layers' KV belongs to the target and is never computed twice: what the exit runs while it
drafts, the target's own pass finds done (`LlamaBackend.lower`). Only the adapter has a cache of its
own. Kim et al. (BiLD, section 4.4) draft with an early exit; the adapter replaces their joint
fine-tuning, so that the target stays as it was.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..common.shared_weights import Shared
from ..common.tensor_files import Shape as TensorShape
from ..common.tensor_files import below, require
from ..device_rounds import DeviceSequence, Make
from ..sampling.draft_vocab import DraftVocab
from .cuda.recorded import TorchLayers
from .llama.exit_head import ADAPTER, AdapterConfig, Lens, load_parts
from .llama.loading import packed_layer
from .llama.model import LayerWeights, chain_place, layer, rope_tables, through
from .llama.shape import Shape
from .native import LlamaBackend
from .weights.packed import dense, linear, pack, rows_of


class Adapter(Lens):
    """`blocks` layers of the target's shape below a lens, over states [B, T, d]."""

    def __init__(
        self,
        shape: Shape,
        config: AdapterConfig,
        blocks: list[LayerWeights],
        norm: Tensor,
        lens: Tensor,
    ) -> None:
        super().__init__(config, norm, lens, shape.norm_eps)
        self.shape = shape
        self.blocks = nn.ModuleList()
        for block in blocks:
            parts = {k: nn.Parameter(dense(t)) for k, t in block.tensors().items()}
            self.blocks.append(nn.ParameterDict(parts))
        self._kinds = [block.kind for block in blocks]
        self.rope = rope_tables(shape, norm.device, norm.dtype)

    @classmethod
    def begin(cls, target: LlamaBackend, config: AdapterConfig) -> Adapter:
        """Untrained: the target's layers that follow the exit, no lens yet (see `fit_lens`)."""
        following = target.weights.layers[config.exit_layer : config.exit_layer + config.blocks]
        norm = torch.ones(target.shape.hidden, device=target.device)
        lens = torch.eye(target.shape.hidden, device=target.device)
        return cls(target.shape, config, [*map(_copied, following)], norm, lens)

    @classmethod
    def plain(cls, target: LlamaBackend, exit_layer: int) -> Adapter:
        """Untrained, without layers: the target's own final norm, and the identity."""
        norm = target.weights.norm.detach().clone()
        lens = torch.eye(len(norm), device=target.device, dtype=target.dtype)
        adapter = cls(target.shape, AdapterConfig(exit_layer, blocks=0), [], norm, lens)
        return adapter.requires_grad_(False)

    @classmethod
    def load(cls, folder: Path, target: LlamaBackend) -> Adapter:
        config, parts = load_parts(folder, target.shape.hidden, target.device, target.dtype)
        held = {k: tuple(t.shape) for k, t in parts.items()}
        require(folder, held, _needed(target, config, parts))
        following = target.weights.layers[config.exit_layer : config.exit_layer + config.blocks]
        blocks = [
            LayerWeights(**below(parts, f"blocks.{i}."), kind=w.kind)
            for i, w in enumerate(following)
        ]
        adapter = cls(target.shape, config, blocks, parts["norm"], parts["lens"])
        return adapter.requires_grad_(False)

    def weights(self) -> list[LayerWeights]:
        parts = (dict(cast(nn.ParameterDict, b).items()) for b in self.blocks)
        return [
            LayerWeights(**each, kind=kind) for each, kind in zip(parts, self._kinds, strict=True)
        ]

    def forward(self, states: Tensor) -> Tensor:
        place = chain_place(self.rope, self.shape, 0, states.shape[1])
        for block in self.weights():
            states = layer(states, block, self.shape, place)
        return self.read(states)


def _needed(
    target: LlamaBackend, config: AdapterConfig, parts: dict[str, Tensor]
) -> dict[str, TensorShape]:
    """The tensors of an adapter's layers, which are shaped as the target's are; how wide their MLPs
    are follows from the first."""
    shape, like = target.shape, target.weights.layers[-1]
    d, q = shape.hidden, shape.heads * shape.head_dim
    f = parts["blocks.0.down"].shape[-1] if "blocks.0.down" in parts else 0
    rows = q + 2 * shape.kv_heads * shape.head_dim
    block: dict[str, TensorShape] = {"qkv": (rows, d), "out": (d, q)}
    if like.router is None:
        block |= {"gate_up": (2 * f, d), "down": (d, f)}
    block |= {
        name: tuple(dense(t).shape) for name, t in like.tensors().items() if name not in block
    }
    return {f"blocks.{i}.{name}": one for i in range(config.blocks) for name, one in block.items()}


_LOADED: Shared[AdapterHead] = Shared()


class AdapterHead:
    """An adapter at work on one sequence. It owns the adapter's cache."""

    def __init__(self, target: LlamaBackend, adapter: Adapter, vocab: DraftVocab | None) -> None:
        self.target, self.adapter, self.vocab = target, adapter, vocab
        self.exit_layer = adapter.config.exit_layer
        self.head = target.weights.head
        if vocab is not None:
            self.head = pack(rows_of(self.head, vocab.to_target))
        self.adapter_parameters = sum(p.numel() for p in adapter.parameters())
        self.parameters = self.adapter_parameters + self.head.numel()
        self.blocks = [packed_layer(w) for w in adapter.weights()]
        self.cache = target.new_cache(len(self.blocks))

    @classmethod
    def load(cls, folder: Path, target: LlamaBackend, vocab: DraftVocab | None) -> AdapterHead:
        """A folder's adapter. One at work for another sequence of the same model lends its weights;
        the cache is never shared. Raises ValueError where it was trained for states of another
        size."""
        key = (folder.resolve(), (folder / ADAPTER).stat().st_mtime_ns, id(target.weights))
        loaded = _LOADED.get(key)
        if loaded is None:
            return _LOADED.add(key, cls(target, Adapter.load(folder, target), vocab))
        other = copy(loaded)
        other.target, other.cache = target, target.new_cache(len(loaded.blocks))
        return _LOADED.add(key, other)

    def read(self, states: Tensor, start: int) -> Tensor:
        for part in torch.split(states, self.target.part):
            t = len(part)
            place = self.target.positions(start, t)
            slots = self.cache.slots(start, t, place.read(start + t))
            h = through(part, self.blocks, self.target.shape, place, slots)
            start += t
        return self.adapter.read(h[-1])

    def score(self, state: Tensor) -> Tensor:
        return linear(state, self.head)

    def recorded_draft(self) -> Make | None:
        """Draft by the target's first layers, and the adapter over the states that its passes
        left."""
        target, passes = self.target, self.target.recorded
        if passes is None or (target.device.type == "cpu" and target.dtype == torch.bfloat16):
            return None  # on a CPU the adapter's wider passes are in float32
        own = replace(target.weights, layers=self.blocks)

        def make(line: DeviceSequence, k: int, unread: int) -> Tensor:
            layers, seen = passes.run(line.read), line.read or self.cache.capacity
            adapter = TorchLayers(target.shape, own, self.adapter.rope, self.cache, seen)
            behind = line.start + torch.arange(1 - unread, 0, device=line.start.device)
            before = target.exit_hidden(self.exit_layer, 0, target.context).index_select(0, behind)
            token, at, drafted = line.newest(1), 0, [line.ids[:0]]
            while at == 0 or len(drafted) <= k:
                h = layers.through(passes.embedded(token), 0, self.exit_layer, line.start, at)
                h = torch.cat([before, h]) if at == 0 else h
                h = adapter.through(h, 0, len(self.blocks), line.start, at - len(h) + 1)
                if k == 0:
                    break
                logits = linear(self.adapter.read(h[-1:]), self.head)
                names = None if self.vocab is None else self.vocab.to_target
                token = line.drafted(logits, at, names)
                drafted.append(token)
                at += 1
            return torch.cat(drafted)

        return make


def _copied(w: LayerWeights) -> LayerWeights:
    """The same layer in float32, to be trained."""
    parts: dict[str, Any] = {
        k: dense(t).to(torch.float32, copy=True) for k, t in w.tensors().items()
    }
    return replace(w, **parts)
