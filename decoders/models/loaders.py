"""Ways to run a model, by the name that `--backend` may say. A new one is a function and a line in
BACKENDS, from outside BACKENDS["mine"] = load. Nothing heavy is imported before a model is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.config import config_of
from ..common.errors import DraftpickError
from ..common.plugins import watched

if TYPE_CHECKING:
    import torch

    from ..backends.native import LlamaBackend
    from ..backends.weights.packed import Rounding
    from ..backends.weights.rounded_store import RoundedStore
    from ..protocols import Backend
    from .memory import Need


@dataclass(frozen=True)
class LoadRequest:
    """A model to load.

    folder: a transformers model folder.
    device, dtype: where the weights go, and as what.
    rounding: of the weights, "int8" or "int4"; "file" leaves a GGUF file's as they are; None for
        none.
    context: positions to make room for, at most the model's own; None for those.
    """

    folder: Path
    device: torch.device
    dtype: torch.dtype
    rounding: Rounding | None = None
    context: int | None = None


WORTH_COMPILING = 50_000_000  # parameters above which compiling the kernels is worth a minute

Loader = Callable[[LoadRequest], "Backend"]


def loader_of(backend: str) -> Loader:
    """Raises DraftpickError with the names that exist."""
    if backend not in BACKENDS:
        raise DraftpickError(f"unknown backend {backend!r}; use {', '.join(BACKENDS)}")
    return BACKENDS[backend]


def is_encoder_decoder(folder: Path) -> bool:
    """Whether the model reads its prompt in an encoder, as T5 does."""
    return bool(config_of(folder).get("is_encoder_decoder", False))


def not_native(folder: Path, context: int | None = None) -> str | None:
    """Why the native backend cannot run a model, with room for so many positions; None where it
    can."""
    from ..backends.families import context_of, unsupported
    from ..backends.weights.pickled import pickled

    config = config_of(folder)
    reason = unsupported(config)
    if reason is None and pickled(folder):
        return "its weights are pickled (pytorch_model*.bin), and the native one reads safetensors"
    if reason is None and context is not None:
        held = context_of(config)
        if held < min(context, config["max_position_embeddings"]):
            return f"its positions turn in another way beyond {held} (longrope)"
    return reason


def auto(asked: LoadRequest) -> Backend:
    """Native where the architecture fits, else transformers. On CUDA the native passes are recorded
    as CUDA graphs, of fused kernels where the model fits them. On a CPU the layers of a model with
    rounded weights, or in bfloat16 where that is faster, are run by kernels in C++, if it is large
    enough to pay and there is a compiler."""
    reason = not_native(asked.folder, asked.context)
    if reason is None:
        pays = (
            asked.device.type == "cpu"
            and (asked.rounding is not None or _faster_in_bfloat16(asked))
            and _need(asked).parameters >= WORTH_COMPILING
        )
        kernels = "auto" if asked.device.type == "cuda" else None
        backend = native(asked, kernels, blocked=pays)
        if pays and _blocked():
            try:
                backend.compile_layers()
            except DraftpickError as error:
                print(f"running ordinary passes: {error}", file=sys.stderr)
        return backend
    from ..backends.transformers.pretrained import require_runnable

    require_runnable(asked.folder, asked.device)  # before anything is said
    print(f"using the transformers backend for {asked.folder.name}: {reason}", file=sys.stderr)
    return hf(asked)


def native(asked: LoadRequest, kernels: str | None = None, blocked: bool = False) -> LlamaBackend:
    """Llama-shaped models, an operation after the other.

    kernels: those of the passes to record, "fused", "graphs" or "auto"; None records none.
    blocked: multiply by kernels in C++, where they can be had.
    """
    from ..backends.native import LlamaBackend

    if asked.rounding is not None:
        _check_rounding(asked)
    _check_native(asked)
    if asked.rounding == "file" and not _blocked():
        asked = replace(asked, rounding=None)  # PyTorch has no products of such blocks
    with _in_memory(asked):
        blocked = blocked and _blocked()
        backend = LlamaBackend.load(
            asked.folder,
            asked.device,
            asked.dtype,
            asked.context,
            asked.rounding,
            _store(asked, blocked),
            blocked,
        )
        if kernels is not None:
            _record(backend, kernels, asked.folder.name)
    return backend


def hf(asked: LoadRequest) -> Backend:
    """Through transformers: any decoder-only model, and T5-like encoder-decoders. GGUF files are
    converted first."""
    from ..backends.gguf.folder import files_of
    from ..zoo import converted

    files = files_of(asked.folder)
    if len(files) > 1:
        raise DraftpickError(
            f"transformers does not read {files[0].name} in parts; join them first"
        )
    if files:
        asked = replace(asked, folder=converted(files[0]))
    if asked.rounding is not None:
        _check_rounding(asked)
        raise DraftpickError(
            f"{asked.rounding} weights need the native backend, and {asked.folder.name} runs "
            "through transformers; use --dtype bfloat16"
        )
    from ..backends.cuda import use_kernels
    from ..backends.transformers.pretrained import require_runnable

    require_runnable(asked.folder, asked.device)
    use_kernels(asked.device)
    with _in_memory(asked):
        if is_encoder_decoder(asked.folder):
            from ..backends.transformers.hf_seq2seq import HFSeq2SeqBackend

            return HFSeq2SeqBackend.load(asked.folder, asked.device, asked.dtype, asked.context)
        from ..backends.transformers.hf import HFBackend

        return HFBackend.load(asked.folder, asked.device, asked.dtype, asked.context)


def recorded(asked: LoadRequest, kernels: str) -> Backend:
    """Native, its passes recorded as CUDA graphs. kernels: "fused", or PyTorch's own, "graphs"."""
    if asked.device.type != "cuda":
        raise DraftpickError(f"graphs are recorded on CUDA, not on {asked.device.type}; use native")
    return native(asked, kernels)


