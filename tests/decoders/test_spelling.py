"""Ids to bytes to text, piece by piece: held to transformers' own decoding and to llama.cpp's."""

import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from spelling_toys import FILES, GOLDEN, HARMONY, KINDS, SPECIALS, THINK, letters, save_gguf

from decoders.backends.gguf.header import read_header
from decoders.models.targets import load_tokenizer, resolve
from decoders.spelling import Piece, Places, TextStream, spelling_of, text_of
from decoders.zoo.catalogue import EMBEDDER, TARGET
from decoders.zoo.gguf_tokenizer import tokenizer_of

TRAINED = Path(__file__).parents[2] / "benchmarks" / "t5_family" / "target"
TOKENIZERS: dict[str, Any] = {name: make() for name, make in KINDS.items()}
TOKENIZERS["a trained T5"] = load_tokenizer(TRAINED)
LOST = "\ufffd"
GOES_ON = [70]  # the prompt that llama.cpp was given
SAID = ["the cat isn't a cat.", " 日本 é", "👩‍👩‍👧🎉 <|im_end|>", "  a\n\n    the"]


def ids_of(tokenizer: Any) -> st.SearchStrategy[list[int]]:
    """Of any tokens, of texts, and of both; where ids may be no token's, one is none."""
    any_id = st.integers(0, len(tokenizer) - (not tokenizer.is_fast))
    named = map(tokenizer.convert_tokens_to_ids, (*SPECIALS, THINK))
    rare = st.sampled_from([*tokenizer.all_special_ids, *(id_ for id_ in named if id_ is not None)])
    texts = st.sampled_from(SAID).map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    parts = st.lists(st.one_of(any_id.map(lambda one: [one]), rare.map(lambda one: [one]), texts))
    return parts.map(lambda each: [token for part in each for token in part])


def cut_at(ids: list[int], cuts: list[int]) -> list[list[int]]:
    parts = []
    for cut in [*cuts, len(ids)]:
        parts.append(ids[:cut])
        ids = ids[cut:]
    return parts


CUTS = st.lists(st.integers(0, 4), max_size=40)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@examples(150)
def test_the_text_is_the_tokenizers_own(kind: str, data: st.DataObject) -> None:
    """Bytes that are no character are U+FFFD, each in its place. A vocabulary with tokens of single
    bytes makes whole characters beside them U+FFFD too, and ByT5's leaves them out: neither can be
    streamed."""
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(ids_of(tokenizer))
    text, theirs = text_of(tokenizer, ids), tokenizer.decode(ids, skip_special_tokens=True)
    if LOST not in text or kind not in ("Llama", "Gemma", "ByT5"):
        assert text == theirs
    stream = TextStream(tokenizer)
    pieces = [stream.add(part) for part in cut_at(ids, data.draw(CUTS))]
    assert "".join(pieces) + stream.finish() == text
    stream = TextStream(tokenizer)
    said = "".join(map(stream.spell, ids))
    assert text.startswith(said) and not text[len(said) :].strip(LOST)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@examples(150)
def test_pieces_are_the_texts_bytes_and_lie_where_they_say(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids, goes_on = data.draw(ids_of(tokenizer)), data.draw(st.booleans())
    before = tokenizer.encode("a", add_special_tokens=False) if goes_on else []
    stream = TextStream(tokenizer, after=before)
    text = stream.add(ids) + stream.finish()
    spelling, places, content = spelling_of(tokenizer), Places(), b""
    for at, token in enumerate(ids):
        piece = Piece.of(spelling, token, [*before, *ids[:at]])
        place = places.add(piece.content or b"")
        if piece.content is None:
            assert piece.text in SPECIALS or piece.text in tokenizer.all_special_tokens
        elif piece.content:
            begun = (content + piece.content[:1]).decode("utf-8", "replace")
            assert place == len(begun) - 1
            assert LOST in piece.text or text[place:].startswith(piece.text)
        content += piece.content or b""
    assert content.decode("utf-8", "replace") == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@examples(150)
def test_stops_cut_at_the_first_however_the_pieces_fall(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(ids_of(tokenizer))
    whole = text_of(tokenizer, ids)
    inside = st.integers(0, max(0, len(whole) - 1)).flatmap(
        lambda at: st.integers(1, 4).map(lambda length: whole[at : at + length])
    )
    stops = data.draw(st.lists(inside | st.text("a é.", min_size=1, max_size=3), max_size=3))
    stream, told = TextStream(tokenizer, stops), ""
    for part in cut_at(ids, data.draw(CUTS)):
        told += stream.add(part)
        assert whole.startswith(told)
        assert not any(stop in told for stop in stops if stop)
    told += stream.finish()
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in stops if s and s in whole]
    assert told == whole[: min(ends, default=(0, len(whole)))[1]]
    assert stream.ended == bool(ends)


@pytest.mark.parametrize(
    ("answer", "told", "thought"),
    [
        ("<|channel|>analysis<|message|>is a cat<|end|><|start|>assistant<|channel|>final"
         "<|message|>日本 <|end|>", "日本 ", "is a cat"),
        ("<|channel|>commentary<|message|>the cat.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.cat <|constrain|>json<|message|>{}", "the cat.", "{}"),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}", ""),
        ("<|channel|>final<|constrain|>json<|message|>{}", "{}", ""),
        ("<|channel|>analysis<|message|>is<|end|><|start|>assistant to=functions.cat<|channel|>"
         "commentary<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>a", "a",
         "is{}"),
        (" to=functions.cat<|channel|>commentary json<|message|>{}", "", "{}"),
        (" to the cat", " to the cat", ""),
        (" to", " to", ""),
        ("<|channel|>analysis<|message|>is", "", "is"),
        ("<|channel|>final", "", ""),
        ("a cat, not in a channel", "a cat, not in a channel", ""),
    ],
)  # fmt: skip
def test_an_answer_in_channels_is_those_for_the_user(answer: str, told: str, thought: str) -> None:
    tokenizer = FILES["byte-level"]()
    tokenizer.add_special_tokens({"additional_special_tokens": HARMONY})
    ids = tokenizer.encode(answer, add_special_tokens=False)
    stream = TextStream(tokenizer)
    said = "".join(stream.add([token]) for token in ids) + stream.finish()
    assert (said, stream.thought) == (told, thought)
    assert text_of(tokenizer, ids) == told


