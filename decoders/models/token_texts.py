"""What a tokenizer's ids spell, in bytes, so that two vocabularies can be compared (D26)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

SPACE = "▁"  # SentencePiece's
SAMPLE = "If x > 10:\n\tprint('naïve — 東京 🙂', 3.14)  # done"


class TokenTexts:
    """A tokenizer's ids as bytes, and texts as ids without what it puts around them.

    texts: by id; None for special ids, for those that spell nothing and for those that do not
        exist.
    specials: ids by what the special tokens are called.
    leading_space: whether encoding puts a space in front of a text.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises ValueError, saying why, for a tokenizer whose ids do not spell bytes."""
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.specials = {token.content: id_ for id_, token in added.items() if token.special}
        for name, id_ in zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True):
            self.specials.setdefault(name, id_)
        unspelled = set(self.specials.values())
        pieces = tokenizer.convert_ids_to_tokens(self.encode(SAMPLE))
        read = _spelling(pieces)
        vocab = tokenizer.get_vocab()
        self.texts: list[bytes | None] = [None] * (1 + max(vocab.values()))
        for piece, id_ in vocab.items():
            if id_ not in unspelled:
                added_text = added[id_].content.encode() if id_ in added else None
                self.texts[id_] = added_text or read(piece) or None
        spelled = self.spelled(self.encode(SAMPLE))
        self.leading_space = spelled == b" " + SAMPLE.encode()
        if spelled != SAMPLE.encode() and not self.leading_space:
            raise ValueError("its tokens do not spell the text that they stand for")
        self._second_space = self.spelled(self.encode(" a")) == b"  a"  # some put none before one

    def encode(self, text: str) -> list[int]:
        """Ids of a text that is taken literally, whatever special tokens it names."""
        return list(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )

    def encode_inside(self, text: str) -> list[int]:
        """Ids of a text that does not begin another: without a space that encoding puts there."""
        rest = text.removeprefix(" ")
        puts = self.leading_space and rest != "" and (self._second_space or rest[0] != " ")
        return self.encode(rest if puts else text)

    def spelled(self, ids: list[int]) -> bytes:
        """What ids stand for; special ids stand for nothing."""
        return b"".join(self.texts[id_] or b"" for id_ in ids if id_ < len(self.texts))

    def begins(self) -> list[int]:
        """The ids that the tokenizer puts in front of every text."""
        put = list(self._tokenizer.encode(""))
        return put[:1] if put and put[0] == self._tokenizer.bos_token_id else []

    def role(self, id_: int) -> str | None:
        """Which of a model's two marks an id is: "bos", "eos" or neither."""
        roles = {self._tokenizer.eos_token_id: "eos", self._tokenizer.bos_token_id: "bos"}
        return roles.get(id_)

    def having(self, role: str | None) -> int | None:
        """The id with that role."""
        by_role = {"eos": self._tokenizer.eos_token_id, "bos": self._tokenizer.bos_token_id}
        return None if role is None else by_role[role]


def _spelling(pieces: list[str]) -> Any:
    """From a piece of the vocabulary to its bytes, by how the tokenizer writes a sample's."""
    whole = "".join(pieces)
    if "Ġ" in whole:
        return _byte_level
    if SPACE in whole:
        return _sentencepiece
    raise ValueError("its vocabulary is neither byte-level nor SentencePiece's")


def _byte_level(piece: str) -> bytes | None:
    table = _bytes_by_character()
    try:
        return bytes(table[character] for character in piece)
    except KeyError:
        return None


def _sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, " ").encode()


@lru_cache(maxsize=1)
def _bytes_by_character() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes as: printable ones as themselves, the
    others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}
