"""Checkpoints whose weights are stored quantised: transformers runs some of them, with packages of
their own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from ...common.errors import DraftpickError
from ...common.loggers import quiet
from ..config import config_of


def method_of(config: dict[str, Any]) -> str | None:
    """What a config says its weights are quantised by; None where they are not."""
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
