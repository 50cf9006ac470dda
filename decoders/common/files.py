"""Files that are whole or not there: written next to their place, then renamed over it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO

from .errors import Damaged, DraftpickError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary stream whose content takes the place of `path` when the block ends well.

    A reader, or a kill at any moment, finds the old file or the new one; where the block raises,
    the old one stays. Folders are made. Raises OSError where the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        scratch.chmod(0o644)  # mkstemp lets nobody else read
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def check_folder(folder: Path, named: str) -> None:
    """Raises DraftpickError where this is not, and cannot become, a folder that takes files. What
    is tried leaves nothing behind.

    named: what it is, such as the option that gives it.
    """
    _check(folder, folder, named)


def check_file(path: Path, named: str) -> None:
    """Raises DraftpickError where no file of this name can be written, as in `check_folder`."""
    if os.path.isdir(path):
        raise DraftpickError(f"{named} {path} is a folder; name a file")
    _check(path, path.parent, named)


def _check(path: Path, folder: Path, named: str) -> None:
    place = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    if not place.is_dir():
        raise DraftpickError(f"{named} {path} cannot be written: {place} is a file")
    try:
        with suppress(FileNotFoundError):
            path.lstat()  # fails for a name that is too long
        tempfile.TemporaryDirectory(dir=place).cleanup()
    except OSError as error:
        raise DraftpickError(
            f"{named} {path} cannot be written ({error.strerror}); name another place"
        ) from None


def within(folder: Path, name: str) -> Path:
    """The file that another file calls by this name, in its folder. Raises Damaged where the name
    leads out of the folder."""
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts:
        raise Damaged(f"{folder} names a file outside of itself, {name!r}; fetch or copy it again")
    return folder / name


def whole_lines(path: Path) -> bytes:
    """A file's content; a last line that a kill left unfinished is cut off, there too."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by content at hand; text is written as UTF-8."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
