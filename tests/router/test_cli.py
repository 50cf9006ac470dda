import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Draftpick
from grammar_toys import toy_engine
from router_fakes import JSON_KEYS, FakePolicy
from scipy.stats import chi2_contingency, chisquare
from spelling_toys import HARMONY, byte_level
from toy_engine import ToyEngine

from collect.queries import shipped_folder
from decoders.arms import arms_of
from decoders.engine import Engine
from decoders.options import EngineOptions
from decoders.records import Request, Sampling
from decoders.testing.fake_engine import FakeEngine
from router import cli
from router.commands.generate.run import _Printed
from router.commands.models import acceptance
from router.commands.options import answer_request, engine_options
from router.routing import loading
from router.specbench import demo


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    """Every command gets the fake engine and the fake policy."""
    import policies

    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: engine)
    monkeypatch.setattr(policies, "load", lambda *_: FakePolicy())


def test_generate_streams_and_says_what_it_cost(draftpick: Draftpick) -> None:
    said = draftpick("generate", "abcd efg")
    assert said.out == "ABCD EFG\n"
    assert "arm small" in said.err and "tok/s" in said.err
    assert len(said.err.splitlines()) == 1


def test_generate_tells_how_far_a_long_prompt_is_read(
    draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.commands.generate import run

    monkeypatch.setattr(run, "LONG_PROMPT", len("u:Say hello"))
    said = draftpick("generate", "Say hello")
    told = [line for line in said.err.splitlines() if "reading the prompt" in line]
    assert len(told) == 2 and "0 of 11 tokens" in told[0] and "11 of 11 tokens" in told[1]
    assert "reading" not in said.out
    assert "reading the prompt" not in draftpick("generate", "Hi").err


def test_generate_json_is_one_object(draftpick: Draftpick) -> None:
    found = draftpick("generate", "abcd", "--json", "--arm", "wide", "--max-new-tokens", 3).json
    assert list(found) == JSON_KEYS
    assert (found["text"], found["arm"], found["finish_reason"]) == ("ABC", "wide", "length")


@pytest.mark.parametrize("more", [[], ["--arm", "wide"]])
def test_the_model_is_loaded_as_asked(more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(*given: Any) -> FakeEngine:
        asked.append(given)
        return FakeEngine()

    monkeypatch.setattr(loading, "load_engine", load)
    monkeypatch.setattr(Engine, "unsupported_reason", staticmethod(lambda options, *arms: None))
    how = ["--target", "t", "--dtype", "int8", "--device", "cpu", "--backend", "hf"]
    how += ["--context", "99", "--chat-template", "{{ 1 }}"]
    assert cli.main(["generate", "hi", *how, *more]) == 0
    forced = (["wide"], Request()) if more else ()
    assert asked == [(EngineOptions("t", None, "int8", "cpu", "hf", 99, "{{ 1 }}"), *forced)]


def test_prompts_from_a_file_in_every_form(
    tmp_path: Path, engine: FakeEngine, draftpick: Draftpick
) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        "just this",
        {"prompt": "a prompt"},
        {"id": "q1", "task": "mt_bench", "turns": ["one", "two"]},
        {"question_id": 5, "messages": [{"role": "system", "content": "s"},
                                        {"role": "user", "content": "hi"}]},
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = draftpick("generate", "--prompts", path, "--json").lines
    assert [row["text"] for row in found] == ["JUST THIS", "A PROMPT", "ONE", "TWO", "HI"]
    assert [(row.get("id"), row.get("turn")) for row in found] == [
        (None, None), (None, None), ("q1", 0), ("q1", 1), (5, None),
    ]  # fmt: skip
    assert engine.reused == [False, False, False, True, False], "a chat's later turns share it"


def test_a_chat_that_the_user_does_not_end_is_refused(tmp_path: Path, draftpick: Draftpick) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}]
    path.write_text(json.dumps({"messages": chat}))
    told = draftpick("generate", "--prompts", path, code=2).err
    assert "prompts.jsonl:1: the last of the messages" in told


def test_a_failing_prompt_becomes_an_error_object(tmp_path: Path, draftpick: Draftpick) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"id": 7, "prompt": " "}\n{"prompt": "three"}\n')
    found = draftpick("generate", "--prompts", path, "--json", code=1).lines
    assert [row.get("text") for row in found] == ["ONE", None, "THREE"]
    assert found[1] == {"id": 7, "error": found[1]["error"]} and "empty" in found[1]["error"]


