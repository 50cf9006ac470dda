"""The log's folder, which any number of threads and processes may write to at once.

A line is one write at the end of a file opened for appending, so lines do not mix on a local disk.
A file that has reached its size is left as it is, and every writer goes on in the one with the next
number: nothing is renamed, nothing locked. A line that a kill or a full disk cut short is closed by
the next writer's line break, and the reader counts it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
from pathlib import Path

from decoders.common.files import check_folder
from decoders.common.wording import in_words

from .record import LoggedDecision

FILE = re.compile(r"decisions-(\d{6,})\.jsonl")
MAX_BYTES = 64 * 1024 * 1024


def log_files(folder: Path) -> list[Path]:
    """The log's files in the order in which they were started."""
    found = [(int(m[1]), path) for path in folder.iterdir() if (m := FILE.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


class DecisionLog:
    """Adds decisions to the log in a folder, which is made with the first one.

    embeddings: keep the request's embedding, which judging policies that read it needs. A prompt
        can be guessed from its embedding, so it is kept only where asked for.
    text: keep the last user message, all that the target read, as ids, and the answer.
    max_bytes: size at which a new file begins.
    lost: how many decisions could not be written.

    Raises DraftpickError where the folder is a file or cannot be written to.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        embeddings: bool = False,
        text: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.folder = Path(folder)
        self.embeddings, self.text, self.max_bytes = embeddings, text, max_bytes
        self.lost = 0
        self._number = 0  # of the file written to last
        self._lock = threading.Lock()
        check_folder(self.folder, "the log")

    def add(self, decision: LoggedDecision) -> None:
        """Write one line. Never raises OSError: the first failure is reported on standard error,
        and all are counted in `lost`."""
        line = decision.model_dump_json(exclude_none=True).encode("utf-8") + b"\n"
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                self.lose(error)

    def lose(self, error: Exception) -> None:
        """Count a decision that is not in the log; say so the first time."""
        self.lost += 1
        if self.lost == 1:
            why = (isinstance(error, OSError) and error.strerror) or in_words(error)
            with contextlib.suppress(OSError):  # standard error may be on the same full disk
                print(
                    f"warning: a decision was not logged to {self.folder} ({why}); answering goes "
                    "on, and further failures are not reported",
                    file=sys.stderr,
                    flush=True,
                )

    def _append(self, line: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._number:
            held = log_files(self.folder)
            self._number = int(FILE.fullmatch(held[-1].name)[1]) if held else 1  # type: ignore[index]
        while True:
            path = self.folder / f"decisions-{self._number:06d}.jsonl"
            stream = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                size = os.fstat(stream).st_size
                if size < self.max_bytes:
                    torn = size > 0 and os.pread(stream, 1, size - 1) != b"\n"
                    whole = b"\n" * torn + line
                    if os.write(stream, whole) < len(whole):
                        raise OSError(errno.ENOSPC, "the disk took only a part of the line")
                    return
            finally:
                os.close(stream)
            self._number += 1
