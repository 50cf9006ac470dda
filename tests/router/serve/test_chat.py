"""Answers by the official client: whole, streamed, with stops, seeds, copies and logprobs."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import openai
import pytest
from serve_toys import LETTERS, Served, served, toy_engine

from decoders.common.seeds import derived_seed
from decoders.records import Request, Sampling
from decoders.testing.tokenizers import Letters

ASKED: list[Any] = [{"role": "user", "content": "abcabcab"}]
IDS = Letters(LETTERS).encode("abcabcab")


def chat(toy: Served, **named: Any) -> Any:
    named = {"model": "auto", "messages": ASKED, "max_tokens": 24} | named
    return toy.client().chat.completions.create(**named)


def joined(chunks: list[Any], index: int = 0) -> str:
    told = [c for chunk in chunks for c in chunk.choices if c.index == index]
    return "".join(choice.delta.content or "" for choice in told)


def test_an_answer_is_what_the_router_gives(toy: Served) -> None:
    wanted = toy.engine.decode("copy", IDS, Request(24))
    made = chat(toy)
    (told,) = made.choices
    assert told.message.content == wanted.text
    assert told.finish_reason == {"eos": "stop", "length": "length"}[wanted.finish_reason]
    usage = made.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, len(wanted.ids))
    assert usage.total_tokens == 8 + len(wanted.ids)


def test_a_stream_says_the_same(toy: Served) -> None:
    whole, chunks = chat(toy), list(chat(toy, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert joined(chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) > 3 and len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_may_end_with_its_token_counts(toy: Served) -> None:
    *_, end, counts = chat(toy, stream=True, stream_options={"include_usage": True})
    assert counts.choices == [] and counts.usage == chat(toy).usage
    assert end.choices[0].finish_reason and end.usage is None


def test_a_stream_may_tell_its_token_counts_all_along(toy: Served) -> None:
    told = {"include_usage": True, "continuous_usage_stats": True}
    first, *chunks, end, last = chat(toy, stream=True, stream_options=told)
    counts = [each.usage.completion_tokens for each in (first, *chunks)]
    assert counts[0] == 0 and counts == sorted(counts) and len(set(counts)) > 3
    assert {each.usage.prompt_tokens for each in chunks} == {last.usage.prompt_tokens}
    assert end.usage == last.usage == chat(toy).usage


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(toy: Served, stream: bool) -> None:
    text = chat(toy).choices[0].message.content
    stop = text[5:7]
    made = chat(toy, stop=["never there", stop], stream=stream)
    if stream:
        chunks = list(made)
        said, reason = joined(chunks), chunks[-1].choices[0].finish_reason
    else:
        said, reason = made.choices[0].message.content, made.choices[0].finish_reason
    assert said == text[: text.index(stop)] and reason == "stop"


def test_newer_and_older_names_of_the_limit(toy: Served) -> None:
    older, newer = chat(toy, max_tokens=3), chat(toy, max_tokens=None, max_completion_tokens=3)
    assert older.usage.completion_tokens == newer.usage.completion_tokens == 3


def test_seeds_repeat_and_copies_differ(toy: Served) -> None:
    hot = {"temperature": 1.0, "seed": 5, "n": 3}
    made, again = chat(toy, **hot), chat(toy, **hot)
    said = [choice.message.content for choice in made.choices]
    assert said == [choice.message.content for choice in again.choices]
    assert len(set(said)) == 3 and [choice.index for choice in made.choices] == [0, 1, 2]
    assert chat(toy, temperature=1.0, seed=5).choices[0].message.content == said[0]
    request = Request(24, Sampling(temperature=1.0), seed=derived_seed(5, 2))
    assert toy.engine.decode("copy", IDS, request).text == said[2]
    assert made.usage.prompt_tokens == 8
    chunks = list(chat(toy, **hot, stream=True))
    assert [joined(chunks, index) for index in range(3)] == said
    ended = [c for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert sorted(choice.index for choice in ended) == [0, 1, 2]


def test_every_sampled_answer_tells_the_seed_that_gives_it_again(toy: Served) -> None:
    hot = {"model": "auto", "messages": ASKED, "max_tokens": 24, "temperature": 1.0}
    raw = toy.client().chat.completions.with_raw_response
    told = raw.create(**hot, n=3, extra_body={"explain": True})
    seeds, made = told.headers["x-draftpick-seed"].split(", "), told.parse()
    said = [choice.message.content for choice in made.choices]
    assert len(set(seeds)) == 3 == len(set(said))
    assert [choice.draftpick["seed"] for choice in made.choices] == list(map(int, seeds))
    for seed, text in zip(seeds, said, strict=True):  # each alone, by another arm
        again = chat(toy, model="autoregressive", temperature=1.0, seed=int(seed))
        assert again.choices[0].message.content == text
        assert again.system_fingerprint == made.system_fingerprint != ""
    streamed = raw.create(**hot, stream=True, seed=int(seeds[0]))
    assert streamed.headers["x-draftpick-seed"] == seeds[0]
    chunks = list(streamed.parse())
    assert joined(chunks) == said[0]
    assert {chunk.system_fingerprint for chunk in chunks} == {toy.engine.system_fingerprint}
    fresh = [raw.create(**hot).headers["x-draftpick-seed"] for _ in range(2)]
    assert fresh[0] != fresh[1]
    assert "x-draftpick-seed" not in raw.create(**hot | {"temperature": 0}).headers


def test_logprobs_are_the_targets(toy: Served) -> None:
    made = chat(toy, logprobs=True, top_logprobs=3, max_tokens=6).choices[0]
    result = toy.engine.decode("copy", IDS, Request(6))
    told = made.logprobs.content
    assert [each.token for each in told] == [toy.engine.tokenizer.decode([i]) for i in result.ids]
    at = IDS[-2:]
    for each, token in zip(told, result.ids, strict=True):
        wanted = toy.engine.target.table[at[0], at[1]].log_softmax(-1)
        assert each.logprob == pytest.approx(float(wanted[token]))
        assert [top.logprob for top in each.top_logprobs] == pytest.approx(
            wanted.topk(3).values.tolist()
        )
        assert bytes(each.bytes).decode() == each.token
        at = [at[1], token]
    (end,) = [c for c in chat(toy, logprobs=True, max_tokens=6, stream=True)][-1:]
    assert [each.logprob for each in end.choices[0].logprobs.content] == [t.logprob for t in told]


def test_a_system_message_and_parts_of_text_are_a_chat(toy: Served) -> None:
    parts = [{"type": "text", "text": "abc"}, {"type": "text", "text": "abcab"}]
    messages = [{"role": "developer", "content": ""}, {"role": "user", "content": parts}]
    assert chat(toy, messages=messages).usage.prompt_tokens == 9  # a newline between them
    back = [*ASKED, chat(toy).choices[0].message.model_dump(), *ASKED]  # as clients send it back
    assert chat(toy, messages=back).choices[0].message.content


def test_completions_take_texts_and_ids(toy: Served) -> None:
    client = toy.client()
    one = client.completions.create(model="copy", prompt="abcabcab", max_tokens=5)
    assert one.choices[0].text == toy.engine.decode("copy", IDS, Request(5)).text
    ids = client.completions.create(model="copy", prompt=IDS, max_tokens=5, logprobs=2)
    assert ids.choices[0].text == one.choices[0].text
    logprobs = ids.choices[0].logprobs
    assert "".join(logprobs.tokens) == one.choices[0].text
    assert logprobs.text_offset == [0, 1, 2, 3, 4]
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    assert all(
        math.isclose(max(top.values()), own)
        for top, own in zip(logprobs.top_logprobs, logprobs.token_logprobs, strict=True)
    )
    many = client.completions.create(model="auto", prompt=["abcabcab", "ab"], n=2, max_tokens=5)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[1].text == one.choices[0].text
    assert many.usage.prompt_tokens == 10
    twice = client.completions.create(model="auto", prompt=["ab", "ab"], n=2, max_tokens=5)
    assert twice.usage.prompt_tokens == 4
    assert client.completions.create(model="auto", prompt="abc").usage.completion_tokens <= 16
    chunks = list(client.completions.create(model="copy", prompt=IDS, max_tokens=5, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == one.choices[0].text


def test_models_are_auto_and_the_arms(toy: Served) -> None:
    assert [model.id for model in toy.client().models.list()] == [
        "auto", "autoregressive", "copy", "beams", "größer/日本"
    ]  # fmt: skip
    assert toy.client().models.retrieve("copy").id == "copy"
    with toy.http() as http:
        assert http.get("/v1/models/größer/日本").json()["id"] == "größer/日本"
    with pytest.raises(openai.NotFoundError):
        toy.client().models.retrieve("gpt")


class Spaced(Letters):
    """As SentencePiece: a text's first space is left out."""

    def decode(self, token_ids: Any, **named: Any) -> str:
        return super().decode(token_ids, **named).removeprefix(" ")


