"""What `--backend auto` does with rounded weights on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from decoders.backends.llama import LlamaBackend
from decoders.errors import DraftpickError
from decoders.models import loaders
from decoders.models.loaders import LoadRequest, auto

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test says whether there are kernels; where they can be had, they would be compiled."""
    monkeypatch.setattr(loaders, "_blocked", lambda: False)


@pytest.fixture(scope="module")
def asked(tiny: Callable[..., Path]) -> LoadRequest:
    folder = tiny(hidden_size=64, intermediate_size=96)
    return LoadRequest(folder, CPU, torch.bfloat16, rounding="int4")


def test_a_small_model_is_not_compiled(asked: LoadRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "_compile", lambda *given: pytest.fail("compiled"))
    monkeypatch.setattr(loaders, "_blocked", lambda: pytest.fail("compiled"))
    backend = auto(asked)
    assert isinstance(backend, LlamaBackend) and backend.passes == "eager"


def test_a_large_one_is_and_the_way_out_is_named(
    asked: LoadRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(loaders, "LARGE", 1)
    monkeypatch.setattr(loaders, "_compile", lambda backend, words: compiled.append(words))
    auto(asked)
    assert compiled == [" (--backend native does without)"]


def test_without_a_compiler_it_runs_ordinary_passes_and_says_so(
    asked: LoadRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise DraftpickError("no C++ compiler here")

    monkeypatch.setattr(loaders, "LARGE", 1)
    monkeypatch.setattr(loaders, "_compile", refuse)
    backend = auto(asked)
    assert isinstance(backend, LlamaBackend) and backend.passes == "eager"
    said = capsys.readouterr().err.splitlines()
    assert said == ["running ordinary passes: no C++ compiler here"]
