"""The Triton kernels: what they compute, and that they compile for a GPU where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def test_the_kernels_compute_what_pytorch_does() -> None:
    ran = {"TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "tests/decoders/row_kernels_check.py",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ran, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "skipped" not in done.stdout
