"""What is stored of llama.cpp is its own: splits of texts, texts of tokens, and chances of small
models' tokens."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gguf_toys import ARCHITECTURES, GOLDEN, LONGER, save_golden_gguf
from spelling_toys import FILES, save_gguf
from spelling_toys import GOLDEN as GOLDEN_TEXTS
from split_toys import TEXTS, golden, save_split

PYTHON = Path(__file__).parents[2] / ".engines" / "xllamacpp" / "bin" / "python"
pytestmark = pytest.mark.engines


def said(script: str, folder: Path) -> Any:
    command = [PYTHON, Path(__file__).with_name(script), folder]
    done = subprocess.run(command, capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_stored_splits_are_llama_cpp_s(tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    for kind in golden():
        save_split(tmp_path / f"{kind}.gguf", kind)
    assert said("with_xllamacpp.py", tmp_path) == golden()


def test_the_stored_texts_are_llama_cpp_s(tmp_path: Path) -> None:
    for kind in FILES:
        save_gguf(tmp_path / f"{kind}.gguf", kind)
    assert said("with_xllamacpp_texts.py", tmp_path) == json.loads(GOLDEN_TEXTS.read_text())


def test_the_stored_chances_are_llama_cpp_s(tmp_path: Path) -> None:
    (tmp_path / "prompt.json").write_text(json.dumps(LONGER))
    for architecture in ARCHITECTURES:
        save_golden_gguf(tmp_path / f"{architecture}.gguf", architecture)
    found = said("with_xllamacpp_logits.py", tmp_path)
    assert found.keys() == set(ARCHITECTURES)
    for architecture, stored in json.loads(GOLDEN.read_text()).items():
        assert found[architecture] == pytest.approx(stored, abs=1e-3)
