"""Spellings of a tokenizer's ids, in bytes, so that two vocabularies can be compared."""

from __future__ import annotations

from typing import Any

from ..spelling import Spelling
from ..spelling.tokens import SAMPLE


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
        spelling, ids = Spelling(tokenizer), tokenizer.get_vocab().values()
        self.specials = {name: id_ for id_, name in spelling.names.items()}
        self.texts: list[bytes | None] = [None] * (1 + max(ids))
        for id_ in ids:
            self.texts[id_] = spelling.inside(id_) or None
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
