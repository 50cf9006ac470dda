"""Grammars for one target's tokens, by llguidance: the one place that knows of it."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.errors import GrammarError
from ..protocols import GrammarState
from ..records import Grammar

KEPT = 64  # compiled grammars, those asked for last
ONE_LINE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


class Grammars:
    """Safe among threads. Nothing is loaded before the first grammar.

    tokenizer: a fast one of transformers'.
    vocab_size: V, as many logits as the target gives.
    eos_ids: the tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, eos_ids
        self._read: Any = None  # the tokenizer as llguidance knows it
        self._begun: OrderedDict[Grammar, _Matched] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, grammar: Grammar) -> GrammarState:
        """The state before an answer's first token. Raises GrammarError for a grammar that cannot
        be compiled, or that no token can begin."""
        with self._lock:
            if grammar not in self._begun:
                self._begun[grammar] = self._compiled(grammar)
                while len(self._begun) > KEPT:
                    self._begun.popitem(last=False)
            self._begun.move_to_end(grammar)
            return self._begun[grammar].copy()

    def _compiled(self, grammar: Grammar) -> _Matched:
        from llguidance import LLMatcher

        if self._read is None:
            self._read = self._vocabulary()
        try:
            source = _SOURCES[grammar.kind](grammar.source)
        except ValueError as error:
            raise _not_compiled(grammar, str(error)) from error
        wrong, messages = LLMatcher.validate_grammar_with_warnings(source, self._read)
        if wrong:
            raise _not_compiled(grammar, messages[0])
        made = _Matched(LLMatcher(self._read, source, log_level=0), self._vocab_size, self._eos_ids)
        made.allowed()
        return made

    def _vocabulary(self) -> Any:
        from llguidance.hf import from_tokenizer
        from transformers import PreTrainedTokenizerFast

        if not self._eos_ids:
            raise GrammarError(
                "the target has no end token, so that an answer in a grammar could not end; use a "
                "target that names its eos_token_id"
            )
        if not isinstance(self._tokenizer, PreTrainedTokenizerFast):
            raise GrammarError(
                "grammars need a fast tokenizer (tokenizer.json), and the target's is a "
                f"{type(self._tokenizer).__name__}; convert it, or ask for any text"
            )
        try:
            return from_tokenizer(
                deepcopy(self._tokenizer), self._vocab_size, eos_token=list(self._eos_ids)
            )
        except ValueError as error:
            raise GrammarError(
                f"grammars cannot read the target's tokenizer ({_sentence(str(error))}); ask for "
                "any text"
            ) from error


class _Matched:
    """A GrammarState by llguidance's matcher."""

    def __init__(self, matcher: Any, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._matcher, self._vocab_size, self._eos_ids = matcher, vocab_size, eos_ids
        self._allowed: Tensor | None = None

    def allowed(self) -> Tensor:
        if self._allowed is None:
            words = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._checked()
            bits = np.unpackbits(words, count=self._vocab_size, bitorder="little")
            if not bits.any():
                raise GrammarError(
                    "no token of the target can go on as the grammar asks; give a grammar that its "
                    "tokens can spell"
                )
            self._allowed = torch.from_numpy(bits).bool()
        return self._allowed

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    def take(self, token: int) -> bool:
        if token in self._eos_ids:
            return False
        self._allowed = None
        self._matcher.consume_token(token)
        self._checked()
        return True

    def copy(self) -> _Matched:
        other = _Matched(self._matcher.deep_copy(), self._vocab_size, self._eos_ids)
        other._allowed = self._allowed
        return other

    def _checked(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(
                f"the grammar cannot be followed ({_sentence(self._matcher.get_error())}); give a "
                "simpler one"
            )


def _json_schema(source: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(source, defaults=ONE_LINE)


def _regex(source: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(source)


def _choice(source: str) -> str:
    from llguidance import LLMatcher

    texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(source))
    return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))


def _grammar(source: str) -> str:
    from llguidance import grammar_from

    return grammar_from("grammar", source)


_SOURCES = {"json_schema": _json_schema, "regex": _regex, "choice": _choice, "grammar": _grammar}
_NAMES = {"json_schema": "JSON schema", "regex": "regular expression"}


def _not_compiled(grammar: Grammar, why: str) -> GrammarError:
    name = _NAMES.get(grammar.kind, grammar.kind)
    return GrammarError(f"the {name} does not compile: {_sentence(why)}")


def _sentence(message: str) -> str:
    """A message on one line: of a parser's, what it says is wrong."""
    found = re.findall(r"^error: (.+)$", message, re.MULTILINE)
    return found[-1] if found else " ".join(message.split())
