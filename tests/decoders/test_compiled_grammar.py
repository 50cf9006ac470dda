"""llguidance behind its seam: the protocol's promises, and answers of the loop under it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
import torch
from decoder_toys import Tiny, native
from engine_toys import Asked, together
from grammar_toys import ARMS, fast_tokenizer, toy_engine

from decoders import Engine
from decoders.arms import arms_of
from decoders.common.errors import DraftpickError, GrammarError, StillCompiling
from decoders.continuous_batching import ContinuousBatch
from decoders.models import grammars as module
from decoders.models.grammars import Grammars
from decoders.protocols import GrammarState
from decoders.records import Grammar, Request, Sampling

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["rome", "oslo"]},
        "tags": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
    "required": ["city", "tags"],
    "additionalProperties": False,
}
JSON = Grammar.json_schema(SCHEMA)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return toy_engine()


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = fast_tokenizer()
    return Grammars(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))


def after(state: GrammarState, ids: list[int]) -> GrammarState:
    for token in ids:
        assert state.allowed()[token] and state.take(token)
    return state


def prefixes(ids: list[int]) -> Iterator[list[int]]:
    return (ids[:count] for count in range(len(ids) + 1))


def test_what_is_allowed_follows_from_the_tokens_alone(grammars: Grammars) -> None:
    """Whether masks were asked for on the way, or copies made, changes nothing; else the law would
    depend on what was drafted."""
    ids = fast_tokenizer().encode('{"city": "oslo", "tags": [1, 2]}')
    walked = grammars.begin(JSON)
    for prefix in prefixes(ids):
        fresh = grammars.begin(JSON)
        for token in prefix:
            fresh.take(token)
        assert torch.equal(fresh.allowed(), walked.allowed())
        copied = walked.copy()
        copied.forced()
        copied.allowed()
        if len(prefix) < len(ids):
            after(walked, [ids[len(prefix)]])


def test_forced_tokens_are_the_only_allowed_ones(grammars: Grammars) -> None:
    ids, seen = fast_tokenizer().encode('{"city": "rome", "tags": []}'), 0
    for prefix in prefixes(ids):
        state = after(grammars.begin(JSON), prefix)
        for token in state.forced():
            assert state.allowed().nonzero().flatten().tolist() == [token]
            seen += 1
            state.take(token)
    assert seen > len(ids)


def test_an_answer_may_end_where_the_grammar_does(grammars: Grammars) -> None:
    tokenizer = fast_tokenizer()
    end = tokenizer.eos_token_id
    state = after(grammars.begin(Grammar("regex", "a+")), tokenizer.encode("aa"))
    assert state.allowed()[end] and state.allowed().sum() == 2
    state = after(grammars.begin(Grammar.choice(["ab", "b"])), tokenizer.encode("ab"))
    assert state.allowed().nonzero().flatten().tolist() == [end]
    assert not state.take(end)


def spelled(grammars: Grammars, grammar: Grammar, text: str) -> bool:
    """Whether the text is a whole answer."""
    tokenizer, state = fast_tokenizer(), grammars.begin(grammar)
    for token in [*tokenizer.encode(text), tokenizer.eos_token_id]:
        if not state.allowed()[token]:
            return False
        state.take(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        (JSON, '{"city": "oslo", "tags": [1, 2]}', '{"city":"oslo","tags":[]}'),
        (Grammar("regex", "[a-c]{2}"), "ab", "abc"),
        (Grammar.choice(['say "hi"', "a\nb"]), 'say "hi"', "say"),
        (Grammar.choice(['say "hi"', "a\nb"]), "a\nb", "a"),
        (Grammar("grammar", 'root ::= "x" digit\ndigit ::= [0-9]'), "x7", "x"),
        (Grammar("grammar", 'start: "x" /[0-9]/'), "x7", "7"),
    ],
)
def test_each_kind(grammars: Grammars, grammar: Grammar, taken: str, refused: str) -> None:
    assert spelled(grammars, grammar, taken) and not spelled(grammars, grammar, refused)


CALLS = [
    ('{"name": "f", "arguments": ', {"type": "object", "properties": {}}, "}</tool_call>"),
    ('{"name": "g", "arguments": ', SCHEMA, "}</tool_call>"),
]
ONE = '<tool_call>{"name": "g", "arguments": {"city": "oslo", "tags": []}}</tool_call>'


@pytest.mark.parametrize(
    ("between", "other", "taken", "refused"),
    [
        (None, None, [ONE], ["hi", ONE + "\n" + ONE, ONE + "!"]),
        ("\n", None, [ONE, ONE + "\n" + ONE], ["hi", ONE + ONE]),
        ("\n", "text", ["", "hi <tool>", ONE, f"hi {ONE}\n{ONE}"], ["<tool_call>hi", f"{ONE} hi"]),
        (None, {"type": "integer"}, ["17", ONE], ["hi", f"17{ONE}"]),
    ],
)
def test_calls(
    grammars: Grammars, between: str | None, other: Any, taken: list[str], refused: list[str]
) -> None:
    grammar = Grammar.calls("<tool_call>", CALLS, between, other)
    assert [spelled(grammars, grammar, text) for text in taken] == [True] * len(taken)
    assert not any(spelled(grammars, grammar, text) for text in refused)


def test_calls_without_a_mark(grammars: Grammars) -> None:
    grammar = Grammar.calls("", [('{"name": "f", "p": ', SCHEMA, "}")], None, "text")
    call = '{"name": "f", "p": {"city": "oslo", "tags": []}}'
    assert all(spelled(grammars, grammar, text) for text in ["", "hi {there}", call])
    assert not any(spelled(grammars, grammar, text) for text in ["{hi", call + " hi"])


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar.json_schema({"type": "obj"}), "JSON schema does not compile: Invalid type"),
        (Grammar.json_schema({"not": {"type": "string"}}), "not"),
        (Grammar.json_schema({"enum": []}), "Unsatisfiable"),
        (Grammar("regex", "(a"), "regular expression does not compile: unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("grammar", "start: nothing"), "grammar does not compile"),
        (Grammar.choice(["жук"]), "no token of the target"),
    ],
)
def test_what_cannot_be_followed(engine: Engine, grammar: Grammar, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as raised:
        engine.check([1], Request(4, grammar=grammar))
    assert "\n" not in str(raised.value)


def test_deep_and_large_schemas_are_refused_or_taken(engine: Engine) -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for grammar in (Grammar.json_schema(deep), Grammar("regex", "((a{99}){99}){99}")):
        try:
            engine.check([1], Request(4, grammar=grammar))
        except GrammarError as error:
            assert "\n" not in str(error)


def test_who_has_no_grammars() -> None:
    tokenizer = fast_tokenizer()
    with pytest.raises(GrammarError, match="no end token"):
        Grammars(tokenizer, len(tokenizer), ()).begin(JSON)
    with pytest.raises(GrammarError, match="cannot read the target's tokenizer"):
        Grammars(object(), 10, (3,)).begin(JSON)
    with pytest.raises(GrammarError, match="ignore_eos"):
        Request(grammar=JSON, eos_ids=())
    with pytest.raises(GrammarError, match="at least one"):
        Grammar.choice([])


def constrained(engine: Engine, prompt: list[int], grammar: Grammar, most: int) -> list[int]:
    """Greedy: mask, take the most likely, one pass a token."""
    logits, made = engine.target.prefill(prompt).logits, list[int]()
    state = engine._grammars.begin(grammar)
    while len(made) < most:
        made.append(int(logits.masked_fill(~state.allowed(), -torch.inf).argmax()))
        if not state.take(made[-1]):
            break
        logits = engine.target.extend(torch.tensor(made[-1:]))[-1]
    return made


@pytest.mark.parametrize("grammar", [JSON, Grammar("regex", "([a-f]{2,4} ){3}")])
def test_every_arm_writes_constrained_decoding_s_ids(engine: Engine, grammar: Grammar) -> None:
    for words in ('{"city": "oslo", "tags": [3, 1]}', "ab cd abcd "):
        prompt = engine.encode_chat([{"role": "user", "content": words}])
        wanted = constrained(engine, prompt, grammar, 40)
        for arm in ("autoregressive", "copy"):
            made = engine.decode(arm, prompt, Request(40, grammar=grammar))
            assert made.ids == wanted
        assert made.accepted > 0


def test_drawn_answers_are_valid(engine: Engine) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": "abc"}])
    for seed in range(10):
        request = Request(200, Sampling(1.0), seed=seed, grammar=JSON)
        made = engine.decode("copy", prompt, request)
        assert made.finish_reason == "eos"
        jsonschema.validate(json.loads(made.text), SCHEMA)
        assert engine.decode("autoregressive", prompt, request).ids == made.ids


def test_answers_share_passes_each_in_its_own_grammar(tiny: Tiny) -> None:
    tokenizer = fast_tokenizer()
    folder = tiny("llama", seed=2, vocab_size=len(tokenizer) + 3, max_position_embeddings=256)
    arms = arms_of({"arms": {"copy": ARMS["copy"]}}, Path("toys"))
    end = tokenizer.eos_token_id
    engine = Engine(native(folder), arms, name="tiny", tokenizer=tokenizer, eos_ids=(end,))
    prompt = tokenizer.encode('{"city": "oslo", "tags": [3, 1]} ab cd')
    grammars = [JSON, Grammar("regex", "[a-d ]{9}"), None]
    asked = [
        Asked("copy", prompt, Request(99, Sampling(at % 2), seed=at, grammar=grammars[at % 3]))
        for at in range(6)
    ]
    together(ContinuousBatch(engine, 4), asked)
    for one in asked:
        assert one.result is not None
        assert one.result.ids == one.alone(engine.with_target(native(folder)))
        grammar = one.request.grammar
        assert grammar is None or spelled(engine._grammars, grammar, one.result.text)


def test_other_arms_refuse(engine: Engine) -> None:
    with pytest.raises(DraftpickError, match="follows no grammar"):
        engine.decode("beams", [1, 2], Request(4, grammar=JSON))


def test_what_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And holds up nobody whose grammar is compiled already."""
    tokenizer = fast_tokenizer()
    made = Grammars(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))
    made.begin(JSON)
    ends, honest = threading.Event(), made._compiled

    def slow(grammar: Grammar) -> Any:
        ends.wait(10)
        return honest(grammar)

    monkeypatch.setattr(module, "COMPILING_S", 0.02)
    monkeypatch.setattr(made, "_compiled", slow)
    several = [Grammar("regex", letter) for letter in "abc"]
    for grammar in several[: module.AT_ONCE]:
        with pytest.raises(GrammarError, match=r"expression takes more than 0.02 s to compile"):
            made.begin(grammar)
    with pytest.raises(StillCompiling, match="ask again"):
        made.begin(several[-1])
    with pytest.raises(GrammarError, match="takes more than"):
        made.begin(several[0])  # known by now
    assert made.begin(JSON).allowed().any()
    ends.set()
    monkeypatch.setattr(module, "COMPILING_S", 10.0)
    start = Mock(side_effect=RuntimeError("can't start new thread"))
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", start)
        for _ in range(module.AT_ONCE):
            with pytest.raises(StillCompiling, match="can't start new thread; ask again"):
                made.begin(several[-1])
    assert made.begin(several[-1]).allowed().any()
