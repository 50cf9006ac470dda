"""Rounded weights that were kept: the same bits, never another model's, never damaged ones."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, FITS_INT4, Tiny
from safetensors.torch import load_file, save_file

from decoders.backends.cpp.layers import stored
from decoders.backends.native import LlamaBackend
from decoders.backends.weights import packed, rounded_store
from decoders.backends.weights.packed import Rounding
from decoders.models import targets
from decoders.zoo.catalogue import COMPLETE


@pytest.fixture
def converted(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model as draftpick's own conversion leaves it, and an empty cache."""
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(tiny(**FITS_INT4), folder)
    (folder / COMPLETE).write_text("{}")
    return folder


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rounding]]:
    """What is rounded rather than recalled."""
    made: list[Rounding] = []

    def counted(rounding: Rounding, *given: Any) -> object:
        made.append(rounding)
        return packed.rounded(rounding, *given)

    monkeypatch.setattr(rounded_store, "rounded", counted)
    yield made


def load(folder: Path, rounding: Rounding = "int4") -> LlamaBackend:
    return targets.load_backend(folder, CPU, torch.bfloat16, "native", rounding)


def tensors(backend: LlamaBackend) -> list[torch.Tensor]:
    """All that a narrow pass multiplies by."""
    whole = backend.weights
    return [*(t for layer in whole.layers for t in stored(layer)), *whole.head.stored]


def same(one: LlamaBackend, other: LlamaBackend) -> bool:
    return all(map(torch.equal, tensors(one), tensors(other)))


def kept_folder(folder: Path) -> Path:
    return folder.parent / "cache" / "rounded"


def kept_in(folder: Path) -> Path:
    (path,) = kept_folder(folder).iterdir()
    return path


@pytest.mark.parametrize("rounding", ["int8", "int4"])
def test_a_second_start_rounds_nothing_and_has_the_same_bits(
    rounding: Rounding, converted: Path, tiny: Tiny, rounds: list[Rounding]
) -> None:
    plain, first = load(tiny(**FITS_INT4), rounding), load(converted, rounding)
    assert len(rounds) == 3 * 4 + 1  # layers of four matrices, and the head
    second = load(converted, rounding)
    assert len(rounds) == 13 and same(first, second) and same(second, plain)
    prompt = [3, 1, 4, 1, 5]
    assert torch.equal(second.prefill(prompt).logits, plain.prefill(prompt).logits)
    assert torch.equal(second.extend(torch.tensor([7])), plain.extend(torch.tensor([7])))


def test_a_model_that_draftpick_did_not_convert_leaves_nothing_behind(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path))
    load(tiny(**FITS_INT4))
    assert list(tmp_path.iterdir()) == []


def test_changed_weights_are_rounded_anew(converted: Path, rounds: list[Rounding]) -> None:
    """Also where neither the file's size, nor its head, nor its name or time tells."""
    first, weights = load(converted), converted / "model.safetensors"
    held = load_file(weights)
    held["model.layers.1.mlp.down_proj.weight"][3, 5] += 1
    save_file(held, weights, metadata={"format": "pt"})
    rounds.clear()
    second = load(converted)
    assert rounds == ["int4"] and not same(first, second)
    (converted / COMPLETE).unlink()
    assert same(second, load(converted))  # what is rounded without a store
    (converted / COMPLETE).write_text("{}")
    rounds.clear()
    assert same(load(converted), second) and rounds == []
    assert len(load_file(kept_in(converted))) == 2 * 13  # what is not used any more has gone


@pytest.mark.parametrize("harm", ["bit", "scale", "cut", "header", "empty"])
def test_a_damaged_file_is_made_again(
    harm: str, converted: Path, rounds: list[Rounding], capsys: pytest.CaptureFixture[str]
) -> None:
    first, path = load(converted), kept_in(converted)
    content = bytearray(path.read_bytes())
    if harm in ("bit", "scale"):
        content[-100 if harm == "bit" else len(content) // 4] ^= 1
    elif harm == "header":
        content[3] ^= 0xFF
    path.write_bytes(content[: {"cut": len(content) // 2, "empty": 0}.get(harm)])
    rounds.clear()
    capsys.readouterr()
    assert same(load(converted), first) and rounds
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"{path} is damaged; rounding the weights again"
    rounds.clear()
    assert same(load(converted), first) and rounds == []
    assert capsys.readouterr().err == ""


def test_another_pytorch_has_a_file_of_its_own(
    converted: Path, rounds: list[Rounding], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(converted)
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    load(converted)
    assert len(rounds) == 2 * 13 and len(list(kept_folder(converted).iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_said_once(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_folder(converted).parent.mkdir()
    kept_folder(converted).write_text("in the way")
    load(converted)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("the rounded weights could not be kept for the next start: ")
