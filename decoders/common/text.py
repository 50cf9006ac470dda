"""Texts as tokenizers and files take them."""

from __future__ import annotations

import re

_HALF = re.compile("[\ud800-\udfff]")


def whole(text: str) -> bool:
    """Whether the text has whole characters alone. JSON may spell half of one, and a command line's
    bytes that are no text come as such halves; no tokenizer and no file takes them."""
    return _HALF.search(text) is None
