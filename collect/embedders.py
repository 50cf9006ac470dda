"""Embedders: what a policy reads of a query.

The default is the target's own state after the prompt, which answering needs anyway and which
costs nothing. Any other embedder reads the text of `query_text`, while queries are collected and
in the same way as when answering.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from decoders.common import hashing
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.identity import split
from decoders.common.plugins import watched
from decoders.common.wording import in_words
from decoders.zoo.catalogue import EMBEDDER, WHEELS

OWN = "target"
SENTENCE = "sentence"
BATCH = 32  # texts in one pass

# What decides a sentence-transformers model's vectors; other formats of its weights do not.
_PARTS = (".json", ".txt", ".model")
_WEIGHTS = (".safetensors", ".bin")
_OTHER_FORMATS = ("onnx", "openvino")  # folders
_CACHE_MARK = "complete.json"
_CATALOGUED = (EMBEDDER, WHEELS[EMBEDDER].distribution)  # two names of one model


@runtime_checkable
class Embedder(Protocol):
    """Texts to vectors.

    name: the space that the vectors lie in, `KIND@HASH` or `KIND:ARGUMENT@HASH`, from which
        `load_embedder` loads it again. HASH: six hex digits or more over its content.
    dimension: d, the vectors' width.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, d] float32, a row a text; a text's row does not depend on the others."""


# (argument, device) -> the embedder; None is for the target's own state.
Loader = Callable[[str, str], Embedder | None]


def query_text(messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a chat that is embedded: its last user message, without system message and
    earlier turns. For a collected query that is its first turn."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return asked[-1] if asked else messages[-1]["content"]


def load_embedder(asked: str, device: str = "auto") -> Embedder | None:
    """The embedder of a name; None for the target's own, of which there is nothing to load.

    asked: a kind (`target`, `sentence`), a kind with its argument (`sentence:all-minilm-l6-v2`), a
        sentence-transformers model by catalogue name, folder or hub id, or an embedder's own name,
        whose hash is then checked.
    device: auto, cpu or cuda.

    Raises DraftpickError where it is unknown, cannot be loaded or is no longer the same.
    """
    wanted, digest = _split_hash(asked)
    kind, _, argument = wanted.partition(":")
    if not wanted:
        raise DraftpickError(f"the embedder's name is empty; take {OWN}, or name a model")
    if kind not in EMBEDDERS:
        if not _is_model(wanted):
            known = [*EMBEDDERS, EMBEDDER, "a sentence-transformers folder or hub id"]
            raise NoSuchName("embedder", asked, known)
        kind, argument = SENTENCE, wanted
    found = EMBEDDERS[kind](argument, device)
    if found is not None and digest and digest != hash_of(found.name):
        raise DraftpickError(
            f"the embedder {wanted} has changed: {asked} was asked for, and what is there now is "
            f"{found.name}; restore the old one, or train a policy with this one"
        )
    return found


def is_own(name: str) -> bool:
    """Whether a space is the target's own."""
    return kind_of(name) == OWN


def kind_of(name: str) -> str:
    """The key in `EMBEDDERS` that an embedder's name begins with."""
    return _split_hash(name)[0].partition(":")[0]


def hash_of(name: str) -> str:
    """The hash that an embedder's name ends with; "" where it has none."""
    return _split_hash(name)[1]


def same_space(one: str, other: str) -> bool:
    """Whether two names mean one space: the same name, or the same content in another place."""
    alike = kind_of(one) == kind_of(other) and hash_of(one) == hash_of(other) != ""
    return one == other or alike


