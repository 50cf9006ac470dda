"""An EAGLE-3 head at work (Li et al., "EAGLE-3", 2503.01840): its matrices laid out or rounded
as the target's are. `collect/align/eagle3_module.py` is what training sees of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from ...common.errors import Damaged, DraftpickError
from ...common.tensor_files import below, header_of, require
from ...protocols import StateBackend
from ...sampling.draft_vocab import DraftVocab
from ..llama.attention import rounded
from ..llama.kv import KVCache, Slot
from ..llama.loading import layer_of, layout, packed_head, packed_layer, parts
from ..llama.model import Place, attended, count_layers, layer, rms_norm, rope_tables, turned
from ..native import LlamaBackend
from ..recurrent.head import rounding_beside
from ..weights.packed import linear
from ..weights.pickled import numbers_in, pickled
from .config import Eagle3Config

EMBEDDING, TO_TARGET = "embed_tokens.weight", "d2t"


def stored(folder: Path, config: Eagle3Config) -> dict[str, Tensor]:
    """Name -> tensor as the files have it. Raises Damaged where one is missing or has another shape
    than the config asks for, DraftpickError where there are no weights."""
    found = {_name(name): tensor for name, tensor in _tensors(folder)}
    if not found:
        raise DraftpickError(f"{folder} holds no weights; name an EAGLE-3 head's folder")
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    wanted = config.needed()
    if EMBEDDING in found:
        wanted[EMBEDDING] = (config.shape.vocab, config.shape.hidden)
    if config.draft_vocab != config.shape.vocab:
        wanted[TO_TARGET] = (config.draft_vocab,)
    require(folder, shapes, wanted)
    return {name: found[name] for name in wanted}


class HeadVocab(DraftVocab):
    """The tokens that a head scores, which reads any of the target's: ids go in as they are."""

    def __init__(self, to_target: list[int], target_vocab: int) -> None:
        super().__init__(to_target, target_vocab)
        self.from_target = torch.arange(target_vocab)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], config: Eagle3Config) -> HeadVocab | None:
        """None where it scores every token. Raises Damaged where an id is not the target's."""
        if TO_TARGET not in tensors:
            return None
        ids = (torch.arange(config.draft_vocab) + tensors[TO_TARGET].cpu().long()).tolist()
        if len(set(ids)) < len(ids) or not all(0 <= i < config.shape.vocab for i in ids):
            raise Damaged(f"{TO_TARGET} names tokens twice, or tokens that the target has not")
        return cls(ids, config.shape.vocab)


