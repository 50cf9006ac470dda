"""What a GGUF file says of itself: its metadata, and where each tensor lies.

The package `gguf` reads a vocabulary of 150 thousand tokens in ten seconds, as it makes an array of
each; here strings that nobody asks for are passed over. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.errors import Damaged, DraftpickError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING, ARRAY = 8, 9
MAX_ARRAY_STRINGS = 4096  # an array of more strings is not read, its length is
PART_NAME = re.compile(r"^(?P<stem>.*)-(?P<nth>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True)
class StoredTensor:
    """shape: as PyTorch has it, rows first.
    kind: its number in GGUF.
    part, offset, size: which of the model's files it is in, from which byte on, and how many.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    part: int
    offset: int
    size: int


@dataclass(frozen=True)
class Header:
    """Header of a whole model, in one file or in several parts.

    metadata: of the first file; of long arrays of strings their lengths.
    """

    files: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    def own(self, name: str, otherwise: Any = None) -> Any:
        """A field that begins with the architecture's name."""
        return self.metadata.get(f"{self.architecture}.{name}", otherwise)

    @property
    def numbers(self) -> int:
        """How many numbers all tensors hold."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])


def parts_of(path: Path) -> tuple[Path, ...]:
    """A model's files, of which `path` is one. Raises DraftpickError where a part is missing."""
    named = PART_NAME.match(path.name)
    if named is None:
        return (path,)
    count = int(named["count"])
    names = [f"{named['stem']}-{nth:05}-of-{count:05}.gguf" for nth in range(1, count + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise DraftpickError(
            f"{path.name} is one of {count} parts, and {path.parent} lacks {', '.join(missing)}"
        )
    return tuple(path.parent / name for name in names)


def read_header(path: Path) -> Header:
    """Raises Damaged where a file is not whole, and DraftpickError where it is no GGUF file, a part
    is missing, or weights are of a kind that is not known."""
    files = parts_of(path)
    metadata: dict[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for part, file in enumerate(files):
        own, found = _read(file, part)
        metadata = metadata or own
        tensors |= found
    if "general.architecture" not in metadata:
        raise Damaged(f"{path} does not say which architecture it has; convert the model again")
    promised = metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise Damaged(f"{path} and its parts hold {len(tensors)} tensors of {promised}")
    return Header(files, metadata, tensors)


def token_texts(header: Header) -> list[str]:
    """The texts of all tokens, which `metadata` lacks where they are many. Raises Damaged where
    there are none."""
    known = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(known, list):
        return known
    with (
        header.files[0].open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        found = _Reader(content).strings("tokenizer.ggml.tokens")
    if found is None:
        raise Damaged(f"{header.files[0]} holds no tokens; fetch or convert it again")
    return found


def _read(file: Path, part: int) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise DraftpickError(f"{file} is no GGUF file")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                metadata, tensors = _Reader(content).header(file, part)
    except (struct.error, ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise Damaged(f"{file} is cut short or damaged; fetch it again") from error
    end = max((each.offset + each.size for each in tensors.values()), default=0)
    if end > size:
        raise Damaged(f"{file} is cut short: it has {size:,} bytes of {end:,}; fetch it again")
    return metadata, tensors


class _Reader:
    """Reads on from a place of the file's content."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, 0

    def header(self, file: Path, part: int) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        self._at = len(MAGIC)
        version, count, fields = self._numbers("IQQ")
        if version not in VERSIONS:
            raise DraftpickError(f"{file} is of GGUF version {version}; 2 and 3 can be read")
        metadata = {}
        for _ in range(fields):
            name = self._string()
            metadata[name] = self._value(self._number("I"))
        listed = [self._tensor() for _ in range(count)]
        each = metadata.get("general.alignment", 32)
        begin = -(-self._at // each) * each
        return metadata, {
            name: StoredTensor(
                name, shape, kind, part, begin + at, size_of(file, name, shape, kind)
            )
            for name, shape, kind, at in listed
        }

    def strings(self, wanted: str) -> list[str] | None:
        """A field that is an array of strings, however many."""
        self._at = len(MAGIC)
        _, _, fields = self._numbers("IQQ")
        for _ in range(fields):
            name, kind = self._string(), self._number("I")
            if name == wanted and kind == ARRAY:
                of, count = self._numbers("IQ")
                return [self._string() for _ in range(count)] if of == STRING else None
            self._value(kind)
        return None

    def _numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._content, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _number(self, form: str) -> Any:
        return self._numbers(form)[0]

    def _string(self) -> str:
        length = self._number("Q")
        found = self._content[self._at : self._at + length]
        if len(found) < length:
            raise ValueError
        self._at += length
        return found.decode()

    def _value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError
        of, count = self._numbers("IQ")
        if of in NUMBERS:
            return list(self._numbers(f"{count}{NUMBERS[of]}"))
        if of != STRING:
            raise ValueError
        if count <= MAX_ARRAY_STRINGS:
            return [self._string() for _ in range(count)]
        length, content, at = struct.Struct("<Q"), self._content, self._at
        for _ in range(count):
            at += 8 + length.unpack_from(content, at)[0]
        self._at = at
        return count

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("I")
        shape = self._numbers(f"{dimensions}Q")
        kind, at = self._numbers("IQ")
        return name, shape[::-1], kind, at


def size_of(file: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    """Bytes of a tensor. Raises DraftpickError where its kind is not known."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise DraftpickError(
            f"{file}: {name} is quantised in a way that is not known here (kind {kind}); take the "
            "model in Q4_K_M, Q8_0 or another common kind, or update the package gguf"
        ) from None
    return math.prod(shape) // numbers * size
