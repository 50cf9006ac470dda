"""The stored splits are llama.cpp's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from split_toys import TEXTS, golden, save_split

PYTHON = Path(__file__).parents[2] / ".engines" / "xllamacpp" / "bin" / "python"


@pytest.mark.engines
def test_the_stored_splits_are_llama_cpp_s(tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    for kind in golden():
        save_split(tmp_path / f"{kind}.gguf", kind)
    command = [PYTHON, Path(__file__).with_name("with_xllamacpp.py"), tmp_path]
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == golden()
