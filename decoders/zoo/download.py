"""Wheels by pip, which knows the user's own index, proxy and certificates; never installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..common.errors import DraftpickError


def download_wheel(pinned: str, folder: Path) -> Path:
    """The wheel of `DISTRIBUTION==VERSION` alone, in `folder`. Raises DraftpickError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder), pinned]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DraftpickError(
            f"pip could not download {pinned} ({last[0]}); check the network and try again, or "
            "name a local folder or hub id with --target"
        )
    return wheels[0]
