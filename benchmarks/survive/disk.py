"""Disks that are full, read-only or slow, under `collect`, `train` and `serve`.

    python benchmarks/survive/disk.py --points 20

Each works on a small tmpfs, which only root may mount; elsewhere the script says so, and tries the
slow disk alone. A ballast file leaves some room, another amount at every point, so that each write
is once the one that no longer fits; then the ballast goes and the same command goes on.

- collect and train: one clear error (no traceback), what was stored is whole, and going on gives
  what an undisturbed run gives. On a read-only disk they say so before any work.
- serve: answers go on and are right while the log cannot be written; that is said once, and the
  log goes on where there is room again.
- slow: every write and every fsync takes --slow seconds; the same results, only later.

Exit status 1 says that something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from ending import end
from kill import collecting, rows, training
from soak import CHAT, numbers
from toy_server import Running, running

import policies
from decoders.common.errors import DraftpickError
from router.logs.reader import read_log
from router.logs.writer import DecisionLog

KIB, MIB = 2**10, 2**20
SIZE = 96 * MIB
REFUSALS = (DraftpickError, policies.PolicyError)
WHOLE, POLICY, STORE = "whole", "policy", "mlflow.db"  # of the undisturbed runs


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs at the folder. Raises PermissionError where it cannot be had."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PermissionError("a tmpfs cannot be mounted here; run it as root") from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@contextlib.contextmanager
def room(disk: Path, left: int) -> Iterator[None]:
    """So many bytes free, in whole pages."""
    ballast = disk / "ballast"
    held = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(bytes(max(0, held.f_bavail * held.f_frsize - left)))
    try:
        yield
    finally:
        ballast.unlink()


def refused(work: Callable[..., object], *given: object) -> str | None:
    """The sentence that it ends with; None where it ends well. Any other error comes out."""
    try:
        work(*given)
    except REFUSALS as error:
        return str(error)
    return None


def rooms(points: int, most: int) -> list[int]:
    """From none to so much, in equal steps."""
    return [most * point // max(1, points - 1) // (4 * KIB) * (4 * KIB) for point in range(points)]


# -- full ------------------------------------------------------------------------------------------


def collect_full(disk: Path, scratch: Path, points: int, wrong: list[str]) -> dict[str, Any]:
    whole = scratch / WHOLE
    must, refusals = rows(whole), 0
    size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    for point, left in enumerate(rooms(points, 2 * size)):
        folder = disk / f"rewards-{point}"
        with room(disk, left):
            said = refused(collecting, folder)
        refusals += said is not None
        if said is not None and "No space left" not in said:
            wrong.append(f"collect, {left} bytes: {said}")
        held = rows(folder) if (folder / "manifest.json").exists() else rows(scratch / "nothing")
        if held - must:
            wrong.append(f"collect, {left} bytes: rows that are wrong: {len(held - must)}")
        collecting(folder)
        if rows(folder) != must:
            wrong.append(f"collect, {left} bytes: not whole after going on")
        subprocess.run(["rm", "-r", str(folder)], check=True)
    return {"full disk: sweeps": points, "full disk: sweeps refused": refusals}


def train_full(disk: Path, scratch: Path, points: int, wrong: list[str]) -> dict[str, Any]:
    must, refusals = policies.load(scratch / POLICY).fingerprint, 0
    for point, left in enumerate(rooms(points, 2 * MIB)):
        store = disk / (f"new-{point}.db" if point % 2 else "mlflow.db")  # which needs more room
        folder = disk / f"policy-{point}"
        with room(disk, left):
            said = refused(training, folder, store)
        refusals += said is not None
        if said is not None and not ("full" in said or "No space left" in said):
            wrong.append(f"train, {left} bytes: {said}")
        if (folder / "policy.json").exists() and policies.load(folder).fingerprint != must:
            wrong.append(f"train, {left} bytes: another policy")
        if said := refused(training, folder, store):
            wrong.append(f"train, after {left} bytes: {said}")
        with contextlib.closing(sqlite3.connect(store)) as database:
            found = database.execute("PRAGMA integrity_check").fetchone()[0]
            if found != "ok":
                wrong.append(f"train, {left} bytes: SQLite says {found}")
        if point % 2:
            store.unlink()
    return {"full disk: trainings": points, "full disk: trainings refused": refusals}


def serve_full(disk: Path, points: int, wrong: list[str]) -> dict[str, Any]:
    log = disk / "log"
    with running("--log", log) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        asked = 0
        for left in rooms(points, 64 * KIB):
            with room(disk, left):
                for _ in range(20):
                    asked += 1
                    answered(http, asked, wrong)
            asked += 1
            answered(http, asked, wrong)  # with room again
        said_once(server, wrong)
    held = read_log(log)
    texts = {each.text.prompt for each in held.decisions if each.text is not None}
    if numbers(0, asked).text not in texts:
        wrong.append("serve: the log did not go on when there was room again")
    if len(texts) != len(held.decisions) or len(texts) >= asked:
        wrong.append(f"serve: {len(held.decisions)} lines of {len(texts)} requests for {asked}")
    return {
        "full disk: answers": asked,
        "full disk: answers that are not in the log": asked - len(texts),
        "full disk: lines cut short": held.broken,
    }


def answered(http: httpx.Client, turn: int, wrong: list[str]) -> None:
    """Asks once, and looks at the answer."""
    must = numbers(0, turn)
    body = {"messages": [{"role": "user", "content": must.text}], "max_tokens": 64}
    made = http.post(CHAT, json=body)
    said = made.json()["choices"][0]["message"]["content"] if made.status_code == 200 else made.text
    if said != must.answer:
        wrong.append(f"serve: {said!r} where {must.answer!r} was due")


def said_once(server: Running, wrong: list[str]) -> None:
    times = server.log.read_text(encoding="utf-8").count("was not logged")
    if times != 1:
        wrong.append(f"serve: that the log fails was said {times} times, not once")


# -- read-only, slow -------------------------------------------------------------------------------


def read_only(disk: Path, scratch: Path, wrong: list[str]) -> dict[str, Any]:
    log, must = disk / "written", 0
    with running("--log", log) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        answered(http, 1, wrong)
        remount(disk, "ro")
        try:
            for turn in range(2, 12):
                answered(http, turn, wrong)
            said_once(server, wrong)
            for name, work in (
                ("collect", lambda: collecting(disk / "rewards")),
                ("train", lambda: training(scratch / "policy", disk / "new.db")),
                ("train", lambda: training(disk / "policy", scratch / "other.db")),
                ("serve", lambda: DecisionLog(disk / "log")),
            ):
                said = refused(work)
                must += said is not None
                if said is None or not any(w in said for w in ("ead-only", "not writable")):
                    wrong.append(f"{name} on a read-only disk: {said}")
        finally:
            remount(disk, "rw")
    return {"read-only disk: refused with a sentence": must}


def slow(scratch: Path, each_s: float, wrong: list[str]) -> dict[str, Any]:
    """Every write of the log and every fsync takes so long."""
    took = 0

    def late(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: Any) -> Any:
            nonlocal took
            took += 1
            time.sleep(each_s)
            return real(*given)

        return write

    with mock.patch("os.fsync", late(os.fsync)), mock.patch("os.write", late(os.write)):
        collecting(scratch / "slow")
        training(scratch / "slow-policy", scratch / STORE)
    if rows(scratch / "slow") != rows(scratch / WHOLE):
        wrong.append("collect: a slow disk gives other rows")
    made = {policies.load(scratch / each).fingerprint for each in ("slow-policy", POLICY)}
    if len(made) > 1:
        wrong.append("train: a slow disk gives another policy")
    return {"slow disk: writes that were held up": took}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=20, help="amounts of room; default 20")
    parser.add_argument("--slow", type=float, default=0.05, metavar="SECONDS", help="default 0.05")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    given = parser.parse_args()

    figures, wrong = dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        collecting(scratch / WHOLE)
        training(scratch / POLICY, scratch / STORE)
        try:
            with small_disk(scratch / "of-collect") as disk:
                figures |= collect_full(disk, scratch, given.points, wrong)
            with small_disk(scratch / "of-train") as disk:
                figures |= train_full(disk, scratch, max(2, given.points // 2), wrong)
            with small_disk(scratch / "of-serve") as disk:
                figures |= serve_full(disk, given.points, wrong)
            with small_disk(scratch / "read-only") as disk:
                figures |= read_only(disk, scratch, wrong)
        except PermissionError as error:
            print(f"full and read-only disks are left out: {error}")
        figures |= slow(scratch, given.slow, wrong)
    end(figures, wrong, given.out)


if __name__ == "__main__":
    main()
