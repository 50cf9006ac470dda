"""Grammars for one target's tokens, by llguidance: the one place that knows of it."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.errors import GrammarError, StillCompiling
from ..protocols import GrammarState
from ..records import Grammar
from .token_texts import TokenTexts

KEPT = 64  # grammars, those asked for last: compiled, or known to take too long
COMPILING_S = 5.0  # usual schemas take milliseconds, some that are made for it minutes or more
AT_ONCE = 2  # grammars that are compiled
ENCODED = 4096  # texts whose tokens are kept
ONE_LINE: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


class Grammars:
    """Safe among threads; what is compiled waits for nothing that is not. Nothing is loaded before
    the first grammar.

    tokenizer: transformers' own, byte-level or SentencePiece's.
    vocab_size: V, as many logits as the target gives.
    eos_ids: the tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, eos_ids
        self._read: Any = None  # the tokenizer as llguidance knows it
        self._begun: OrderedDict[Grammar, _Matched | None] = OrderedDict()  # None: too slow
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._free = threading.BoundedSemaphore(AT_ONCE)

    def begin(self, grammar: Grammar) -> GrammarState:
        """The state before an answer's first token. Raises GrammarError for a grammar that cannot
        be compiled, or not in COMPILING_S, or that no token can begin; StillCompiling where
        AT_ONCE others are being compiled all that time."""
        with self._lock:
            if grammar in self._begun:
                self._begun.move_to_end(grammar)
                made = self._begun[grammar]
                if made is None:
                    raise _too_slow(grammar)
                return made.copy()
        with self._reading:
            if self._read is None:
                self._read = self._vocabulary()
        return self._in_time(grammar).copy()

    def _in_time(self, grammar: Grammar) -> _Matched:
        """Compiled by a thread of its own, as nothing else can be left while it goes on."""
        if not self._free.acquire(timeout=COMPILING_S):
            raise StillCompiling("other grammars are still being compiled; ask again in a moment")
        made: Future[_Matched] = Future()

        def work() -> None:
            try:
                compiled = self._compiled(grammar)
                self._keep(grammar, compiled)
                made.set_result(compiled)
            except Exception as error:
                made.set_exception(error)
            finally:
                self._free.release()

        try:
            threading.Thread(target=work, name="grammar", daemon=True).start()
        except RuntimeError as error:  # the system has no more
            self._free.release()
            raise StillCompiling(f"{_sentence(str(error))}; ask again in a moment") from error
        try:
            return made.result(COMPILING_S)
        except TimeoutError:
            self._keep(grammar, None)
            raise _too_slow(grammar) from None

    def _keep(self, grammar: Grammar, made: _Matched | None) -> None:
        with self._lock:
            self._begun[grammar] = self._begun.get(grammar) or made
            while len(self._begun) > KEPT:
                self._begun.popitem(last=False)

    def _compiled(self, grammar: Grammar) -> _Matched:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        try:
            source = _source(grammar)
        except ValueError as error:
            raise _not_compiled(grammar, str(error)) from error
        wrong, messages = LLMatcher.validate_grammar_with_warnings(
            source, self._read, limits=limits
        )
        if wrong:
            raise _not_compiled(grammar, messages[0])
        matcher = LLMatcher(self._read, source, log_level=0, limits=limits)
        made = _Matched(matcher, self._vocab_size, self._eos_ids)
        try:
            ahead = made.copy()
            for token in made.forced():
                ahead.take(token)
            ahead.allowed()
        except GrammarError as error:
            raise GrammarError(
                f"{error}; give one that is simpler, or that the target's tokens can spell"
            ) from error
        return made

    def _vocabulary(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not self._eos_ids:
            raise GrammarError(
                "the target has no end token, so that an answer in a grammar could not end; use a "
                "target that names its eos_token_id"
            )
        try:
            words = _Words(TokenTexts(self._tokenizer), self._vocab_size, self._eos_ids[0])
        except (AttributeError, TypeError, ValueError) as error:
            raise GrammarError(
                f"grammars cannot read the target's tokenizer ({_sentence(str(error))}); ask for "
                "any text"
            ) from error
        return LLTokenizer(
            TokenizerWrapper(words), n_vocab=self._vocab_size, eos_token=list(self._eos_ids)
        )


class _Words:
    """A tokenizer as llguidance's TokenizerWrapper reads it. A token that was added to it without
    being special, as `<tool_call>` often is, spells its text; from the tokenizer's file llguidance
    would take it for a special one, which no text spells.

    tokens: by id, its bytes; of special tokens and of ids that spell nothing a name.
    """

    bos_token_id = None

    def __init__(self, texts: TokenTexts, vocab_size: int, eos_id: int) -> None:
        spelled = texts.texts[:vocab_size]
        spelled += [None] * (vocab_size - len(spelled))
        self.tokens = [text or f"<|{id_}|>".encode() for id_, text in enumerate(spelled)]
        self.special_token_ids = [id_ for id_, text in enumerate(spelled) if not text]
        self.eos_token_id = eos_id
        # What a grammar forces is asked for again in every answer.
        self._ids = lru_cache(ENCODED)(texts.encode_inside)

    def __call__(self, text: str) -> list[int]:
        return list(self._ids(text))


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
                raise GrammarError("no token of the target can follow the grammar")
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
            why = _sentence(self._matcher.get_error()).removesuffix(" <non-verbose/>")
            raise GrammarError(f"no token of the target can follow the grammar ({why})")


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance takes it. Raises ValueError."""
    from llguidance import LLMatcher, grammar_from

    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.source, defaults=ONE_LINE)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            texts = " | ".join(map(_text, json.loads(grammar.source)))
            return LLMatcher.grammar_from_lark(f"start: {texts}")
        case "calls":
            return LLMatcher.grammar_from_lark(_calls(grammar.source))
    return grammar_from("grammar", grammar.source)


def _calls(source: str) -> str:
    """`Grammar.calls` in llguidance's form of Lark. A lazy rule ends where it first may, so that
    text which spells `begin` is a call."""
    asked = json.loads(source)
    begin, between, other = asked["begin"], asked["between"], asked["other"]
    numbered = list(enumerate(asked["calls"]))
    again = "" if between is None else f" ({_text(between + begin)} call)*"
    rules = [
        f"calls: call{again}",
        "call: " + " | ".join(f"call_{number}" for number, _ in numbered),
        *(
            f"call_{number}: {_text(before)} %json {_on_one_line(schema)} {_text(after)}"
            for number, (before, schema, after) in numbered
        ),
    ]
    called = f"{_text(begin)} calls" if begin else "calls"
    if other is None:
        rules.append(f"start: {called}")
    elif other != "text":
        rules.append(f"start: {called} | %json {_on_one_line(other)}")
    elif begin:
        rules += ["start: TEXT | begun calls", f"begun[lazy]: TEXT {_text(begin)}"]
        rules.append(r"TEXT: /(.|\n)*/")
    else:
        rules += ["start: TEXT | calls", r"TEXT: /([^{](.|\n)*)?/"]
    return "\n".join(["%llguidance {}", *rules])


def _text(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False)


def _on_one_line(schema: dict[str, Any]) -> str:
    return json.dumps(schema | {"x-guidance": ONE_LINE})


_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "calls": "schema of a tool's parameters",
}


def _not_compiled(grammar: Grammar, why: str) -> GrammarError:
    return GrammarError(f"the {_name(grammar)} does not compile: {_sentence(why)}")


def _too_slow(grammar: Grammar) -> GrammarError:
    return GrammarError(
        f"the {_name(grammar)} takes more than {COMPILING_S:g} s to compile; give a simpler one"
    )


def _name(grammar: Grammar) -> str:
    return _NAMES.get(grammar.kind, grammar.kind)


def _sentence(message: str) -> str:
    """A message on one line: of a parser's, what it says is wrong."""
    found = re.findall(r"^error: (.+)$", message, re.MULTILINE)
    return found[-1] if found else " ".join(message.split())
