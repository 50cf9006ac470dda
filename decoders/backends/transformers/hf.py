"""Any transformers causal model behind the Backend seam: the reference path.

The cache is preallocated and rolled back by its length; transformers' own dynamic cache would copy
every layer's keys and values at each step. transformers' own also drop what a layer with a window
or in chunks will not look at again, and so cannot take back a draft of any length: here a layer
keeps all positions and the window is in the mask alone. For a chain transformers makes that mask,
for a tree it is made here, of the positions that slots stand for.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from transformers import AutoConfig, AutoModelForCausalLM, Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from ...common.errors import ContextTooLong, DraftpickError
from ...common.sync import synchronize
from ...records import Prefilled
from ..kept_states import KeptStates
from ..llama.reading import require_prompt
from ..llama.tree import Tree, require_chain, require_rollback
from . import pretrained

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


PREFILL_CHUNK = 1024  # tokens of a prompt in a pass
MASKED_ATTENTION = ("eager", "sdpa")  # the attention kernels that take a mask as it is given


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer in one buffer; the first `filled` positions count."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.filled = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        b, h, _, d = key_states.shape
        self.keys = key_states.new_empty(b, h, self.capacity, d)
        self.values = value_states.new_empty(b, h, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.filled + key_states.shape[-2]
        self.keys[:, :, self.filled : end] = key_states
        self.values[:, :, self.filled : end] = value_states
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, first: int, source: Tensor) -> None:
        """Slots from `first` become copies of the `source` [N] ones, and the last."""
        self.filled = first + len(source)
        if self.keys is None or self.values is None:
            return  # a layer that reads another's keys and values, as Gemma 3n's last ones do
        self.keys[:, :, first : self.filled] = self.keys[:, :, source]
        self.values[:, :, first : self.filled] = self.values[:, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_seq_length(self) -> int:
        return self.filled

    def get_max_length(self) -> int:
        return self.capacity


def _copier(into: Tensor) -> Callable[[Module, Any, Any], None]:
    """A hook that copies a layer's states [1, T, d] into [T, d]."""

    def copy(module: Module, given: Any, made: Any) -> None:
        into.copy_((made if isinstance(made, Tensor) else made[0])[0])

    return copy


def keep_nodes(
    tree: Tree,
    layers: Sequence[PreallocatedLayer],
    kept: Sequence[Tensor],
    nodes: Sequence[int],
    device: torch.device,
) -> None:
    """Keep these nodes in the tree, in every layer's cache and in the states that are kept, each
    [context, d] by slot."""
    first, slots = tree.keep(nodes)
    source = torch.tensor(slots, dtype=torch.int64, device=device)
    for layer in layers:
        layer.keep(first, source)
    for states in kept:
        states[first : first + len(slots)] = states[source]


def cache_argument(forward: Callable[..., Any]) -> str:
    """Name the argument that takes a cache: `cache` from transformers 5.24 on; "" where there is
    none."""
    taken = inspect.signature(forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in taken), "")


