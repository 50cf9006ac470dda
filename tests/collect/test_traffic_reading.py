"""Logs of several shapes, and what of them becomes token ids."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import page
from tiny_models import tokenizer

from collect.traffic.clusters import tasks_of
from collect.traffic.reading import read_logs
from collect.traffic.records import LoggedAnswer
from collect.traffic.tokens import tokenised
from decoders.common.errors import DraftpickError
from decoders.models import targets

CHAT = [{"role": "user", "content": "what is the sum"}]
SAID = {"role": "assistant", "content": "the sum is three"}
CHOICE = {"index": 0, "message": SAID, "finish_reason": "stop"}
BODY = {"messages": CHAT, "max_tokens": 9, "temperature": 0.5}
RESPONSE = {"choices": [CHOICE], "usage": {"completion_tokens": 5}}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("words")
    tokenizer(folder, unk_token="<unk>", eos_token="</s>")
    made = targets.load_tokenizer(folder)
    made.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return made


def read(folder: Path, *lines: Any) -> list[LoggedAnswer]:
    path = folder / "log.jsonl"
    path.write_text(
        "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines)
    )
    return read_logs([path]).answers


def exchange(messages: list[Any], **choice: Any) -> dict[str, Any]:
    return {"request": {"messages": messages}, "response": {"choices": [{**CHOICE, **choice}]}}


SHAPES: dict[str, list[Any]] = {
    "request and response": [{"request": BODY, "response": RESPONSE}],
    "as texts": [{"request": json.dumps(BODY), "response": json.dumps(RESPONSE)}],
    "draftpick's own": [
        {"arm": "a", "propensity": 1.0, "outcome": {"new_tokens": 5, "wall_s": 2.0},
         "time": "2026-11-25T10:00:02Z",
         "request": {"prompt_tokens": 4, "max_new_tokens": 9, "temperature": 0.5},
         "text": {"prompt": "what is the sum", "answer": "the sum is three"}}
    ],
    "llama.cpp's own form": [
        {"request": {"prompt": "what is the sum", "n_predict": 9},
         "response": {"content": "the sum is three", "stop_type": "eos", "tokens_predicted": 5}}
    ],
    "llama.cpp's log": [
        "0.01 D srv  log_server_r: request:  " + json.dumps(BODY),
        "0.01 D srv  log_server_r: response: " + json.dumps(RESPONSE),
    ],
    "vLLM's log": [
        "INFO 11-25 10:00:01 [logger.py:47] Received request c-1: prompt: 'what is the sum', "
        "params: SamplingParams(n=1, temperature=0.5, max_tokens=9), prompt_token_ids: None, x.",
        "INFO 11-25 10:00:01 [logger.py:88] Generated response c-1 (streaming delta): output: "
        "'the', output_token_ids: None, finish_reason: None",
        "INFO 11-25 10:00:03 [logger.py:88] Generated response c-1 (streaming complete): output: "
        "'the sum is three', output_token_ids: None, finish_reason: stop",
    ],
    "vLLM's log with details": [
        "INFO 11-25 10:00:01 [logger.py:57] Received request c-1: params: SamplingParams("
        "temperature=0.5, max_tokens=9), lora_request: None.",
        "DEBUG 11-25 10:00:01 [logger.py:47] Request c-1 details: prompt: \"what is the sum\", "
        "prompt_token_ids: None, prompt_embeds shape: None.",
        "INFO 11-25 10:00:03 [logger.py:88] Generated response c-1: output: 'the sum is three', "
        "output_token_ids: None, finish_reason: stop",
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_answer(shape: str, tmp_path: Path, words: Any) -> None:
    (answer,) = read(tmp_path, *SHAPES[shape])
    (made,) = tokenised([answer], words, (1,)).answers
    assert words.decode(made.prompt).strip() == "what is the sum"
    assert words.decode(made.ids, skip_special_tokens=True) == "the sum is three"
    assert (made.ids[-1] == 1) == (shape != "draftpick's own")
    assert answer.limit == 9
    assert answer.temperature == (None if shape == "llama.cpp's own form" else 0.5)
    if shape.startswith(("vLLM", "draftpick")):
        assert answer.ended - answer.started == 2.0


def test_lines_are_read_as_the_page_shows_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    from openai.resources.chat.completions import Completions
    from openai.types.chat import ChatCompletion

    told = (
        page("docs/engines/logs.md").partition("## Logs that are read\n")[2].partition("\n## ")[0]
    )
    (shown,) = re.findall(r"```jsonc\n(.*?)```", told, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", told, re.DOTALL)
    (answer,) = read(tmp_path, shown)
    assert answer.temperature == 0 and answer.ended_by == "stop"
    assert answer.asked == "Why is the sky blue?" and answer.ended - answer.started == 1.75
    (tmp_path / "log.jsonl").unlink()
    named = {"id": "c", "created": 1, "model": "m", "object": "chat.completion"}
    whole = ChatCompletion.model_validate({**named, "choices": [CHOICE]})
    monkeypatch.setattr(Completions, "create", lambda _, **request: whole)
    monkeypatch.chdir(tmp_path)
    exec(code, made := dict[str, Any]())
    assert made["create"](model="m", **BODY) is whole
    (written,) = read_logs([tmp_path / "log.jsonl"]).answers
    assert 0 <= written.ended - written.started < 60
    (ids,), (same,) = (
        tokenised(each, words, (1,)).answers
        for each in ([written], read(tmp_path, {"request": BODY, "response": RESPONSE}))
    )
    assert (ids.prompt, ids.ids, ids.limit) == (same.prompt, same.ids, same.limit)


def test_token_ids_are_taken_as_they_are(tmp_path: Path, words: Any) -> None:
    choice = {"text": "sum", "token_ids": [2], "finish_reason": "length"}
    line = {
        "request": {"prompt": "add"},
        "response": {"choices": [choice], "prompt_token_ids": [3]},
    }
    (made,) = tokenised(read(tmp_path, line), words, (1,)).answers
    assert (made.prompt, made.ids, made.limit) == ([3], [2], 1)
    (own,) = SHAPES["draftpick's own"]
    line = own | {"text": own["text"] | {"prompt_ids": [5, 3]}}  # the conversation so far
    (made,) = tokenised(read(tmp_path, line), words, (1,)).answers
    assert made.prompt == [5, 3] and made.logged.asked == "what is the sum"


def test_an_answer_with_calls_is_what_the_template_writes(tmp_path: Path, words: Any) -> None:
    words = targets.load_tokenizer(Path(words.name_or_path))
    words.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% for c in m.tool_calls or [] %}"
        "add {{ c.function.arguments.to }} </s> {% endfor %}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "add", "arguments": '{"to": "two"}'}}
    for content in (None, "the sum"):
        said = {"role": "assistant", "content": content, "tool_calls": [call]}
        choice = {"message": said, "finish_reason": "tool_calls"}
        answers = read(tmp_path, {"request": BODY, "response": {"choices": [choice]}})
        (made,) = tokenised(answers, words, (1,)).answers
        assert words.decode(made.ids).split()[-3:] == ["add", "two", "</s>"]
        assert words.decode(made.ids).startswith(content or "add")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_a_part_of_the_answer(name: str, tmp_path: Path, words: Any) -> None:
    """Of one that was cut before it said anything they are all of it."""
    cut = {"role": "assistant", "content": None, name: "the sum is "}
    whole = cut | {"content": "three"}
    ids = words.encode("the sum is add three", add_special_tokens=False)  # a mark in between
    lines = [exchange(CHAT, message=cut, finish_reason="length"), exchange(CHAT, message=whole)]
    answers = read(tmp_path, *lines, exchange(CHAT, message=whole, token_ids=ids))
    made = [tokenised([each], words, (1,)).answers[0] for each in answers]
    texts = [words.decode(each.ids, skip_special_tokens=True) for each in made]
    assert texts == ["the sum is", "the sum is three", "the sum is add three"]


def test_what_cannot_be_put_into_tokens_is_counted(tmp_path: Path, words: Any) -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    lines = [exchange(picture), exchange(CHAT), {"no": "answer"}, "{"]
    answers = read(tmp_path, *lines)
    made = tokenised(answers, words, (1,))
    assert len(made.answers) == 1 and sum(made.left_out.values()) == 1
    assert read_logs([tmp_path]).without == 2


def test_lines_are_numbered_as_they_stand(tmp_path: Path) -> None:
    (answer,) = read(tmp_path, "", "", " ", exchange(CHAT))
    assert answer.where.endswith("log.jsonl:4")


QUOTES = (
    "2024-05-06 10:11:12 Received request c-9: prompt: None, params: max_tokens=3",
    "Request c-9 details: prompt: None, prompt_token_ids: [1], y",
    "Generated response c-9: output: None, finish_reason: stop",
    "request: {",
    "response: {",
)


@pytest.mark.parametrize("shape", [name for name in SHAPES if name.endswith(("log", "details"))])
def test_words_of_a_log_in_a_text_are_a_text(shape: str, tmp_path: Path) -> None:
    """Both a prompt and an answer may quote any line."""
    for quote in QUOTES:
        lines = [
            line.replace("sum is three", f"{quote} x").replace("is the sum", f"{quote} ?")
            for line in SHAPES[shape]
        ]
        (answer,) = read(tmp_path, *lines)
        assert answer.answer["content"] == f"the {quote} x" and answer.asked == f"what {quote} ?"
        (bare,) = read(tmp_path, *(line.partition("] ")[2] or line for line in lines))
        assert bare.started is None and bare.ended is None
        assert answer.prompt_ids is None and answer.limit == 9


def test_load_is_read_from_beginnings_and_ends(tmp_path: Path) -> None:
    line = {"request": BODY, "response": RESPONSE}
    given = read(
        tmp_path,
        {**line, "started": "2026-11-25T10:00:00Z", "ended": "2026-11-25T10:00:03Z"},
        {**line, "started": 100.0, "ended": 100.5, "conversation_id": "me", "task": "code"},
        line,
    )
    spans = [None if each.span is None else each.span[1] - each.span[0] for each in given]
    assert spans == [3.0, 0.5, None]
    assert (given[1].group, given[1].task) == ("me", "code")


NO_ANSWER = (
    [{"request": BODY}],
    [{"response": RESPONSE}],
    [{"request": BODY, "response": {}}],
    ["INFO: Started server process [1]"],
    ["7", "null", '"text"', "[1]"],
)


@pytest.mark.parametrize("lines", NO_ANSWER)
def test_logs_without_answers_are_one_sentence(lines: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="holds an answer with its prompt"):
        read(tmp_path, *lines)


def counted(many: int) -> Iterator[dict[str, Any]]:
    for _ in range(3):
        usage = {"completion_tokens": many}
        yield {"request": BODY, "response": {"choices": [CHOICE], "usage": usage}}


def test_a_tokenizer_that_does_not_fit_is_told_by_its_counts(tmp_path: Path, words: Any) -> None:
    assert len(tokenised(read(tmp_path, *counted(7)), words, (1,)).answers) == 3
    with pytest.raises(
        DraftpickError, match=r"does not fit the logs: of 3 answers.*\(12 tokens in"
    ):
        tokenised(read(tmp_path, *counted(12)), words, (1,))


def test_a_tokenizer_that_cannot_spell_the_answers_does_not_fit(tmp_path: Path, words: Any) -> None:
    strange = {"role": "assistant", "content": "quite other words"}
    with pytest.raises(DraftpickError, match="it cannot spell 1 of 1 answers"):
        tokenised(read(tmp_path, exchange(CHAT, message=strange)), words, (1,))
    with pytest.raises(DraftpickError, match=r"holds the token id 500, and the tokenizer has 14"):
        tokenised(read(tmp_path, exchange(CHAT, token_ids=[500])), words, (1,))


def test_kinds_of_work_are_called_by_their_words() -> None:
    asked = [f"translate the german letter {n}" for n in range(30)]
    asked += [f"write python code for number {n}" for n in range(30)]
    answers = [
        LoggedAnswer(where="", messages=({"role": "user", "content": text},)) for text in asked
    ]
    named = tasks_of(answers, 2)
    assert len(set(named[:30])) == len(set(named[30:])) == 1 and named[0] != named[30]
    assert set(named[0].split()) <= {"translate", "the", "german", "letter"}
    assert tasks_of(answers[:5], 2) == ["other"] * 5