def test_a_completion_keeps_its_first_space() -> None:
    engine = toy_engine()
    engine.tokenizer = Spaced(LETTERS)
    letters = engine.target.table[:26, :26].argmax(-1)
    before_it = (letters == LETTERS.index(" ")).nonzero()
    prompt = "".join(LETTERS[letter] for letter in before_it[0])
    with served(engine=engine) as toy:
        asked: Any = {"model": "copy", "prompt": prompt, "max_tokens": 5}
        for logprobs in (None, 2):
            made = toy.client().completions.create(**asked, logprobs=logprobs).choices[0]
            assert made.text[0] == " "
            if logprobs:
                assert "".join(made.logprobs.tokens) == made.text
                assert made.logprobs.text_offset[:2] == [0, 1]
            chunks = toy.client().completions.create(**asked, logprobs=logprobs, stream=True)
            assert "".join(each.choices[0].text for each in chunks) == made.text
        for role, text in (("user", made.text[1:]), ("assistant", made.text)):
            chat: Any = {"model": "copy", "messages": [{"role": role, "content": prompt}]}
            said = toy.client().chat.completions.create(**chat, max_tokens=5)
            assert said.choices[0].message.content == text


class InChannels(Letters):
    """Its letters a to e are <|channel|>, by turns analysis and final, <|message|>, a word of its
    own each time, and <|start|>."""

    names: ClassVar = dict(
        zip(
            Letters(LETTERS).encode("ace"), ("<|channel|>", "<|message|>", "<|start|>"), strict=True
        )
    )

    def spelled(self, token: int, before: Sequence[int] = ()) -> bytes:
        letter, nth = LETTERS[token : token + 1], list(before).count(token)
        if letter == "b":
            return (b"analysis", b"final")[nth % 2]
        return b"" if token in self.names else f"{letter}{nth} ".encode()


def test_what_a_model_thinks_is_told_apart() -> None:
    engine = toy_engine()
    engine.tokenizer = InChannels(LETTERS)
    with served(engine=engine) as toy:
        made, chunks = chat(toy), list(chat(toy, stream=True))
        text = toy.client().completions.create(model="auto", prompt="abcabcab", max_tokens=24)
    message = made.choices[0].message
    deltas = [choice.delta.model_dump() for chunk in chunks for choice in chunk.choices]
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert (joined(chunks), thought) == (message.content, message.reasoning_content)
    assert (message.content, thought) == ("d2 d4 ", "d0 d1 d3 ")
    assert text.choices[0].text.startswith("d0 finald1")  # completions have all channels
