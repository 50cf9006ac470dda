"""Calls between backticks, which the template's form is not."""

import json

import pytest

from router.serve.tools import HERMES, CallReader, FencedCalls

F = '{"name": "f", "arguments": {"a": "}```"}}'
G = '{"name": "g",\n "arguments": {}}'
CALLED_F, CALLED_G = ("f", {"a": "}```"}), ("g", {})
CASES = {
    "fenced": (f"```json\n{F}\n```", "", [CALLED_F]),
    "no language": (f" ```\n{F}\n```\n", "", [CALLED_F]),
    "bare": (F, "", [CALLED_F]),
    "several": (f"```json\n{F}\n```\n```json\n{G}\n```", "", [CALLED_F, CALLED_G]),
    "words after it": (f"```json\n{F}\n```\nDone.", "Done.", [CALLED_F]),
    "not closed": (f"```json\n{F}", "", [CALLED_F]),
    "then in the template's form": (
        f"```json\n{F}\n```\n<tool_call>\n{F}\n</tool_call>", "", [CALLED_F, CALLED_F]
    ),
    "cut short": ('```json\n{"name": "f", "arguments": {"a', None, []),
    "another tool": ('{"name": "h", "arguments": {}}', None, []),
    "more keys": ('{"name": "f", "arguments": {}, "id": 1}', None, []),
    "no object": ('{"name": "f", "arguments": [1]}', None, []),
    "two objects": (f"```json\n{F},\n{G}\n```", None, []),
    "other JSON": ('```json\n{"a": 1}\n```', None, []),
    "code": ("```python\nprint(1)\n```", None, []),
    "later": (f"So:\n```json\n{F}\n```", None, []),
    "nothing": ("", None, []),
}  # fmt: skip


def reader(several: bool = True) -> CallReader:
    return CallReader(HERMES, FencedCalls(["f", "g"], "arguments", several))


@pytest.mark.parametrize("case", CASES)
def test_read_whole_and_by_letters(case: str) -> None:
    """content None: the text as it stands."""
    text, content, calls = CASES[case]
    content = text if content is None else content
    whole = reader().whole(text)
    told = [each["function"] for each in whole.get("tool_calls", [])]
    assert [(each["name"], json.loads(each["arguments"])) for each in told] == calls
    assert (whole["content"] or "") == content
    said, pieces, one = "", dict[int, dict[str, str]](), reader()
    for part in [*map(one.add, text), one.finish()]:
        said += part.get("content", "")
        for call in part.get("tool_calls", []):
            kept = pieces.setdefault(call["index"], {"name": "", "arguments": ""})
            for key, value in call["function"].items():
                kept[key] += value
    assert said == content and one.ended == bool(calls)
    assert [(each["name"], json.loads(each["arguments"])) for each in pieces.values()] == calls


def test_one_call_at_most() -> None:
    made = reader(several=False).whole(CASES["several"][0])
    assert len(made["tool_calls"]) == 1 and made["content"].startswith("```json")


def test_text_that_cannot_be_a_call_is_not_held_back() -> None:
    one = reader()
    assert one.add("```") == {}
    assert one.add("python\n") == {"content": "```python\n"}
    assert one.add("{") == {"content": "{"}  # nor what comes after it
