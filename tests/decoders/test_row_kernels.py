"""The Triton kernels: what they compute, and that they compile for a GPU where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from effort import slow_after

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def passes(script: str, interpreted: bool, chosen: str = "test") -> None:
    """Run a file of tests in a process of its own: Triton reads TRITON_INTERPRET once.

    chosen: an expression for pytest's -k.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", f"tests/decoders/{script}"]
    ran = {"TRITON_INTERPRET": str(int(interpreted)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "-k", chosen], cwd=ROOT, env=os.environ | ran, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.parametrize(
    "chosen", slow_after(1, ["not test_a_pass and not rounds", "test_a_pass", "rounds"])
)
def test_the_kernels_compute_what_pytorch_does(chosen: str) -> None:
    """Each by itself; whole passes of every shape; those of recorded rounds."""
    passes("row_kernels_check.py", not torch.cuda.is_available(), chosen)


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    passes("kernels_compile.py", interpreted=False)
