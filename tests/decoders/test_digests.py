"""Files are known by all that they hold, which is read once."""

import os
from pathlib import Path
from typing import Any

import pytest

from decoders.arms import recipe
from decoders.arms.file import fingerprint
from decoders.models import targets
from decoders.zoo import digests
from decoders.zoo.catalogue import sha256_of
from decoders.zoo.digests import digests_of

SIZE = 1_000_000


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []

    def read(path: Path) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "sha256_of", read)
    monkeypatch.setattr(digests, "SETTLED_S", -1.0)
    return names


def model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "model.safetensors"
    file.write_bytes(os.urandom(SIZE))
    return file


def change(file: Path, at: int = SIZE // 2) -> None:
    """A byte, and the times of the file that can be set are as before."""
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 70_000, SIZE - 1])
def test_a_change_anywhere_makes_another_model(at: int, taken: list[str], tmp_path: Path) -> None:
    file = model(tmp_path / "m")
    before = targets.fingerprint(file.parent)
    change(file, at)
    assert targets.fingerprint(file.parent) != before
    change(file, at)
    assert targets.fingerprint(file.parent) == before and len(before) == 8


def test_a_drafter_s_middle_counts_too(taken: list[str], tmp_path: Path) -> None:
    file = model(tmp_path / "m")
    arm: Any = {"d": recipe(name="d", kind="neural", drafter=str(file.parent))}
    before = fingerprint(arm)
    change(file)
    assert fingerprint(arm) != before


def test_a_file_is_read_once(taken: list[str], tmp_path: Path) -> None:
    file, other = model(tmp_path / "m"), model(tmp_path / "n")
    known = digests_of([file, other])
    assert known == [sha256_of(file), sha256_of(other)] and len(taken) == 2
    assert digests_of([other, file]) == known[::-1] and len(taken) == 2
    (tmp_path / "m").rename(tmp_path / "moved")
    assert digests_of([tmp_path / "moved" / file.name]) == known[:1] and len(taken) == 3


def test_a_file_that_has_just_changed_is_not_kept(
    taken: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", 1000.0)
    file = model(tmp_path / "m")
    assert digests_of([file]) == digests_of([file]) and len(taken) == 2


@pytest.mark.parametrize("broken", ["no folder", "nonsense", "a list", "no text"])
def test_what_is_kept_may_be_anything(broken: str, taken: list[str], tmp_path: Path) -> None:
    file = model(tmp_path / "m")
    cache = tmp_path / "cache"
    if broken == "no folder":
        cache.write_text("in the way")
    wanted = digests_of([file])
    for kept in (cache / "digests").glob("*") if broken != "no folder" else ():
        kept.write_bytes({"nonsense": b"{", "a list": b"[]", "no text": b"\xff"}[broken])
    assert digests_of([file]) == wanted == [sha256_of(file)] and len(taken) == 2
