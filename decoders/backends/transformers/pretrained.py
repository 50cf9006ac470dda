"""Models as transformers loads them, of which no weight is made up."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...common.errors import DraftpickError
from ...common.loggers import quiet
from ...common.tensor_files import require_all
from ..config import config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def method_of(config: dict[str, Any]) -> str | None:
    """Name the method that a config's weights are quantised by; None where they are not."""
    text = config.get("text_config") or {}
    found = config.get("quantization_config") or text.get("quantization_config")
    if not found:
        return None
    if isinstance(found, dict):
        usual = "bitsandbytes" if {"load_in_4bit", "load_in_8bit"} & found.keys() else "unknown"
        return str(found.get("quant_method") or usual)
    return "unknown"


def refusal(name: str, method: str) -> DraftpickError:
    return DraftpickError(
        f"{name} holds weights quantised by {method}, which cannot be run here; name the model's "
        "unquantised checkpoint, which --dtype int8 or int4 rounds as it is loaded, or a GGUF file"
    )


def require_runnable(folder: Path, device: torch.device) -> None:
    """Raises DraftpickError where transformers, with what is installed, does not run the weights of
    a folder on this device."""
    config = config_of(folder)
    method = method_of(config)
    if method is None:
        return
    from transformers.quantizers.auto import AutoHfQuantizer

    found = config.get("quantization_config") or config["text_config"]["quantization_config"]
    try:
        with quiet({"transformers": logging.ERROR}):
            quantizer = AutoHfQuantizer.from_config(dict(found), pre_quantized=True)
            quantizer.validate_environment(device_map={"": str(device)}, weights_only=None)
    except Exception as error:  # each library raises what it likes
        raise refusal(folder.name, method) from error


CPU = torch.device("cpu")


def load(
    auto: Any, folder: Path, dtype: torch.dtype, device: torch.device = CPU
) -> PreTrainedModel:
    """`auto.from_pretrained(folder)`, auto being one of transformers' Auto classes, on `device`.

    Raises Damaged where the files lack what the config asks for, and DraftpickError where
    transformers cannot load them.
    """
    require_runnable(folder, device)
    with explained(folder) as without:
        model, found = auto.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **without,
        )
    check(folder, found)
    if _shares_a_head_of_its_own(folder, model):
        require_all(folder, ["lm_head.weight"], [])
    loaded: PreTrainedModel = model.to(device)
    return loaded


def _shares_a_head_of_its_own(folder: Path, model: PreTrainedModel) -> bool:
    """Whether the folder's config asks for a head apart from the embedding, and transformers, which
    takes no notice of that in a T5, has put the embedding in the place of one that is not there."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("tie_word_embeddings") is not False:
        return False
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and head.weight is getattr(embedding, "weight", None)


def check(where: Path, found: dict[str, Any]) -> None:
    """found: what `output_loading_info` gave. Raises Damaged where a weight is made up."""
    other = [(name, tuple(has), tuple(wants)) for name, has, wants in found["mismatched_keys"]]
    require_all(where, found["missing_keys"], other)


@contextmanager
def explained(folder: Path) -> Iterator[dict[str, bool]]:
    """What transformers' `from_pretrained` has to be given. What it makes of a folder becomes a
    sentence, and its own reports stay out of the way. Want of memory is passed on.

    A model that brings Python code (`auto_map` in its config) is refused: transformers would ask on
    the terminal whether to run it, and take any `y` on standard input for an answer.
    """
    try:
        with quiet({"transformers": logging.CRITICAL}):
            yield {"trust_remote_code": False}
    except (DraftpickError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers raises many kinds
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise DraftpickError(
                f"{folder.name} cannot be loaded without code of its own (auto_map in its "
                "config.json), which draftpick never runs; take a model that transformers knows, "
                "or write a backend for it (CONTRIBUTING.md)"
            ) from error
        if "memory" in str(error).lower():
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DraftpickError(
            f"{folder} cannot be loaded by transformers ({lines[0].strip()}); fetch or save the "
            "model again, or name another"
        ) from error
