"""Tiny models, made once: random weights, saved as ordinary transformers folders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the helpers lie beside the tests

from decoder_toys import save_tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny products only lose by sharing


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(kind, seed=0, **config) -> folder of a random model, the same for the same call."""
    made: dict[tuple[Any, ...], Path] = {}

    def folder(kind: str = "llama", seed: int = 0, **config: Any) -> Path:
        key = (kind, seed, *sorted(config.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp(kind) / "model"
            save_tiny(made[key], kind, seed, config)
        return made[key]

    return folder
