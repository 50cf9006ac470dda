"""What `--dtype auto` chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoders.backends.weights.int4 import quantised
from decoders.models import precision
from decoders.models.precision import four_bit, precision_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def folder(tiny: Callable[..., Path]) -> Path:
    return tiny(hidden_size=64, intermediate_size=96)


@pytest.fixture(scope="module")
def rounded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, as a 4-bit file would give it back."""
    made = tmp_path_factory.mktemp("rounded")
    for path in folder.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    weights = load_file(made / "model.safetensors")
    for name, weight in weights.items():
        if "proj" in name:
            q, grid = quantised(weight.to(torch.bfloat16))
            scale, zero = grid.float().transpose(0, 1).repeat_interleave(32, 1).unbind(-1)
            weights[name] = ((q - 8) * scale + zero).contiguous()
    save_file(weights, made / "model.safetensors")
    return made


def test_a_four_bit_model_is_known_by_its_weights(folder: Path, rounded: Path) -> None:
    assert four_bit(rounded) and not four_bit(folder)


def test_auto_is_int4_for_a_four_bit_model_on_a_cpu(
    folder: Path, rounded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    assert precision_of("auto", rounded, CPU, "auto") == "int4"
    assert precision_of("auto", rounded, CPU, "native") == "int4"
    assert precision_of("auto", folder, CPU, "auto") == "bfloat16"
    assert precision_of("auto", rounded, CUDA, "auto") == "bfloat16"
    assert precision_of("auto", rounded, CPU, "hf") == "bfloat16"
    assert precision_of("float32", rounded, CPU, "auto") == "float32"
    monkeypatch.setattr(precision, "_has_kernels", lambda: False)
    assert precision_of("auto", rounded, CPU, "auto") == "bfloat16"


def test_sizes_that_do_not_fit_stay_as_they_are(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_has_kernels", lambda: True)
    monkeypatch.setattr(precision, "four_bit", lambda folder: True)
    odd = tiny(hidden_size=48, intermediate_size=40)
    assert precision_of("auto", odd, CPU, "auto") == "bfloat16"