class SentenceEmbedder:
    """A sentence-transformers model from a local folder; it is loaded when first used.

    Raises DraftpickError where the package is missing or the folder holds no such model.
    """

    def __init__(self, folder: str | Path, called: str = "", device: str = "auto") -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._called, self._device = called or str(self.folder), device
        if find_spec("sentence_transformers") is None:
            raise DraftpickError(
                f"the embedder {self._called} needs the package sentence-transformers: `pip "
                "install sentence-transformers`, or take the target's own (`--embedder target`)"
            )
        if not any((self.folder / name).is_file() for name in ("modules.json", "config.json")):
            raise DraftpickError(
                f"{self.folder} holds no sentence-transformers model (neither modules.json nor "
                "config.json); name the folder that `SentenceTransformer.save` wrote"
            )

    @cached_property
    def name(self) -> str:
        return f"{SENTENCE}:{self._called}@{content_hash(self.folder)}"

    @property
    def dimension(self) -> int:
        return int(self._model.get_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Texts longer than the model reads are cut at their end, as sentence-transformers does."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        found = self._model.encode(
            list(texts), batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(found, dtype=np.float32)  # [n, d]

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        from decoders.models.targets import device_of

        device = str(device_of(self._device))
        logging.disable_progress_bar()
        try:
            model = SentenceTransformer(str(self.folder), device=device, local_files_only=True)
        except Exception as error:  # it raises many kinds; each means "no such model"
            raise DraftpickError(
                f"{self.folder} cannot be loaded by sentence-transformers ({in_words(error)})"
            ) from error
        _require_weights(model)
        return model


def _require_weights(model: Any) -> None:
    """Raises Damaged where transformers made up a weight of the model's first part. A pooler's
    would not matter: sentence-transformers pools the tokens' states itself."""
    from decoders.backends.transformers import pretrained

    inner = getattr(model[0], "auto_model", None)
    if inner is None:
        return
    folder = Path(inner.name_or_path)
    with pretrained.explained(folder):
        _, found = type(inner).from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True
        )
    missing = [name for name in found["missing_keys"] if not name.startswith("pooler.")]
    pretrained.check(folder, {**found, "missing_keys": missing})


def load_sentence(argument: str = "", device: str = "auto") -> SentenceEmbedder:
    """A sentence-transformers model: catalogue name (the default where none is given), folder or
    hub id."""
    asked = argument or EMBEDDER
    if Path(asked).expanduser().is_dir():
        return SentenceEmbedder(asked, device=device)
    if asked in _CATALOGUED:
        from decoders.zoo import fetch

        return SentenceEmbedder(fetch(EMBEDDER), EMBEDDER, device)
    if not _is_hub_id(asked):
        raise DraftpickError(
            f"no such folder of a sentence-transformers model: {asked}; if it has moved, give its "
            "new place with --embedder"
        )
    return SentenceEmbedder(_snapshot(asked), asked, device)


def target_own(argument: str = "", device: str = "auto") -> None:
    """Nothing to load: the target embeds a prompt as it reads it."""
    if argument:
        raise DraftpickError(
            f"the embedder {OWN!r} is the loaded target's own; give `--embedder {OWN}`, "
            f"without {argument!r}"
        )


EMBEDDERS: dict[str, Loader] = {OWN: target_own, SENTENCE: load_sentence, "hashing": hashing.load}
watched("embedder", EMBEDDERS)


def content_hash(folder: Path) -> str:
    """Twelve hex digits over the configuration, tokenizer and weights of a model folder."""
    places = [
        place
        for place in (path.relative_to(folder) for path in sorted(folder.rglob("*")))
        if place.suffix in (*_PARTS, *_WEIGHTS) and place.name != _CACHE_MARK
        if not any(part.startswith(".") or part in _OTHER_FORMATS for part in place.parts)
    ]
    twice = any(place.suffix == ".safetensors" for place in places)  # .bin: the same numbers again
    digest = hashlib.sha256()
    for place in places:
        if twice and place.suffix == ".bin":
            continue
        digest.update(place.as_posix().encode() + b"\0")
        with (folder / place).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:12]


def _snapshot(hub_id: str) -> Path:
    from decoders.models import hub

    try:
        return hub.snapshot(hub_id, ["*.bin"], [f"{name}/*" for name in _OTHER_FORMATS])
    except Exception as error:  # the hub client raises many kinds; each means "not to be had"
        raise DraftpickError(
            f"the embedder {hub_id!r} is neither a local folder nor a hub id that could be fetched "
            f"({in_words(error)})"
        ) from error


def _is_model(asked: str) -> bool:
    """Whether a name without its kind can be a sentence-transformers model's."""
    return asked in _CATALOGUED or "/" in asked or Path(asked).expanduser().is_dir()


def _is_hub_id(asked: str) -> bool:
    return asked.count("/") == 1 and all(asked.split("/")) and asked[0] not in ".~"


def _split_hash(name: str) -> tuple[str, str]:
    """A name without its hash, and the hash; "" where it has none."""
    named, digest, rest = split(name)
    return (name, "") if rest else (named, digest)