def compiled(asked: LoadRequest) -> Backend:
    """Native, its layers run by kernels in C++, on a CPU."""
    import torch

    if asked.device.type != "cpu" or asked.dtype != torch.bfloat16:
        raise DraftpickError(
            "the kernels in C++ are for int4, int8 and bfloat16 weights on a CPU: add --dtype "
            "int4, int8 or bfloat16 (and --device cpu), or use native"
        )
    if not _blocked():
        raise DraftpickError(
            "the kernels in C++ take a CPU with AVX2 or a 64-bit Arm, and a C++ compiler that "
            "PyTorch can use, g++ or clang++: install one, name it by CXX, or use --backend native"
        )
    backend = native(asked, blocked=True)
    backend.compile_layers()
    return backend


BACKENDS: dict[str, Loader] = {
    "auto": auto,
    "native": native,
    "hf": hf,
    "fused": partial(recorded, kernels="fused"),
    "graphs": partial(recorded, kernels="graphs"),
    "compiled": compiled,
}
watched("backend", BACKENDS)


def _need(asked: LoadRequest) -> Need:
    from .memory import need_of

    return need_of(asked.folder, asked.device, asked.dtype, asked.rounding, asked.context)


def _faster_in_bfloat16(asked: LoadRequest) -> bool:
    """Whether the kernels beat oneDNN's products in bfloat16: by vectors they do, tiles (AMX) and
    Arm were not timed."""
    import torch

    from ..backends.cpp_kernels import instructions

    return asked.dtype == torch.bfloat16 and instructions() in ("AVX512_BF16", "AVX512", "AVX2")


@cache
def _blocked() -> bool:
    """Whether the kernels for weights in blocks are available. If not, one line reports it."""
    return _kernels()


def draw_by_kernels(device: torch.device) -> None:
    """Let tokens be drawn by the kernels in C++ where these are there, whatever runs the model."""
    if device.type == "cpu":
        _kernels(compiling=False)


def _kernels(compiling: bool = True) -> bool:
    from ..backends.cpp_kernels import load_kernel
    from ..zoo.catalogue import cache_dir

    say = partial(print, file=sys.stderr, flush=True)
    return load_kernel(cache_dir() / "compiled", say, compiling)