def _name(name: str) -> str:
    """The authors' own checkpoints call the first layer `midlayer`."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for part in pickled(folder):
        numbers_in(part)  # tensors alone, or it is refused
        yield from torch.load(part, map_location="cpu", weights_only=True).items()
    for part in parts(folder):
        names = header_of(part)  # whole, or it is refused
        with safe_open(part, framework="pt") as file:
            for name in names:
                yield name, file.get_tensor(name)


_LOADED: WeakValueDictionary[tuple[object, ...], Eagle3Head] = WeakValueDictionary()


class Eagle3Head:
    """Weights of a head for one target, for any number of sequences.

    vocab: the tokens that it scores; None for all.
    features: after which of the target's layers it reads states.
    parameters: what a drafted token reads.
    rope: of as many positions as the target has.
    """

    def __init__(
        self, target: StateBackend, config: Eagle3Config, tensors: dict[str, Tensor], layers: int
    ) -> None:
        """layers: the target's. Raises ValueError where the head was made for another target."""
        self.features = require_fit(config, target.state_size, target.vocab_size, layers)
        self.config, self.dtype, self.device = config, target.dtype, target.device
        # as many positions as the target's, whatever the head was trained on
        self.shape = replace(config.shape, context=target.context)
        self.vocab = HeadVocab.of(tensors, config)
        if self.vocab is not None:
            self.vocab.to(target.device)
        own = {
            name: tensor.to(target.device, target.dtype if tensor.is_floating_point() else None)
            for name, tensor in tensors.items()
        }
        self.embedding = own.get(EMBEDDING)
        if self.embedding is None and config.shape.hidden != target.state_size:
            raise ValueError(
                f"its states have {config.shape.hidden} numbers, the target's embeddings "
                f"{target.state_size}, and its files hold none of its own"
            )
        self._embed = target.embed
        blocked = isinstance(target, LlamaBackend) and target.blocked
        sizes = {"hidden": config.shape.hidden, "intermediate": config.intermediate}
        sizes |= {"features": config.count * config.target_hidden}
        sizes |= {"queries": config.shape.heads * config.shape.head_dim}
        rounding = rounding_beside(target, sizes)
        how = layout(rounding, blocked)
        self.fc = how(own["fc.weight"])
        self.feature_norms = [
            own[name]
            for name in ("input_norm.weight", *(f"fc_norm.{i}.weight" for i in range(config.count)))
            if name in own
        ]
        self.layers = [
            packed_layer(layer_of(below(own, f"layers.{i}."), config.family), how)
            for i in range(config.shape.layers)
        ]
        self.state_norm, self.norm = own["layers.0.hidden_norm.weight"], own["norm.weight"]
        self.head = packed_head(own["lm_head.weight"], rounding, blocked)
        self.parameters = count_layers(self.layers) + self.head.numel()
        self.rope = rope_tables(self.shape, target.device, target.dtype)

    @classmethod
    def load(cls, folder: Path, target: StateBackend, layers: int) -> Eagle3Head:
        """One that another drafter of the same model holds serves this one too. Raises as the
        constructor, and DraftpickError where the folder holds no head."""
        config = Eagle3Config.of(folder)
        require_fit(config, target.state_size, target.vocab_size, layers)
        model = target.weights if isinstance(target, LlamaBackend) else target
        stamp = max(file.stat().st_mtime_ns for file in folder.iterdir())
        key = (folder.resolve(), stamp, id(model), target.context)
        loaded = _LOADED.get(key)
        if loaded is None:
            loaded = cls(target, config, stored(folder, config), layers)
            _LOADED[key] = loaded
        return loaded

    def new_cache(self) -> KVCache:
        """For one sequence, as long as the target's may be."""
        shape, room = self.shape, rounded(self.shape.context)
        sizes = shape.layers, 1, shape.kv_heads, room, shape.head_dim
        return KVCache(*sizes, self.dtype, self.device)

    def combine(self, features: Sequence[Tensor]) -> Tensor:
        """The target's states [T, d'] after each of `features` -> the head's own [T, d]."""
        eps = self.shape.norm_eps
        if self.config.fc_norm:
            pairs = zip(features, self.feature_norms, strict=True)
            features = [rms_norm(each, norm, eps) for each, norm in pairs]
        joined = torch.cat(list(features), -1)
        if self.config.norm_before_fc:
            joined = rms_norm(joined, self.feature_norms[0], eps)
        return linear(joined, self.fc)

    def step(
        self, ids: Tensor, states: Tensor, place: Place, slots: Sequence[Slot]
    ) -> tuple[Tensor, Tensor]:
        """Tokens with the states of the positions before them.

        ids: [T] target ids.
        states: [T, d].
        slots: one a layer.

        Returns the states [T, d] for the tokens after them, and what `score` reads [T, d].
        """
        shape, eps = self.shape, self.shape.norm_eps
        (first, *rest), (slot, *others) = self.layers, slots
        assert first.attention_norm is not None
        embedded = rms_norm(self.embed(ids), first.attention_norm, eps)
        normed = rms_norm(states, self.state_norm, eps)
        qkv = linear(torch.cat([embedded, normed], -1), first.qkv, first.qkv_bias)
        h = normed if self.config.norm_before_residual else states
        qkv = turned(qkv, first.head_norms, shape, place.ropes[0])
        h = attended(h, qkv, first, shape, place.masks[0], slot)
        for weights, each in zip(rest, others, strict=True):
            h = layer(h, weights, shape, place, each)
        read = rms_norm(h, self.norm, eps)
        return (read if self.config.norm_output else h), read

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d]: by its own table where it has one, else by the target's."""
        return self._embed(ids) if self.embedding is None else F.embedding(ids, self.embedding)

    def score(self, read: Tensor) -> Tensor:
        """[T, N] over the tokens of `vocab`."""
        return linear(read, self.head)


def require_fit(
    config: Eagle3Config, state_size: int | None, vocab: int, layers: int | None
) -> tuple[int, ...]:
    """The layers that it reads of such a target; what is not known of that is not compared. Raises
    ValueError where it was made for another one."""
    if state_size is not None and config.target_hidden != state_size:
        raise ValueError(
            f"it reads states of {config.target_hidden}, and this target's have {state_size}"
        )
    if config.shape.vocab != vocab:
        raise ValueError(
            f"it was made for a vocabulary of {config.shape.vocab}, and this target's is {vocab}"
        )
    return config.features or () if layers is None else config.feature_layers(layers)