def test_every_prompt_has_a_draw_of_its_own(tmp_path: Path, draftpick: Draftpick) -> None:
    """The policy draws (autoregressive, small, wide) with .1, .7, .2 for prompts of even length."""
    path, n = tmp_path / "prompts.jsonl", 400

    def drawn(seed: int) -> list[str]:
        made = draftpick("generate", "--prompts", path, "--dynamic", "--json", "--seed", seed)
        return [line["arm"] for line in made.lines]

    lines = [json.dumps({"prompt": "ab"} | ({"id": i} if i % 2 else {})) for i in range(n)]
    path.write_text("\n".join(lines))
    first = drawn(3)
    path.write_text("\n".join(lines[:50]))
    assert first[:50] == drawn(3) != drawn(4)
    arms, distribution = ["autoregressive", "small", "wide"], np.array([0.1, 0.7, 0.2])
    seen = np.array([arms.index(arm) for arm in first])
    assert chisquare(np.bincount(seen, minlength=3), n * distribution).pvalue > 0.01
    pairs = np.histogram2d(seen[:-1], seen[1:], bins=3)[0]  # neighbours: a draw and the next
    assert chi2_contingency(pairs).pvalue > 0.01
    halves = np.histogram2d(seen[: n // 2], seen[n // 2 :], bins=3)[0]
    assert chi2_contingency(halves).pvalue > 0.01
    # An id keeps its draw wherever in the file it stands.
    path.write_text("\n".join(reversed(lines[:50])))
    assert drawn(3)[::-1][1::2] == first[1:50:2]


def test_seeds_of_prompts_and_turns(
    tmp_path: Path, engine: FakeEngine, draftpick: Draftpick
) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": 1, "turns": ["a", "b"]}, "c", "d", {"id": "1", "prompt": "e"},
             {"id": 1, "prompt": "f"}]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    command = ["generate", "--prompts", path, "--arm", "wide", "--json"]
    draftpick(*command, "--seed", 9)
    assert len(set(engine.seeds)) == len(engine.seeds) == 6, "each turn has its own"
    assert all(seed is not None and seed != 9 for seed in engine.seeds)
    engine.seeds.clear()
    draftpick(*command)
    assert engine.seeds == [None] * 6
    engine.seeds.clear()
    draftpick("generate", "alone", "--arm", "wide", "--seed", 9)
    path.write_text(json.dumps(lines[0]))
    draftpick(*command, "--seed", 9)
    assert engine.seeds[:2] == [9, 9] and engine.seeds[2] not in (9, None)


def test_a_sampled_answer_says_by_which_seed_it_is_had_again(
    tmp_path: Path, draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"plain": {"kind": "autoregressive"}, "copy": {"kind": "max_gram"}}
    engine = ToyEngine(arms_of({"arms": arms}, Path("toys")))
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: engine)
    path = tmp_path / "two.jsonl"
    path.write_text(json.dumps({"turns": ["abab", "cdcd"]}))

    def said(*words: object) -> tuple[str, list[str]]:
        made = draftpick("generate", "--max-new-tokens", 20, *words)
        return made.out, re.findall(r" · seed (\d+)", made.err)

    first, (seed,) = said("abab", "--arm", "copy", "--temperature", "1")
    assert (first, [seed]) == said("abab", "--arm", "plain", "--temperature", "1", "--seed", seed)
    other, (another,) = said("abab", "--arm", "plain", "--temperature", "1")
    assert other != first and another != seed and int(seed) < 2**53
    turns, (seed, _) = said("--prompts", path, "--arm", "copy", "--temperature", "1")
    again = ["--prompts", path, "--arm", "plain", "--temperature", "1", "--seed", seed]
    assert said(*again)[0] == turns
    assert said("abab", "--arm", "copy")[1] == []
    words = ("generate", "abab", "--arm", "copy", "--temperature", "1", "--json")
    assert draftpick(*words).json["seed"] >= 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "PROMPT or --prompts"),
        (["generate", "hi", "--prompts", "x.jsonl"], "PROMPT or --prompts"),
        (["generate", ""], "empty"),
        (["generate", "hi", "--top-p", "0"], "top_p"),
        (["generate", "hi", "--stop", ""], "stop string"),
        (["generate", "x" * 3000], "context holds 2000"),
        (["generate", "hi", "--explore", ".1", "--arm", "wide"], "either"),
        (
            ["generate", "hi", "--arm", "wide", "--dynamic"],
            "nothing reads --dynamic; leave --arm out",
        ),
        (
            ["generate", "hi", "--arm", "wide", "--policy", "p", "--embedder", "e"],
            "nothing reads --policy, --embedder; leave --arm out",
        ),
        (["generate", "hi", "--log-text"], "need --log FOLDER"),
        (["generate", "hi", "--learn", "p", "--arm", "wide"], "--learn samples arms itself"),
    ],
)
def test_a_users_mistake_is_one_sentence(
    arguments: list[str], words: str, draftpick: Draftpick, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert words in draftpick(*arguments, code=2).error
    assert list(tmp_path.iterdir()) == [], "nothing is half-written"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ('{"prompt": "a"}\nnot json\n', ":2: not JSON"),
        ('{"prompt": 3}\n', ":1: needs"),
        ("[1]\n", ":1: must be an object"),
    ],
)
def test_a_bad_prompt_file_names_its_line(
    content: str, words: str, tmp_path: Path, draftpick: Draftpick
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    assert words in draftpick("generate", "--prompts", path, code=2).error


@pytest.mark.parametrize(("content", "words"), [("{", "not a JSON schema"), ("[]", "no object")])
def test_a_bad_schema_file_is_named(
    content: str, words: str, tmp_path: Path, draftpick: Draftpick
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    told = draftpick("generate", "hi", "--json-schema", path, code=2).error
    assert words in told and str(path) in told


def test_an_answer_is_held_to_a_schema(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, draftpick: Draftpick
) -> None:
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: toy_engine())
    path = tmp_path / "schema.json"
    path.write_text('{"enum": ["rome", "oslo"]}')
    said = draftpick("generate", "hi", "--arm", "copy", "--json-schema", path)
    assert said.json in ("rome", "oslo")


def test_other_errors_are_one_line_and_code_1(engine: FakeEngine, draftpick: Draftpick) -> None:
    engine.fails = "boom"
    assert "--debug" in draftpick("generate", "boom", "--json", code=1).error
    shown = draftpick("generate", "boom", "--json", "--debug", code=1).err
    assert "Traceback" in shown and "RuntimeError: the fake engine was told" in shown


def test_an_interrupt_is_code_130(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, draftpick: Draftpick
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "prefill", interrupt)
    draftpick("generate", "hi", code=130)


def test_specbench_then_report(question_file: Path, tmp_path: Path, draftpick: Draftpick) -> None:
    out = tmp_path / "bench"
    words = ["specbench", "--questions", question_file, "--out", out, "--max-new-tokens"]
    assert "routed" in draftpick(*words, 8, "--arms", "small,wide").out
    assert "max_new_tokens: 8 there, 9 now" in draftpick(*words, 9, code=2).error
    assert str(out / "report.html") in draftpick("report", out).out
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "://" not in page and "<script" not in page, "self-contained"


def test_a_full_disk_is_one_line(
    question_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    import os

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "run.json")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "bench"
    said = draftpick("specbench", "--questions", question_file, "--out", out, code=1)
    assert "No space left on device" in said.error
    assert [path.name for path in out.iterdir()] == [".lock"]


def test_arms_and_models_as_tables_and_json(
    monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    arm = {"name": "small", "kind": "neural", "drafter": {"model": "x", "k": None}, "length": 4,
           "verifier": "lossless", "settings": {"K": [[2, 3], [0, 3]]}, "lossless": True,
           "note": "n"}  # fmt: skip
    monkeypatch.setattr("router.commands.arms.arms_json", lambda path=None: [arm])
    assert draftpick("arms", "--json").json == [arm]
    assert "model=x" in (shown := draftpick("arms").out) and "K=[2, 3], [0, 3]" in shown
    known = draftpick("models", "--json").json
    assert {"name", "kind", "licence", "sha256", "size_bytes", "on_disk"} <= known[0].keys()
    assert known[0]["name"] in draftpick("models").out
    assert acceptance({"qa": 0.3, "rag": 0.5}) == "40% (30% to 50%)"


def test_what_an_arm_may_be(draftpick: Draftpick) -> None:
    from decoders.arms import KINDS

    told = {entry["entry"]: entry for entry in draftpick("arms", "--kinds", "--json").json}
    assert {f"kind: {kind}" for kind in KINDS} < told.keys()
    assert told["kind: neural"]["fields"]["drafter"] == {}
    assert told["kind: vertical"]["fields"]["lenience"] == {"default": 1.0}
    assert all(entry["what"] for entry in told.values())
    shown = draftpick("arms", "--kinds").out
    words = " ".join(shown.replace("│", " ").split())
    assert "{rule: chow" in words and "sampled_beams" in words and "lenience=1.0" in words
    assert max(map(len, shown.splitlines())) <= 80


def test_the_demo_runs_the_stages_in_order_and_stops_at_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def command(arguments: list[str]) -> int:
        ran.append(arguments[0])
        return 3 if arguments[0] == stop_at else 0

    stop_at = ""
    assert demo.run_demo(command, tmp_path, 3, 1, 8) == 0
    stages = ["collect", "headroom", "train", "generate", "specbench", "report"]
    assert list(dict.fromkeys(ran)) == stages
    assert "report.html" in capsys.readouterr().out
    ran.clear()  # with too few queries to estimate anything
    assert demo.run_demo(command, tmp_path, 2, 1, 8) == 0 and "headroom" not in ran
    ran.clear()
    stop_at = "train"
    assert demo.run_demo(command, tmp_path, 2, 1, 8) == 3
    assert ran[-1] == "train" and "generate" not in ran
    assert (shipped_folder("test") / "qa.jsonl").is_file()


def test_shared_options_have_the_records_own_defaults() -> None:
    assert engine_options() == EngineOptions()
    assert engine_options(target="t", context=9) == EngineOptions("t", context=9)
    assert answer_request(top_k=3) == Request(sampling=Sampling(top_k=3))
    with pytest.raises(TypeError, match="nonsense"):
        engine_options(nonsense=1)


# -- a model that thinks in a channel of its own ---------------------------------------------------


def test_what_a_model_thinks_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": HARMONY})
    answer = (
        "<|channel|>analysis<|message|>a cat<|end|><|start|>assistant<|channel|>final<|message|>"
        "the end"
    )
    printed = _Printed(tokenizer)
    printed.put(torch.tensor([1, 2]))  # the prompt
    for token in tokenizer.encode(answer, add_special_tokens=False):
        printed.put(torch.tensor([token]))
    printed.end()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("the end\n", "a cat\n\n")