class HFBackend(KeptStates):
    """A transformers causal model, one sequence. context: positions, at most the model's."""

    part = PREFILL_CHUNK

    def __init__(self, model: PreTrainedModel, context: int | None = None) -> None:
        super().__init__()
        self.model = model.eval()
        config = model.config.get_text_config()
        if config.is_encoder_decoder:
            raise DraftpickError(f"{config.model_type} is an encoder-decoder; see HFSeq2SeqBackend")
        self._kinds = sorted(set(layer_kinds(config)))
        self._takes = "" if model._is_stateful else cache_argument(model.forward)
        if not self._takes:
            raise DraftpickError(
                f"{config.model_type} keeps no keys and values to roll back after a rejected "
                "draft; choose a model with attention in all layers"
            )
        self._inner = [m for m in model.modules() if isinstance(m, PreTrainedModel)][1:]
        if not self._inner:
            raise DraftpickError(
                f"{type(model).__name__} holds no model without a head, whose states could be read"
            )
        self.vocab_size: int = config.vocab_size
        self.parameters = sum(p.numel() for p in model.parameters())
        holds: int | None = getattr(config, "max_position_embeddings", None)
        if context is None and holds is None:
            raise DraftpickError(
                f"{config.model_type} does not say how many positions it takes; set --context"
            )
        self.context = min(size for size in (context, holds) if size is not None)
        self.device, self.dtype = model.device, model.dtype
        self._layers = [PreallocatedLayer(self.context) for _ in range(config.num_hidden_layers)]
        self._cache = Cache(layers=self._layers)
        self._tree: Tree | None = None
        self.prompts_read = self.reach = 0
        self.state_size: int = config.hidden_size
        self.layers = len(self._layers)
        listed = (getattr(inner, "layers", None) for inner in self._inner)
        found = (each for each in listed if isinstance(each, ModuleList))
        self._blocks = next(([*each] for each in found if len(each) == self.layers), [])

    @classmethod
    def load(
        cls, folder: Path, device: torch.device, dtype: torch.dtype, context: int | None = None
    ) -> HFBackend:
        with pretrained.explained(folder) as without:
            config = AutoConfig.from_pretrained(folder, **without)
        layer_kinds(config.get_text_config())  # before any weights
        return cls(pretrained.load(AutoModelForCausalLM, folder, dtype, device), context)

    def sharing_weights(self, context: int) -> HFBackend:
        return type(self)(self.model, context)

    @property
    def length(self) -> int:
        return self._layers[0].filled

    @property
    def trees_unsupported_reason(self) -> str | None:
        config = self.model.config.get_text_config()
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            return f"{config.model_type} takes no position ids"
        if config._attn_implementation not in MASKED_ATTENTION:
            return f"attention {config._attn_implementation!r} takes no masks"
        return None

    @torch.inference_mode()
    def prefill(
        self,
        prompt_ids: list[int],
        cached: int = 0,
        between: Callable[[], None] | None = None,
        part: int | None = None,
    ) -> Prefilled:
        started = time.perf_counter()
        require_prompt(prompt_ids, self.context)
        self.truncate(cached)
        self.prompts_read += 1
        most, ids = part or self.part, torch.tensor([prompt_ids], device=self.device)
        while (start := self.length) < len(prompt_ids):
            if between is not None:
                between()
            logits, states = self._read(ids[:, start : start + most], logits_to_keep=1)
        if between is not None:
            between()
        embedding = states[-1].float()
        synchronize(self.device)
        return Prefilled(logits[-1], embedding, time.perf_counter() - started)

    @torch.inference_mode()
    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        if self.length + len(ids) > self.context:
            raise ContextTooLong(self.length, len(ids), self.context)
        place = {}
        if parents is not None:
            place = self._branch(parents)
        else:
            require_chain(self._tree)
            self._tree = None
        return self._read(ids.unsqueeze(0), **place)[0]

    def _read(self, ids: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """Logits, and states [T, d] after the final norm, of the next tokens [1, T]. Not by
        `output_hidden_states`: every layer's would be kept, and Gemma 3n's are no such states."""
        made: list[Tensor] = []  # by the models inside of the one with a head, the outermost last
        start, end = self.length, self.length + ids.shape[1]
        with ExitStack() as hooks:
            for inner in self._inner:
                hooks.enter_context(
                    inner.register_forward_hook(lambda _m, _a, out: made.append(out[0]))
                )
            for layer, states in self._exits.items():
                copier = _copier(states[start:end])
                hooks.enter_context(self._blocks[layer - 1].register_forward_hook(copier))
            try:
                out = self.model(ids, **{self._takes: self._cache}, **how)
            except BaseException:  # layers below the one that failed hold the new tokens
                self._hold(start)
                raise
        if self._final is not None:
            self._final[start:end] = made[-1][0]
        return out.logits[0], made[-1][0]

    def _branch(self, parents: Sequence[int]) -> dict[str, Any]:
        """Positions [1, T] and mask [1, 1, T, S] of a tree's new nodes, as `forward` takes them:
        where layers differ in kind, a mask for each."""
        self._tree = self._tree or Tree(self.length)
        depths, sees = self._tree.grow(parents)
        config, positions = self.model.config.get_text_config(), self._tree.positions
        masks = {
            kind: self._added(within_reach(kind, config, sees, positions)) for kind in self._kinds
        }
        return {
            "position_ids": torch.tensor([depths], device=self.device),
            "attention_mask": masks if len(masks) > 1 else masks[self._kinds[0]],
        }

    def _added(self, sees: Tensor) -> Tensor:
        """[T, S] -> [1, 1, T, S], as it is added to the scores."""
        never = torch.finfo(self.dtype).min
        added = torch.zeros(sees.shape, dtype=self.dtype).masked_fill(~sees, never)
        return added[None, None].to(self.device)

    def truncate(self, length: int) -> None:
        require_rollback(length, self.length, self._tree)
        self._hold(length)
        self._tree = None

    def _hold(self, length: int) -> None:
        for layer in self._layers:
            layer.filled = length

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        assert self._tree is not None
        keep_nodes(self._tree, self._layers, self._kept(), nodes, self.device)

    # -- states after its layers ----------------------------------------------------------------

    def open_exit(self, exit_layer: int) -> None:
        if not self._blocks:
            raise DraftpickError(
                f"the layers of {self.model.config.model_type} are not found one by one, so that "
                "their states cannot be read; choose another arm"
            )
        super().open_exit(exit_layer)

    # -- final states -------------------------------------------------------------------------

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d]."""
        embedded: Tensor = self.model.get_input_embeddings()(ids)
        return embedded

    @torch.inference_mode()
    def head_rows(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.model.get_output_embeddings().weight[ids]
        return rows