NAMED = ["<|im_end|>", "</s>"]
WORDS = ["a", "b", "é", "<|im", "_end|>", *NAMED]


def signs(text: str) -> list[str]:
    """Characters, and names as one."""
    return re.findall("|".join([*map(re.escape, NAMED), "."]), text)


def first_stop(said: list[str], stops: list[str]) -> int | None:
    """How many characters come before the stop string that is whole first. said: characters, and
    the names of special tokens."""
    found = []
    for wanted in [*map(list, stops), *map(signs, stops)]:
        seen = [(at, each) for at, each in enumerate(said) if len(each) == 1 or each in wanted]
        ends = range(len(wanted), len(seen) + 1)
        end = next((n for n in ends if [s for _, s in seen[n - len(wanted) : n]] == wanted), None)
        if end is not None:
            last = seen[end - 1][0]
            before = sum(len(each) == 1 for each in said[: last + 1])
            found.append((last, before - sum(len(each) == 1 for each in wanted)))
    return min(found, default=(0, None))[1]


@given(
    st.lists(st.tuples(st.sampled_from(WORDS), st.booleans()), max_size=12),
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), min_size=1, max_size=3),
    CUTS,
)
@examples(400)
def test_a_stop_string_may_name_special_tokens(
    words: list[tuple[str, bool]], parts: list[list[str]], cuts: list[int]
) -> None:
    """Each is met as a token and as its text; the text before the stop string is left."""
    tokenizer, stops = TOKENIZERS["byte-level"], ["".join(each) for each in parts]
    ids, said = list[int](), list[str]()
    for word, as_token in words:
        special = as_token and word in NAMED
        ids += [tokenizer.convert_tokens_to_ids(word)] if special else letters(tokenizer, word)
        said += [word] if special else list(word)
    stream = TextStream(tokenizer, stops)
    told = "".join(map(stream.add, cut_at(ids, cuts))) + stream.finish()
    whole = "".join(each for each in said if len(each) == 1)
    assert told == whole[: first_stop(said, stops)]


def test_what_is_sure_comes_at_once_and_the_rest_waits() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    stream = TextStream(tokenizer, ["end"])
    party = letters(tokenizer, "🎉")
    assert stream.add(letters(tokenizer, "the e")) == "the "
    assert stream.add(letters(tokenizer, "x")) == "ex"
    assert stream.add(party[:3]) == ""
    assert stream.add(party[3:]) == "🎉"
    assert stream.add(letters(tokenizer, "en")) == ""
    assert stream.add(letters(tokenizer, "d of it")) == ""
    assert stream.finish() == ""


def test_an_answer_that_goes_on_a_text_keeps_its_first_space() -> None:
    tokenizer = TOKENIZERS["Llama"]
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    begins = tokenizer.convert_tokens_to_ids("<s>")
    assert TextStream(tokenizer, after=ids).add(ids) == " the cat"
    assert TextStream(tokenizer, after=[begins]).add(ids) == "the cat"


def test_a_tokenizer_goes_with_its_spelling() -> None:
    tokenizer = next(iter(KINDS.values()))()
    held = weakref.ref(tokenizer)
    assert spelling_of(tokenizer) is spelling_of(tokenizer)
    del tokenizer
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("kind", FILES)
def test_pieces_texts_and_stops_are_llama_cpp_s(kind: str, tmp_path: Path) -> None:
    """By the tokenizer that is read from the same file."""
    header = read_header(save_gguf(tmp_path / "m.gguf", kind))
    tokenizer, golden = tokenizer_of(header), json.loads(GOLDEN.read_text())[kind]
    spelling = spelling_of(tokenizer)
    spelled = [spelling.spelled(id_, GOES_ON).hex() for id_ in range(len(golden["pieces"]))]
    assert spelled == golden["pieces"]
    for answer in golden["answers"]:
        stops = [answer["stop"]] if answer["stop"] else []
        stream = TextStream(tokenizer, stops, after=GOES_ON)
        assert stream.add(answer["ids"]) + stream.finish() == answer["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [TARGET, EMBEDDER])
def test_each_token_of_a_real_vocabulary(name: str) -> None:
    tokenizer = load_tokenizer(resolve(name))
    for token in range(len(tokenizer)):
        ids = [*tokenizer.encode("a", add_special_tokens=False), token, token]
        assert text_of(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)
