"""Native backend for Llama-shaped models: fused weights, one preallocated cache.

A round costs one pass of `layer` (llama/model.py) over the layers and one product with the head.
Rolling back is moving `length`. An early exit (`exit_adapter.py`) may run the lower layers ahead of
the rest: `lower` does so, and `extend` then finds those positions done and runs only the upper
layers. A tree of drafts is one pass too, with a mask of its own (see `tree.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..common.errors import ContextTooLong, DraftpickError
from ..common.sync import synchronize
from ..device_rounds import WIDEST
from ..protocols import AnswerWriter, Drafter, DraftLength, Verifier
from ..records import Prefilled
from .cpp.layers import KernelLayers, unsupported_reason
from .cpp_kernels import version
from .cuda import use_kernels
from .cuda.fused import FusedLayers
from .cuda.recorded import Layers, RecordedPasses, Recorder
from .kept_states import KeptStates
from .llama.attention import rounded
from .llama.kv import KVCache, Slot
from .llama.loading import load
from .llama.model import (
    POINTWISE,
    Place,
    PointwiseOps,
    Weights,
    chain_place,
    count,
    count_layers,
    embedded,
    layer,
    logits_of,
    rms_norm,
    rope_tables,
    skip_layer,
    through,
    tree_place,
)
from .llama.reading import SequenceSlice, require_prompt
from .llama.shape import Shape
from .llama.tree import Tree, require_chain, require_rollback
from .threads import threads
from .weights.blocked import Blocks
from .weights.file_blocks import FileBlocks
from .weights.int8 import WIDE
from .weights.kernel_weight import KernelWeight
from .weights.packed import Rounding, rows_of
from .weights.rounded_store import RoundedStore

Branch = tuple[Tensor, Tensor]  # of nodes of a tree, as `tree_place` takes them
PREFILL_CHUNK = 1024  # longer ones spend a fifth of their time on fresh memory (performance.md)
LARGE_CHUNK = 256  # of a large model on a CPU, which reads that many in a second or more
LARGE_MODEL = 500_000_000  # parameters
ROLLBACK = 1024  # positions of a prompt that can be taken back where windows let go others


def _alone() -> None:
    """Nobody waits for a turn."""


class LlamaBackend(KeptStates):
    """Llama, SmolLM2, Mistral, Qwen2 and Qwen3 shapes in float32 or bfloat16, on CPU or CUDA.

    turn: as of Rounded (cuda/rounds.py).
    """

    trees_unsupported_reason: str | None = None

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        context: int | None = None,
        cache: KVCache | None = None,
    ) -> None:
        """cache: of one sequence, with room for the context; None makes one."""
        super().__init__()
        self.shape, self.weights = shape, weights
        self.vocab_size = shape.vocab
        self.parameters = count(weights)
        self.context = min(context or shape.context, shape.context)
        self.device, self.dtype = weights.norm.device, weights.norm.dtype
        use_kernels(self.device)
        self._rope = rope_tables(shape, self.device, self.dtype)
        self._cache = cache or self.new_cache(shape.layers)
        self._threads = threads() if self.device.type == "cpu" else None
        self._length = 0
        windows = [shape.kinds[w.kind].window for w in weights.layers]
        on_cpu = self.device.type == "cpu"
        self._windowed = [at for at, window in enumerate(windows) if window and on_cpu]
        self._window = max(windows, default=0)
        self._whole_from = 0  # the first position that no layer has let go
        self.prompts_read = 0  # how often `prefill` was called
        self._tree: Tree | None = None
        self._ahead = 0  # positions that the layers below an exit have seen
        self._ahead_layer = 0  # the exit that ran so far; 0 where none did
        self.layers, self.state_size = shape.layers, shape.hidden
        self.recorded: RecordedPasses | None = None
        self.compiled: KernelLayers | None = None
        self.turn: Callable[[], None] | None = _alone

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        context: int | None = None,
        rounding: Rounding | None = None,
        store: RoundedStore | None = None,
        blocked: bool = False,
    ) -> LlamaBackend:
        """rounding: of the matrices (int8.py, int4.py), of a model in bfloat16.
        store: where they are kept rounded.
        blocked: multiply by them with the kernels of cpp_kernels.py, which must be loaded; of a
            store, its own.
        """
        return cls(*load(folder, device, dtype, rounding, store, blocked), context)

    def sharing_weights(self, context: int) -> LlamaBackend:
        """Share the weights with a cache of its own; compiled passes are shared too."""
        other = type(self)(self.shape, self.weights, context)
        if self.compiled is not None:
            other.compiled = self.compiled.over(other._cache)
        return other

    @property
    def recordable(self) -> bool:
        """Whether what a pass runs does not depend on its tokens, as it does where they choose
        among experts."""
        return self.shape.experts is None

    def record_passes(self, record: Recorder, fuse: bool = False) -> None:
        """From now on replay the passes that draft and verify (recorded.py), of a model that is
        recordable.

        fuse: by the kernels of fused.py, which the model must fit.
        """
        parts = (self.shape, self.weights, self._rope, self._cache)
        fused = FusedLayers(*parts, WIDEST) if fuse else None
        self.recorded = RecordedPasses(*parts, record, fused)

    def compile_layers(self) -> None:
        """From now on run passes by the kernels in C++ (cpp/layers.py), which must be loaded.
        Raises DraftpickError for a model that they do not fit."""
        reason = unsupported_reason(self.shape, self.weights.layers)
        if reason is not None:
            raise DraftpickError(f"the kernels in C++ do not fit this model: {reason}")
        parts = self.weights.layers, self._cache, self.shape, self._rope
        self.compiled = KernelLayers(*parts)

    @property
    def eight_bits(self) -> bool:
        """Whether keys and values are kept in 8 bits."""
        return self._cache.eight_bits

    def keep_eight_bits(self) -> None:
        """From now on keep keys and values in 8 bits (eight_bits.py); what it holds is forgotten.
        Raises DraftpickError where no kernel reads those."""
        if self.device.type != "cpu" or self.recorded is not None:
            raise DraftpickError("keys and values in 8 bits are for CPUs; leave --kv-dtype out")
        self.truncate(0)
        self._cache = self.new_cache(self.shape.layers, eight_bits=True)
        if self.compiled is not None:
            self.compiled = self.compiled.over(self._cache)

    @property
    def passes(self) -> str:
        """How a pass over a few tokens is run: eager, recorded, fused or compiled."""
        if self.compiled is not None:
            return "compiled"
        if self.recorded is None:
            return "eager"
        return "recorded" if self.recorded.fused is None else "fused"

    @property
    def pointwise(self) -> PointwiseOps:
        """What runs between the products of wide passes."""
        return POINTWISE if self.compiled is None else self.compiled.pointwise

    def new_cache(self, layers: int, batch: int = 1, eight_bits: bool = False) -> KVCache:
        """Room for the whole context."""
        size = layers, batch, self.shape.kv_heads, rounded(self.context), self.shape.head_dim
        return KVCache(*size, self.dtype, self.device, eight_bits)

    @property
    def precision(self) -> str:
        """float32, bfloat16, int8, int4, or "file" for a GGUF file's own."""
        out = self.weights.layers[0].out
        return str(self.dtype).removeprefix("torch.") if isinstance(out, Tensor) else out.precision

    @property
    def narrow(self) -> int:
        """Tokens of a pass up to which rounded weights are multiplied by as they are, where others
        lie besides them."""
        out = self.weights.layers[0].out
        return out.narrow if isinstance(out, KernelWeight) else WIDE

    @property
    def blocked(self) -> bool:
        """Whether weights are multiplied by draftpick's own kernels (blocked.py)."""
        return isinstance(self.weights.layers[0].out, Blocks | FileBlocks)

    @property
    def products(self) -> str:
        return f"blocks {version()}" if self.blocked else ""

    @property
    def length(self) -> int:
        return self._length

    @property
    def reach(self) -> int:
        return self._whole_from and self._whole_from + self._window

    @property
    def ahead(self) -> int:
        """Positions that the layers below an exit have seen; `length` where none runs ahead."""
        return self._ahead

    # -- the sequence -------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(
        self,
        prompt_ids: list[int],
        cached: int = 0,
        between: Callable[[], None] | None = None,
        part: int | None = None,
    ) -> Prefilled:
        """Read a prompt in parts.

        cached: how many of the first positions hold these very ids already, and are not read again;
            fewer than there are ids.
        """
        started = time.perf_counter()
        require_prompt(prompt_ids, self.context)
        self.truncate(cached)
        self.prompts_read += 1
        ids, most = torch.tensor(prompt_ids, device=self.device), part or self.part
        while self._length < len(ids):
            if between is not None:
                between()
            start = self._length  # it may have copied some in
            end = start - self._window - ROLLBACK
            if self._windowed and end >= self._whole_from + ROLLBACK:
                self._cache.let_go(self._windowed, end)
                self._whole_from = end
            hidden = self._prompt(ids[start : start + most])
            if self._final is not None:
                self._finished(hidden)
        if between is not None:
            between()
        last = self.final_norm(hidden[-1])
        logits = logits_of(last, self.weights.head, self.shape)
        embedding = last.float()
        synchronize(self.device)
        return Prefilled(logits, embedding, time.perf_counter() - started)

    def _prompt(self, ids: Tensor) -> Tensor:
        """Read a prompt by one recording where passes are recorded and the prompt is short."""
        dense = ["float32", "float64"]
        if self.device.type == "cuda":  # a CPU multiplies wide bfloat16 in float32
            dense.append("bfloat16")
        alone = type(self) is LlamaBackend  # not one of many, each of which would be recorded
        if self.recorded is not None and self.precision in dense and alone and len(ids) > WIDEST:
            hidden = self.recorded.prompt(
                ids, self._length, self.context, self.pass_through, self.kept_states
            )
            if hidden is not None:
                self._length = self._ahead = self._length + len(ids)
                return hidden
        return self._hidden(ids)

    @property
    def part(self) -> int:
        slow = self.device.type == "cpu" and self.parameters >= LARGE_MODEL
        return min(PREFILL_CHUNK, LARGE_CHUNK) if slow else PREFILL_CHUNK

    # -- copies of positions ------------------------------------------------------------------

    @property
    def layout(self) -> tuple[object, ...]:
        compiled = self.compiled is not None  # other last bits
        return self.dtype, self.precision, compiled, self.eight_bits, self.kept_states

    @property
    def position_bytes(self) -> int:
        states = len(self._kept()) * self.shape.hidden * self.dtype.itemsize
        return self._cache.position_bytes + states

    @torch.inference_mode()
    def copy_out(self, start: int, end: int) -> list[Tensor]:
        kept = [states[start:end].clone() for states in self._kept()]
        return [self._cache.copy_out(start, end), *kept]

    @torch.inference_mode()
    def copy_in(self, copies: Sequence[Tensor]) -> None:
        start, (kv, *kept) = self._length, copies
        end = start + kv.shape[-2]
        self._placed(kv.shape[-2], None)
        self._cache.copy_in(start, kv)
        for into, copy in zip(self._kept(), kept, strict=True):
            into[start:end] = copy
        self._length = self._ahead = end

    @torch.inference_mode()
    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        if parents is None and self.recorded is not None and len(ids) <= WIDEST:
            return self._replayed(self.recorded, ids)
        states = self._finished(self._hidden(ids, parents))
        return logits_of(states, self.weights.head, self.shape)

    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., d] after any layer, by the final norm and head."""
        return logits_of(self.final_norm(hidden), self.weights.head, self.shape)

    @torch.inference_mode()
    def draft(self, ids: Tensor, k: int, known: int) -> Tensor:
        """Append `ids` [U], then the greedy answer's first k - 1 tokens; all k of them [k], found
        among the first `known` ids. As `extend` token by token, but one recorded pass."""
        assert self.recorded is not None and not self._exits and self._final is None
        start, more = self._length, len(ids) + k - 1
        if start + more > self.context:
            raise ContextTooLong(start, more, self.context)
        drafted = self.recorded.draft(ids, k, known, start)
        self._length = self._ahead = start + more
        return drafted

    def clean(self) -> None:
        self.truncate(0)
        self._cache.clean()

    def truncate(self, length: int) -> None:
        require_rollback(length, self._length, self._tree, self.reach)
        if length == 0:
            self._whole_from = 0
        self._length = self._ahead = length
        self._tree = None

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        assert self._tree is not None
        first, slots = self._tree.keep(nodes)
        end = first + len(slots)
        if slots:
            source = torch.tensor(slots, device=self.device)
            self._cache.move(slice(first, end), source)
            for states in self._kept():
                states[first:end] = states[source]
        self._length = self._ahead = end

    # -- final states -------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d]."""
        return embedded(ids, self.weights.embedding, self.shape)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows of the head; those of a rounded, tied head are as they were before rounding."""
        w = self.weights
        return rows_of(w.embedding if w.tied else w.head, ids)

    def _finished(self, hidden: Tensor) -> Tensor:
        """What the last pass gave, [T, d], after the final norm; kept where states are."""
        states = self.final_norm(hidden)
        if self._final is not None:
            self._final[self._length - len(states) : self._length] = states
        return states

    # -- early exit ---------------------------------------------------------------------------

    def lower_parameters(self, exit_layer: int) -> int:
        return count_layers(self.weights.layers[:exit_layer])

    @torch.inference_mode()
    def lower(self, exit_layer: int, ids: Tensor) -> Tensor:
        """Run `ids` [T] through the layers below the exit only, ahead of `length`; [T, d]."""
        if self._ahead_layer != exit_layer:  # what another exit ran ahead is forgotten
            self._ahead, self._ahead_layer = self._length, exit_layer
        hidden = self._pointwise(self.embed(ids), 0, exit_layer, self._ahead, None)
        self._ahead += len(ids)
        return hidden

    def _pointwise(
        self, h: Tensor, first: int, last: int, start: int, branch: Branch | None
    ) -> Tensor:
        """h [T, d] of positions start.. through the layers first..last-1, and kept at every exit on
        the way.

        branch: as `_placed` gives it.
        """
        for after, states in self._exits.items():
            if first < after <= last:
                h = self._run(h, first, after, start, branch)
                states[start : start + len(h)] = h
                first = after
        return h if first == last else self._run(h, first, last, start, branch)

    def _caught_up(
        self, ids: Tensor, start: int, branch: Branch | None = None
    ) -> tuple[int, Tensor]:
        """The layer that all of `ids` [T] in slots start.. are brought to, and their [T, d] there:
        that of the exit which ran some of them ahead, or 0 for their embeddings.

        branch: as for `_pointwise`.
        """
        done, after = self._ahead - start, self._ahead_layer
        if done <= 0:
            return 0, self.embed(ids)
        if done < len(ids):  # what ran ahead is a chain: so a tree's first nodes
            rest = None if branch is None else (branch[0][done:], branch[1][done:])
            self._pointwise(self.embed(ids[done:]), 0, after, self._ahead, rest)
        return after, self._exits[after][start : start + len(ids)]

    @torch.inference_mode()
    def lower_batch(self, ids: Tensor, exit_layer: int) -> Tensor:
        """[B, T] ids -> [B, T, d] after `exit_layer` layers; the cache is not touched."""
        place, h = self.positions(0, ids.shape[1]), self.embed(ids)
        for w in self.weights.layers[:exit_layer]:
            h = layer(h, w, self.shape, place)
        return h

    @torch.inference_mode()
    def extend_until(
        self, token: int, leaves: Callable[[Tensor, Tensor, int], bool]
    ) -> tuple[Tensor, int]:
        start, layers = self._length, self.shape.layers
        self._placed(1, None)
        place = self.positions(start, 1)
        h, depth = self.embed(torch.tensor([token], device=self.device)), 0
        slots = self._slots(start, 1, place, 0, layers)
        left = False
        while depth < layers and not left:
            below = h
            h = layer(below, self.weights.layers[depth], self.shape, place, slots[depth])
            depth += 1
            left = depth < layers and leaves(h[0], below[0], depth)
        for above in range(depth, layers):
            skip_layer(h, self.weights.layers[above], self.shape, place, slots[above])
        self._length = self._ahead = start + 1
        if self._final is not None:
            self._finished(h)
        return h[0], depth

    # -- passes -------------------------------------------------------------------------------

    def _hidden(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        """All layers over `ids` [T] in slots length..; [T, d] before the final norm.

        parents: as for `extend`.
        """
        start, end = self._length, self._length + len(ids)
        branch = self._placed(len(ids), parents)
        after, h = self._caught_up(ids, start, branch)
        hidden = self._pointwise(h, after, self.shape.layers, start, branch)
        self._length = self._ahead = end
        return hidden

    def _placed(self, t: int, parents: Sequence[int] | None) -> Branch | None:
        """Before a pass, places of its t tokens; None for a chain."""
        if self._threads is not None:
            self._threads.adapt()
        if self._length + t > self.context:
            raise ContextTooLong(self._length, t, self.context)
        if parents is not None:
            return self._branch(parents)
        require_chain(self._tree)
        self._tree = None
        return None

    def _replayed(self, recorded: RecordedPasses, ids: Tensor) -> Tensor:
        """A chain `ids` [T] in slots length.., up to its logits, as one recorded pass; more
        where there are exits, whose states are kept between passes."""
        start, end = self._length, self._length + len(ids)
        self._placed(len(ids), None)
        if not self._exits:
            logits, states = recorded.extend(ids, start)
        else:
            after, h = self._caught_up(ids, start)
            highest = max(self._exits)
            h = self._pointwise(h, after, highest, start, None)
            logits, states = recorded.finish(h, highest, start)
        self._length = self._ahead = end
        if self._final is not None:
            self._final[start:end] = states
        return logits

    # -- rounds on the device (cuda/rounds.py) ------------------------------------------------

    @property
    def kept_states(self) -> tuple[int, ...]:
        """After which layers states are kept, the last one counting as -1."""
        return (*self._exits, *([] if self._final is None else [-1]))

    def pass_through(self, h: Tensor, start: Tensor, layers: Layers) -> Tensor:
        first = 0
        for after, states in self._exits.items():
            h = layers.through(h, first, after, start, 0)
            states.index_copy_(0, start + torch.arange(len(h), device=h.device), h)
            first = after
        return layers.through(h, first, self.shape.layers, start, 0)

    def keep_final(self, states: Tensor, start: Tensor) -> None:
        if self._final is not None:
            at = start + torch.arange(len(states), device=states.device)
            self._final.index_copy_(0, at, states)

    def hold(self, length: int) -> None:
        self._length = self._ahead = length
        self._tree = None

    def answer_writer(
        self, drafter: Drafter, verifier: Verifier, length: DraftLength
    ) -> AnswerWriter:
        from .cuda.device_loop import DeviceLoop

        return DeviceLoop(self, drafter, verifier, length)

    def positions(self, start: int, t: int) -> Place:
        """The place of t new positions from `start`."""
        return chain_place(self._rope, self.shape, start, t)

    def _branch(self, parents: Sequence[int]) -> Branch:
        """New nodes of a tree, each of which sees its own branch alone."""
        self._tree = self._tree or Tree(self._length)
        depths, seen = self._tree.grow(parents)
        return torch.tensor(depths, device=self.device), seen.to(self.device)

    def final_norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weights.norm, self.shape.norm_eps)

    def _run(self, h: Tensor, first: int, last: int, start: int, branch: Branch | None) -> Tensor:
        """h [T, d] through the layers first..last-1. branch: None for a chain from `start` on."""
        t = len(h)
        if branch is None and self.recorded is not None and t <= WIDEST:
            return self.recorded.layers(h, first, last, start)
        if self.compiled is not None:
            reading = SequenceSlice(0, start, t, *(branch or (None, None)))
            made = self.compiled.through(h, first, last, reading)
            if made is not None:
                return made
        parts = self._rope, self.shape
        place = chain_place(*parts, start, t) if branch is None else tree_place(*parts, *branch)
        slots = self._slots(start, t, place, first, last)
        return through(h, self.weights.layers[first:last], self.shape, place, slots, self.pointwise)

    def _slots(self, start: int, t: int, place: Place, first: int, last: int) -> list[Slot]:
        return self._cache.slots(start, t, place.read(start + t), first, last)
