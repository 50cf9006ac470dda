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


def passes(script: str, interpreted: bool, *chosen: str) -> None:
    """Run a file of tests in a process of its own: Triton reads TRITON_INTERPRET once.

    chosen: pytest's options that choose among them.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", f"tests/decoders/{script}"]
    command += chosen
    ran = {"TRITON_INTERPRET": str(int(interpreted)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ran, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "skipped" not in done.stdout


def test_the_kernels_compute_what_pytorch_does() -> None:
    """Each by itself: whole passes are below."""
    passes("row_kernels_check.py", not torch.cuda.is_available(), "-k", "not test_a_pass")


@pytest.mark.slow
def test_the_kernels_of_rounds_compute_what_pytorch_does() -> None:
    passes("round_kernels_check.py", interpreted=not torch.cuda.is_available())


@pytest.mark.slow
def test_the_kernels_compute_what_pytorch_does_at_every_shape() -> None:
    passes("row_kernels_check.py", not torch.cuda.is_available(), "-k", "test_a_pass")


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    passes("row_kernels_compile.py", interpreted=False)
