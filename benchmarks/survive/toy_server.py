"""The server of toys.py as those know it who ask it: how it starts, and which answer is due."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TIMES = 4  # that an answer says its number
LONGEST_NUMBER = 12


def expected(special: int, text: str) -> str:
    """The answer to a prompt of this text, which has so many special tokens."""
    found = re.search(rf"[0-9]{{1,{LONGEST_NUMBER}}}", text)
    return f"{special}:" + " ".join([found[0] if found else "none"] * TIMES)


def special_tokens(messages: int) -> int:
    """What the template writes around so many messages."""
    return 2 * messages + 1


@dataclass
class Running:
    """A server in a process of its own. log: what it wrote to standard error."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def resident(self) -> int:
        """Bytes of its memory, as Linux tells them."""
        words = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", words)[0]) * 1024


@contextmanager
def running(*options: object, seconds: float = 120) -> Iterator[Running]:
    """The toys' server on a free port of 127.0.0.1, with the options of this script; it is killed
    at the end. Raises SystemExit where it does not start in time."""
    command = [sys.executable, str(HERE / "toys.py"), *map(str, options)]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            path, until = Path(log.name), time.monotonic() + seconds
            while not (found := re.search(r"serving on (\S+)\n", path.read_text(encoding="utf-8"))):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(
                        f"the toys' server did not start: {path.read_text(encoding='utf-8')}"
                    )
                time.sleep(0.02)
            yield Running(found[1], process, path)
        finally:
            process.kill()
            process.wait()
