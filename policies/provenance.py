"""Where and with what a run was made: git commit, command line, versions, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("draftpick", "torch", "numpy", "scikit-learn", "mlflow", "transformers")


def provenance() -> dict[str, str]:
    """Tag name -> text. What cannot be found out says "unknown"; nothing is raised."""
    tags = {
        "git_sha": git_sha(),
        "argv": " ".join(sys.argv)[:500],
        "hardware": hardware(),
        "platform": platform.platform(),
        "version.python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            tags[f"version.{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return tags


def git_sha() -> str:
    """The commit that this package's source is at, "-dirty" behind it where files differ."""
    here = Path(__file__).resolve().parent
    try:
        # An installed copy may lie inside somebody else's repository: ours is one that tracks us.
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        sha = _git(here, "rev-parse", "HEAD")
        return f"{sha}-dirty" if _git(here, "status", "--porcelain", "-uno") else sha
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()


def hardware() -> str:
    """CPU model, cores that this process may use, and the GPU where torch (if loaded) sees one."""
    cpu = platform.processor() or platform.machine() or "unknown CPU"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        cpu = names[0] if names else cpu
    except OSError:
        pass
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{cpu}, {able} cores"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        text += f", {torch.cuda.get_device_name(0)}"
    return text
