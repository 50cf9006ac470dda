"""Earlier answers that outlive their server: a file of tokens, written whole or not at all."""

from __future__ import annotations

import json
import sys
import threading
from array import array
from pathlib import Path

from ..common.errors import Damaged, DraftpickError
from ..common.files import write_atomically
from ..common.wording import in_words
from .answers import TOKENS, EarlierAnswers

FORMAT = "draftpick-earlier-1"
FILE = "earlier.bin"  # a line of JSON, then the tokens of all texts, 4 bytes each
EVERY_S = 60.0  # between two writes


class StoredAnswers(EarlierAnswers):
    """Reads what a folder holds, and writes it again every minute and when it is closed.

    target: fingerprint of what the tokens are of.

    Raises DraftpickError where the folder holds another target's answers, or cannot be read or
    written; Damaged for a file that is not whole.
    """

    def __init__(
        self,
        folder: Path,
        target: str,
        tokens: int = TOKENS,
        age_s: float | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        super().__init__(tokens, age_s)
        self._path, self._target = folder / FILE, target
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # answers are their users' own
            if self._path.exists():
                self._read(self._path.read_bytes())
            self.save()
        except OSError as error:
            raise DraftpickError(
                f"cannot keep earlier answers in {folder} ({in_words(error)})"
            ) from error
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._save_often, args=(every_s,), daemon=True)
        self._thread.start()

    def save(self) -> None:
        """Raises OSError where the disk refuses."""
        with self._lock:
            texts, tokens = list(self._texts), array("i")
            for kept in texts:
                tokens.extend(self._tokens_of(kept))
        head = {
            "format": FORMAT,
            "target": self._target,
            "byteorder": sys.byteorder,
            "texts": [[kept.user, kept.tokens, kept.since] for kept in texts],
        }
        write_atomically(self._path, json.dumps(head).encode() + b"\n" + tokens.tobytes())

    def close(self) -> None:
        """Write for the last time. Raises OSError."""
        self._over.set()
        self._thread.join()
        self.save()

    def _save_often(self, every_s: float) -> None:
        saved = self.added
        while not self._over.wait(every_s):
            if self.added == saved:
                continue
            saved = self.added
            try:
                self.save()
            except OSError as error:  # the server goes on, and tries again
                print(f"cannot write {self._path}: {error}", file=sys.stderr)

    def _read(self, content: bytes) -> None:
        line, _, body = content.partition(b"\n")
        tokens = array("i")
        try:
            head = json.loads(line)
            if head["format"] != FORMAT or head["byteorder"] != sys.byteorder:
                raise ValueError(head["format"])
            texts = [(str(user), int(n), float(since)) for user, n, since in head["texts"]]
            tokens.frombytes(body)
            if len(tokens) != sum(n for _, n, _ in texts) or min(tokens, default=0) < 0:
                raise ValueError("its length")
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{self._path} is damaged; delete it to begin without it") from error
        if head["target"] != self._target:
            raise DraftpickError(
                f"{self._path} holds answers of the target {head['target']}, not of "
                f"{self._target}; give another folder"
            )
        at = 0
        for user, n, since in texts:
            if n:
                self._enter(user, tokens[at : at + n].tolist(), since)
            at += n