def _store(asked: LoadRequest, blocked: bool) -> RoundedStore | None:
    """Place of the rounded weights of a model that draftpick converted; None for others."""
    from ..backends.weights.rounded_store import RoundedStore
    from ..zoo.catalogue import COMPLETE, cache_dir

    if asked.rounding in (None, "file") or asked.device.type != "cpu":
        return None
    if not (asked.folder / COMPLETE).is_file():
        return None
    name, say = f"{asked.folder.name}-{asked.rounding}", partial(print, file=sys.stderr, flush=True)
    return RoundedStore(cache_dir() / "rounded", name, say, blocked)


@contextmanager
def _in_memory(asked: LoadRequest) -> Iterator[None]:
    """Raises OutOfMemory where the model does not fit, before or while it is loaded."""
    from . import memory

    name, device, need = asked.folder.name, asked.device, _need(asked)
    memory.require(name, need, device)
    with memory.explained(device, f"loading {name}, of which {need}"):
        yield


def _record(backend: LlamaBackend, kernels: str, name: str) -> None:
    """Passes as CUDA graphs, of fused kernels where `kernels` asks for them or leaves it open and
    they can run."""
    import torch

    from ..backends.cuda import fused
    from ..backends.cuda.recorded import cuda_graphs

    if not backend.recordable:
        said = f"{name}'s layers choose among experts, which cannot be recorded"
        if kernels != "auto":
            raise DraftpickError(f"{said}; use --backend native")
        print(f"running ordinary passes: {said}", file=sys.stderr)
        return
    reason = None
    if kernels != "graphs":
        reason = fused.unsupported_reason(backend.shape, backend.weights)
        reason = reason or fused.broken(backend.device)
    if kernels == "fused" and reason is not None:
        raise DraftpickError(f"{name} cannot run by fused kernels: {reason}; use --backend graphs")
    if reason is not None and backend.dtype == torch.bfloat16:
        print(f"recording PyTorch's kernels for {name}: {reason}", file=sys.stderr)
    backend.record_passes(cuda_graphs(), fuse=kernels != "graphs" and reason is None)


def _check_native(asked: LoadRequest) -> None:
    from ..backends.families import experts_of
    from ..backends.llama.shape import EXPERTS_STAY, not_int4
    from ..backends.transformers.pretrained import method_of, refusal

    name, reason = asked.folder.name, not_native(asked.folder, asked.context)
    method = method_of(config_of(asked.folder))
    if method is not None:
        raise refusal(name, method)
    if reason is not None:
        raise DraftpickError(f"the native backend cannot run {name}: {reason}")
    config = config_of(asked.folder)
    if asked.rounding in ("int8", "int4") and experts_of(config) is not None:
        raise DraftpickError(
            f"{name} cannot be rounded to {asked.rounding}: {EXPERTS_STAY}; use --dtype file of a "
            "GGUF file, or bfloat16"
        )
    unsupported_reason = not_int4(config) if asked.rounding == "int4" else None
    if unsupported_reason is not None:
        raise DraftpickError(
            f"{name} cannot be rounded to int4: {unsupported_reason}; use --dtype int8 or bfloat16"
        )


def _check_rounding(asked: LoadRequest) -> None:
    """Whether the device has rounded weights."""
    import torch

    from ..backends.weights.int4 import CUDA_CAPABILITY

    if asked.rounding == "file" and asked.device.type != "cpu":
        raise DraftpickError("a GGUF file's own blocks are for CPUs; use --dtype bfloat16")
    if asked.device.type not in ("cpu", "cuda"):
        raise DraftpickError(f"{asked.rounding} weights are for CPU and CUDA; use --dtype bfloat16")
    if asked.rounding == "int4" and asked.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(asked.device)
        if (major, minor) < CUDA_CAPABILITY:
            raise DraftpickError(
                f"int4 weights need a GPU of compute capability 8.0, and this one has {major}."
                f"{minor}; use --dtype int8"
            )
