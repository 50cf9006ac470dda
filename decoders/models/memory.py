"""What a model needs of a device's memory, and the error where there is too little."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..backends.batched.slots import BatchSlots, Company
from ..backends.config import text_config_of
from ..backends.families import context_of, unsupported
from ..backends.gguf.folder import saved_header
from ..backends.llama.loading import parts
from ..backends.native import LlamaBackend
from ..backends.weights.packed import Rounding
from ..backends.weights.pickled import numbers_in, pickled
from ..common.errors import DraftpickError
from ..common.machine import available_bytes
from ..common.tensor_files import header_of
from ..protocols import Backend

GIB = 2**30
STEP = 1024  # contexts are proposed in multiples of it
OF_THE_SYSTEM = ("Cannot allocate memory", "can't allocate memory", "not enough memory")
ROUNDED: dict[Rounding, float] = {
    "int8": 1.0,
    "int4": 0.625,
}  # bytes a weight, scales and zeros included


class OutOfMemory(DraftpickError):
    """The device's memory does not hold the model, or a sequence."""


@dataclass(frozen=True)
class Need:
    """weights: bytes that they take at least, parameters of them in `precision`.
    position: bytes of one position's keys and values, 0 where the config does not say.
    context: positions, at most.
    """

    parameters: int
    precision: str
    weights: int
    position: int
    context: int

    def __str__(self) -> str:
        weights = (
            f"{self.parameters / 1e9:.2f} billion parameters in {self.precision} take "
            f"{self.weights / GIB:.1f} GiB"
        )
        if not self.position:
            return weights
        cache = self.context * self.position / GIB
        return f"{weights} and the keys and values of {self.context} positions {cache:.1f} GiB"


def need_of(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    rounding: Rounding | None,
    context: int | None,
) -> Need:
    """What a folder's model needs; parameters as its safetensors files say, or its pickles, or the
    GGUF files that it names.

    context: as given to load_backend.

    Raises Damaged where a file is not whole, and DraftpickError where a pickle holds more than
    tensors.
    """
    text = text_config_of(folder)
    pickles = pickled(folder)
    header = saved_header(folder)
    if header is not None:
        parameters = header.numbers
    else:
        parameters = sum(map(numbers_in, pickles) if pickles else map(_stored, parts(folder)))
    if rounding == "file" and header is not None:
        each = sum(tensor.size for tensor in header.tensors.values()) / parameters
    else:
        each = ROUNDED.get(rounding, 0.0) if rounding is not None else 0.0
        if rounding is None or device.type == "cpu":  # where they are kept besides the rounded ones
            each += dtype.itemsize
    positions = text.get("max_position_embeddings") or 0
    held = positions if unsupported(text) else context_of(text)
    return Need(
        parameters,
        "the file's blocks" if rounding == "file" else rounding or str(dtype).split(".")[-1],
        int(parameters * each),
        _position(text) * dtype.itemsize,
        min(context or held, positions),
    )


def require(name: str, need: Need, device: torch.device) -> None:
    """Raises OutOfMemory where the model cannot fit. On a CPU keys and values take memory only as
    sequences grow, so that weights alone have to."""
    free = free_bytes(device)
    if free is None:
        return
    grows = device.type == "cpu"
    if need.weights + (0 if grows else need.context * need.position) <= free:
        return
    room = 0 if grows or not need.position else (free - need.weights) // need.position
    advice = "use a smaller model or, unless it has experts, --dtype int8 or int4"
    if room >= STEP:
        advice = f"lower --context to {room // STEP * STEP}"
    raise OutOfMemory(
        f"{name} does not fit: {need}, but {free / GIB:.1f} GiB of {device} are free; {advice}"
    )


def shares_passes(target: object) -> bool:
    """Whether several answers can share the passes of such a target."""
    return isinstance(target, LlamaBackend)


def slots_of(
    target: Backend,
    n: int,
    batch_invariant: bool,
    read: Callable[[Any], Tensor],
    share_step: Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]],
    share_draft: Callable[[Any, Tensor, Tensor, Any], Tensor],
    turn: Callable[[], None],
) -> BatchSlots:
    """Room for n sequences that share the target's passes, and wait for each other by calls as of
    Company. Raises DraftpickError where it has no passes to share, or none on its device that are
    batch-invariant; OutOfMemory where there is no room."""
    if not isinstance(target, LlamaBackend):
        raise DraftpickError(
            f"answers share the passes of the native backend alone, and this target runs by "
            f"{type(target).__name__}; answer one at a time"
        )
    if batch_invariant and target.device.type != "cpu":
        raise DraftpickError(
            "on a GPU the last bits of an answer that shares passes depend on its company; for "
            "batch-invariant answers serve one at a time (--slots 1)"
        )
    with explained(target.device, f"making room for {n} answers at once"):
        company = Company(read, share_step, share_draft, None if batch_invariant else turn)
        return BatchSlots(target, n, batch_invariant, company)


@contextmanager
def explained(device: torch.device, doing: str) -> Iterator[None]:
    """Raises OutOfMemory, with what was being done and what is free, where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not _ran_out(error):
            raise
        free = free_bytes(device)
        left = "" if free is None else f"; {free / GIB:.1f} GiB are free now"
        raise OutOfMemory(
            f"{device} ran out of memory {doing}{left}; lower --context, shorten the prompt, or "
            "use a smaller model"
        ) from error


def free_bytes(device: torch.device) -> int | None:
    """What could still be taken, None where that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available_bytes() if device.type == "cpu" else None


def _stored(part: Path) -> int:
    """Numbers in a safetensors file. Raises Damaged as `header_of`."""
    return sum(map(math.prod, header_of(part).values()))


def _position(config: dict[str, int]) -> int:
    """Numbers of one position's keys and values."""
    heads = config.get("num_attention_heads")
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    if not (heads and layers and hidden):
        return 0
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * layers * kv_heads * (config.get("head_dim") or hidden // heads)


def _ran_out(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(words in str(error) for words in OF_THE_SYSTEM)
