"""What a token stands for, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, runtime_checkable

UNFINISHED = "\ufffd"  # what bytes that are no character decode to
NEAR = 8  # tokens that say how the next one is spelled, where it depends on them
SAMPLE = "If x > 10:\n\tprint('naïve — 東京 🙂', 3.14)  # done"


@runtime_checkable
class Spells(Protocol):
    """Says what tokens stand for. A tokenizer that is one is asked itself.

    names: of the special tokens, which have no text.
    """

    names: Mapping[int, str]

    def spelled(self, token: int, before: Sequence[int] = ()) -> bytes:
        """What a token adds to the text of those before it."""
        ...


class Spelling:
    """A tokenizer's tokens, each as the tokenizer's own `decode` has it behind another token, or,
    where none before it has text, at a text's beginning: some leave a space out there.

    A token that holds a part of a character is read from the vocabulary, since `decode` makes
    U+FFFD of it. Of a tokenizer whose tokens depend on others than that, as with marks of the ends
    of words, each is what it adds to the text of those before it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.names: Mapping[int, str] = specials_of(tokenizer)
        self._inside, self._first = dict[int, bytes](), dict[int, bytes]()
        self._front = next(filter(self._shows, _ids(tokenizer)), None)
        self._apart = True  # whether tokens are spelled apart
        sample = tokenizer.encode(SAMPLE) if hasattr(tokenizer, "encode") else []
        spelled = b"".join(self.spelled(each, sample[:at]) for at, each in enumerate(sample))
        self._apart = spelled.decode("utf-8", "replace") == self._decoded(sample)

    def spelled(self, token: int, before: Sequence[int] = ()) -> bytes:
        if not self._apart:
            return self._read(token, list(before[-NEAR:]))
        if any(map(self.inside, before)):
            return self.inside(token)
        if token not in self._first:
            self._first[token] = self._read(token, [])
        return self._first[token]

    def inside(self, token: int) -> bytes:
        """What a token stands for behind others."""
        found = self._inside.get(token)
        if found is None:
            near = [] if self._front is None else [self._front]
            found = self._inside[token] = self._read(token, near)
        return found

    def _read(self, token: int, near: list[int]) -> bytes:
        held, text = self._decoded(near), self._decoded([*near, token])
        text = text[len(held) :] if text.startswith(held) else self._decoded([token])
        if (text and UNFINISHED not in text) or token in self.names:
            return text.encode()
        piece = self._piece(token)
        for reading in READINGS:
            found = None if piece is None else reading(piece)
            if found and text in {found.decode("utf-8", way) for way in ("replace", "ignore")}:
                return found
        return text.encode()

    def _piece(self, token: int) -> str | None:
        """The token's entry in the vocabulary."""
        read = getattr(self._tokenizer, "convert_ids_to_tokens", None)
        return None if read is None else read(token)

    def _shows(self, token: int) -> bool:
        """Whether a token has text, wherever it stands, and may stand in front of any other."""
        once, twice = self._decoded([token]), self._decoded([token, token])
        whole = once.strip() and UNFINISHED not in once and not _byte(self._piece(token) or "")
        return bool(whole) and len(twice) > len(once) and twice.startswith(once)

    def _decoded(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def spelling_of(tokenizer: Any) -> Spells:
    """Spelling of a tokenizer, made once: the tokenizer holds it."""
    if isinstance(tokenizer, Spells):
        return tokenizer
    found = getattr(tokenizer, "_spelling", None)
    if found is None:
        found = tokenizer._spelling = Spelling(tokenizer)
    return found


def specials_of(tokenizer: Any) -> dict[int, str]:
    """The names of the special tokens. Tokens that were added without being special, as `<think>`
    often is, are text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    names = {id_: token.content for id_, token in added.items() if token.special}
    own = getattr(tokenizer, "all_special_ids", ()), getattr(tokenizer, "all_special_tokens", ())
    return dict(zip(*own, strict=True)) | names


def _ids(tokenizer: Any) -> Iterator[int]:
    """Ids, those of a common letter first."""
    common = tokenizer.encode("a") if hasattr(tokenizer, "encode") else []
    return chain(common, range(getattr(tokenizer, "vocab_size", 1)))


# -- how vocabularies write a part of a character


def _byte(piece: str) -> bytes | None:
    """SentencePiece's tokens of one byte, as <0xE6>."""
    if len(piece) != 6 or not piece.startswith("<0x") or not piece.endswith(">"):
        return None
    return bytes([int(piece[3:5], 16)])


def _byte_level(piece: str) -> bytes | None:
    table = _bytes_by_character()
    try:
        return bytes(table[character] for character in piece)
    except KeyError:
        return None


def _code_point(piece: str) -> bytes | None:
    """ByT5's bytes."""
    return piece.encode("latin-1", "ignore") if len(piece) == 1 else None


READINGS: tuple[Callable[[str], bytes | None], ...] = (_byte, _byte_level, _code_point)


@lru_cache(maxsize=1)
def _bytes_by_character() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes as: printable ones as themselves, the
    others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}
