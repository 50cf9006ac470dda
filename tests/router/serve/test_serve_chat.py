"""Chat completions by the official client, whole and streamed."""

from __future__ import annotations

from serve_toys import Served

ASKED = [{"role": "user", "content": "abcabcab"}]


def test_an_answer_is_what_the_router_gives(toy: Served) -> None:
    wanted = toy.desk.routers["default"].generate("abcabcab", max_new_tokens=24)
    made = toy.client().chat.completions.create(model="auto", messages=ASKED, max_tokens=24)
    assert made.choices[0].message.content == wanted.result.text
    assert made.choices[0].finish_reason == {"eos": "stop"}.get(
        wanted.result.finish_reason, wanted.result.finish_reason
    )
    assert made.usage.prompt_tokens == 8
    assert made.usage.completion_tokens == len(wanted.result.ids)


def test_a_stream_says_the_same(toy: Served) -> None:
    named = {"model": "auto", "messages": ASKED, "max_tokens": 24}
    whole = toy.client().chat.completions.create(**named)
    chunks = list(toy.client().chat.completions.create(**named, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) > 3
