"""Every command against inputs that are wrong: exit code 2, one sentence that names what was wrong,
and no exception's name; nothing half-written stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer.main
from stored_tables import table_of
from tiny_models import tokenizer

import policies
from decoders.common import plugins
from decoders.testing.fake_engine import FakeEngine
from decoders.testing.fake_server import FakeEndpoint, listening
from router import cli

LONG = "x" * 300
DEEP = ("[" + " " * 20) * 100_000  # YAML looks back over 1024 characters, for what a key may begin
# What a file may hold, or be, where another is asked for.
FILES = {
    "nothing": None,
    "a folder": "rewards",
    "below a file": "queries.jsonl/below",
    "a long name": LONG,
    "empty": b"",
    "bytes": b"\x00\xff\xfe" * 9,
    "Latin-1": "{\"a\": \"é\"}".encode("latin-1"),
    "half": b'{"format": 1, "arms": {"a": {"kind": ',
    "null": b"null",
    "a number": b"7",
    "a list": b"[1, [2]]",
    "a list of objects": b"[{}]",
    "an object": b'{"arms": 3, "sweep": [], "id": {}, "format": [], "kind": null}',
    "text": b'"text"',
    "deep": DEEP.encode(),
    "nan": b"NaN",
    "a huge number": b"9" * 5000,
}  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "count": ("x", "1.5", "0", "-1", "nan", ""),
    "natural": ("x", "1.5", "-1", ""),
    "integer": ("x", "1.5", "nan", ""),
    "number": ("x", "nan", "-1", "inf", ""),
    "share": ("x", "nan", "-0.1", "1.1", "inf", ""),
    "signed": ("x", "nan", "inf", ""),
    "numbers": ("x", "nan", "-1", ",", "0,x", "0 1"),
    "weights": ("x", "0@1", "0@0=1", "x@1=2", "0@1=-1", "0@1=1.5", "0@1=101", "3@1=2", ","),
    "name": ("nope", "a b", "../x", LONG),
    "names": ("nope", "a,nope", "../x"),
    "folder": ("nowhere", "queries.jsonl", "queries.jsonl/below", "bare", LONG),
    "out folder": ("queries.jsonl", "queries.jsonl/below", "/proc/below", LONG),
    "page": ("rewards", "queries.jsonl/below", "/proc/below", LONG),
    "figure": ("rewards", "queries.jsonl/below.png", "/proc/below.png", f"{LONG}.png", "name.xyz"),
    "new name": ("../x", "a/b", "x:y", ""),
    "limit": ("x", "nan", "-1", ""),
    "header": ("a b", "a:b", ""),
    "host": ("../x", "a b", LONG, "256.0.0.1"),
    "store": ("http://127.0.0.1:1", "nonsense://x", "sqlite:///queries.jsonl",
              "sqlite:////proc/below/x.db", "http://", "postgresql://me:pw@127.0.0.1:1/x"),
    "policy": ("nowhere", "queries.jsonl", "bare", LONG, "runs:/x/policy", "models:/x@y",
               "models:/", "runs:/", "rewards"),
    "target": ("nowhere/at/all", "bare", "queries.jsonl", "", "me@there", LONG, "a.gguf", "nope"),
    "text": ("\udcff",),
    "url": ("nowhere", "ftp://x/v1", "http://", "http://me:pw@x/v1", "http://127.0.0.1:1/v1"),
    "collector": ("nowhere", "ftp://x/v1", "http://", "localhost:4317"),
    "fields": ("x", "[1]", "{}", "7", '{"model": "x"}'),
    "cost": ("x", "nan", "0", "-1", "inf"),
    "file": tuple(f"file: {name}" for name in FILES),
}  # fmt: skip
ENGINE = {"--dtype": "name", "--device": "name", "--backend": "name", "--context": "count",
          "--chat-template": "text", "--config": "file", "--target": "target",
          "--kv-dtype": "name"}  # fmt: skip
REQUEST = {"--max-new-tokens": "count", "--temperature": "number", "--top-p": "number",
           "--top-k": "natural"}  # fmt: skip
TABLE = {"--embedder": "target", "--arms": "names", "--temperatures": "numbers",
         "--at-once": "numbers", "--repetitive": "name", "--weights": "weights"}  # fmt: skip
ARMS = ("--config", "arms.yaml")
COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "generate": (("generate", "Hi", *ARMS), {
        "prompt": "text", "--prompts": "file", "--arm": "name", "--policy": "policy",
        "--embedder": "target", "--explore": "share", "--learn": "out folder", "--seed": "integer",
        "--stop": "text", "--log": "out folder", "--json-schema": "file", **REQUEST, **ENGINE,
    }),
    "specbench": (("specbench", "--no-routed", "--questions", "queries.jsonl", "--out", "out"), {
        "--out": "out folder", "--questions": "file", "--arms": "names",
        "--candidate": "policy", "--limit": "count",
        "--tasks": "names", "--seed": "integer", "--log": "out folder",
        **REQUEST, **ENGINE,
    }),
    "report": (("report", "bench"), {
        "folder": "folder", "--out": "page", 
    }),
    "align": (("align", "--queries", "queries.jsonl", "--out", "out"), {
        "--out": "out folder", "--kind": "name", "--queries": "file", "--outputs": "file",
        "--start": "file", "--tasks": "names", "--vocab-size": "count", "--exit-layer": "count",
        "--blocks": "natural", "--width": "count", "--epochs": "count", "--minutes": "number",
        "--batch-tokens": "count", "--lr": "number", "--matrix-lr": "number",
        "--max-prompt": "count", "--max-new-tokens": "count", "--seed": "integer",
        "--target": "target", "--device": "name", "--context": "count", "--chat-template": "text",
    }),
    "specialise": (("specialise", "--queries", "queries.jsonl", "--out", "out"), {
        "--out": "out folder", "--from-logs": "file", "--queries": "file", "--held-out": "file",
        "--minutes": "number", "--write-minutes": "number", "--groups": "count", "--limit": "count",
        "--max-prompt": "count", "--max-new-tokens": "count", "--temperatures": "numbers",
        "--at-once": "numbers", "--timed": "natural", "--target": "target", "--device": "name",
        "--chat-template": "text", "--tracking-uri": "store",
    }),
    "demo": (("demo", "--out", "out"), {
        "--out": "out folder", "--collect-limit": "count", "--limit": "count",
        "--max-new-tokens": "count",
    }),
    "arms": (("arms",), {"--config": "file", "--target": "target"}),
    "models": (("models",), {"--clear": "name", "--fetch": "name"}),
    "collect": (("collect", *ARMS, "--queries", "queries.jsonl", "--out", "out"), {
        "more": "file", "--queries": "file", "--out": "out folder", "--arms": "names",
        "--limit": "count", "--max-new-tokens": "count", "--temperatures": "numbers",
        "--at-once": "numbers", "--draws": "count", "--batch-size": "count",
        "--embedder": "target",
        "--seed": "integer", "--engine": "name", "--ray-address": "name", "--summary": "folder",
        "--reward": "name", "--alpha": "share", **ENGINE,
    }),
    "theory": (("theory", "--acceptance", "0.5", "--cost", "0.1"), {
        "--acceptance": "share", "--cost": "number", "--parameters": "numbers",
        "--costs": "file", "--arm": "name", "--longest": "count",
    }),
    "headroom": (("headroom", "rewards"), {
        "rewards": "folder", "--reward": "name", "--alpha": "share", **TABLE, "--by": "names",
        "--seed": "integer", "--out": "figure", "--from-logs": "file", "--tokenizer": "target",
        "--target": "target", "--costs": "file", "--draft-model": "target", "--draft-cost": "cost",
        "--config": "file", "--clusters": "count", "--limit": "count",
    }),
    "costs": (("costs", "http://127.0.0.1:1/v1", "--out", "written.json"), {
        "url": "url", "--out": "page", "--model": "text", "--api-key-env": "name",
        "--most": "count", "--tokens": "count",
    }),
    "compare": (("compare", "rewards", "rewards"), {
        "before": "folder", "after": "folder", "--seed": "natural",
    }),
    "check": (("check", "http://127.0.0.1:1"), {
        "url": "url", "--model": "text", "--api-key-env": "name", "--queries": "file",
        "--at-once": "count", "--seconds": "number", "--max-new-tokens": "count", "--out": "page",
    }),
    "audit": (("audit", "http://127.0.0.1:1/v1", "--plain-url", "http://127.0.0.1:2/v1"), {
        "url": "url", "--plain-url": "url", "--plain-body": "fields", "--body": "fields",
        "--model": "text", "--api-key-env": "name", "--queries": "file", "--limit": "count",
        "--max-new-tokens": "count", "--clients": "count", "--draws": "natural",
        "--temperature": "number", "--seed": "integer", "--out": "page",
    }),
    "train": (("train", "--rewards", "rewards"), {
        "--rewards": "folder", "--policy": "name", "--reward": "name", "--alpha": "share",
        "--max-loss": "number", "--confidence": "share",
        "--features": "names", **TABLE, "--train-size": "count", "--judge-by": "name",
        "--validation-share": "share", "--seed": "integer", "--epochs": "count",
        "--lr": "number", "--set": "name", "--tracking-uri": "store", "--register": "new name",
        "--out": "out folder",
    }),
    "evaluate": (("evaluate",), {
        "--logs": "folder", "--rewards": "folder", "--policy": "policy", "--reward": "name",
        "--alpha": "share", "--tau": "limit", "--seed": "natural",
    }),
    "serve": (("serve", *ARMS, "--port", "0"), {
        "--host": "host", "--port": "natural", "--policy": "policy", "--embedder": "target",
        "--api-key": "text", "--allow-origin": "name", "--temperature": "number",
        "--max-tokens": "count", "--slots": "count", "--queue": "count", "--timeout": "number",
        "--max-body": "count", "--drain": "number", "--learn": "out folder",
        "--engine": "name", "--replicas": "count",
        "--ray-address": "name", "--log": "out folder", "--isolate-by": "header",
        "--earlier-tokens": "natural", "--earlier-age": "number",
        "--prefix-memory": "name", "--otlp-traces-endpoint": "collector",
        **ENGINE,
    }),
    "export": (("export", "vllm"), {"engine": "name", "--config": "file"}),
    "learn": (("learn", "--logs", "log", "--policy", "online", "--out", "out"), {
        "--logs": "folder", "--policy": "policy", "--out": "out folder", "--reward": "name",
    }),
    "promote": (("promote", "drafter", "--rewards", "rewards"), {
        "model": "name", "--rewards": "folder", "--version": "natural", "--alias": "new name",
        "--margin": "number", "--reward": "name", "--alpha": "share", "--seed": "natural",
        "--tracking-uri": "store",
    }),
}  # fmt: skip


# What a command needs besides, so that the one mistake is its only one.
WITH: dict[tuple[str, str], tuple[str, ...]] = {
    ("generate", ""): ("--policy", "policy"),
    ("generate", "--policy"): (), ("generate", "--config"): (),
    ("generate", "--learn"): ("--policy", "online"),
    ("serve", ""): ("--policy", "policy"), ("serve", "--policy"): (), ("serve", "--config"): (),
    ("serve", "--learn"): ("--policy", "online"),
    ("serve", "--replicas"): ("--engine", "ray"),
    ("headroom", "--draft-cost"): ("--costs", "costs.json"),
    ("train", "--confidence"): ("--max-loss", "0.05"),
    ("evaluate", ""): ("--logs", "log", "--policy", "policy"),
    ("evaluate", "--logs"): ("--policy", "policy"), ("evaluate", "--policy"): ("--logs", "log"),
    ("evaluate", "--rewards"): ("--policy", "policy"),
    ("evaluate", "--alpha"): ("--rewards", "rewards", "--policy", "policy"),
}  # fmt: skip
ANY = {"experiment"}
IDLE = {  # of which any value will do there
    "specbench": {"--embedder", "--policy"},  # without a policy of one's own
    "export": {"--model"},
}
INSTEAD = {
    ("collect", option): ("collect", "--summary", "rewards")
    for option in ("--summary", "--reward", "--alpha")
}
LOGS = ("headroom", "--from-logs", "traffic.jsonl")
INSTEAD |= {
    ("headroom", option): (*LOGS, "--tokenizer", "words")
    for option in COMMANDS["headroom"][1]
    if option in ("--from-logs", "--tokenizer", "--costs", "--draft-model", "--draft-cost",
                  "--config", "--clusters", "--limit")
} | {("headroom", "--target"): LOGS}  # fmt: skip
RIGHT: set[tuple[str, ...]] = {("--json-schema", "file: an object")}
MEANT = ("bytes that are no UTF-8", "there is no MLflow store")  # of a prompt, of a policy


def built(place: Path, server: FakeEndpoint) -> None:
    """One of everything that a command reads, made by the commands over one small server."""
    queries = [
        {"id": f"{task}{n}", "task": task, "turns": [f"{task} number {n}"]}
        for task, n in product(("qa", "math"), range(10))
    ]
    (place / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    prompts = ("one", "two two", "three three three", "four") * 3
    (place / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    arms = {
        name: {"kind": "endpoint", "url": server.url, "model": name, "same_answers": True}
        for name in ("first", "second")
    }
    (place / "arms.yaml").write_text(json.dumps({"arms": arms}))
    (place / "bare").mkdir()
    tokenizer(place / "words", unk_token="<unk>", eos_token="</s>")
    said = {"choices": [{"text": "sum of two"}]}
    logged = [{"request": {"prompt": f"what is {n}"}, "response": said} for n in range(3)]
    (place / "traffic.jsonl").write_text("".join(json.dumps(one) + "\n" for one in logged))
    (place / "costs.json").write_text(json.dumps({"verify_s": [1.0], "draft_s": {}}))
    for number, content in enumerate(FILES.values()):
        if isinstance(content, bytes):
            (place / f"file-{number}").write_bytes(content)
    done("collect", *ARMS, "--queries", "queries.jsonl", "--out", "rewards")
    table = table_of(place / "rewards", "measured")
    policies.fit("knn", table, k=3).policy.save(place / "policy")
    policies.fit("thompson", table).policy.save(place / "online")
    done("generate", "--prompts", "prompts.jsonl", *ARMS, "--policy", "policy", "--explore", "0.5",
         "--log", "log", "--log-embeddings", "--seed", "1")  # fmt: skip
    done("specbench", "--no-routed", "--questions", "queries.jsonl", "--limit", "1",
         "--out", "bench")  # fmt: skip


def done(*words: str) -> None:
    assert cli.main(list(words)) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder. Nothing is fetched, served, or asked through more than one client."""
    from decoders.endpoints import engine as endpoints
    from decoders.options import EngineOptions
    from router.routing import loading
    from router.serve import server as serving

    folder, load, shared = tmp_path_factory.mktemp("bad"), loading.load_engine, endpoints.client()

    def fake(options: EngineOptions, *given: Any) -> Any:
        return FakeEngine() if options == EngineOptions() else load(options, *given)

    server = FakeEndpoint()
    with pytest.MonkeyPatch.context() as patch, listening(server):
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.delenv("PIP_FIND_LINKS", raising=False)
        patch.setenv("DRAFTPICK_CACHE", str(folder / "cache"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(loading, "load_engine", fake)
        patch.setattr(endpoints, "client", lambda: shared)
        patch.setattr(serving, "serve", lambda *_: None)
        built(folder, server)
        yield folder


def spelled(value: str) -> str:
    """As it stands on the command line: a file's name for what the file holds."""
    kind, _, name = value.partition(": ")
    if kind != "file":
        return value
    content = FILES[name]
    return f"file-{list(FILES).index(name)}" if isinstance(content, bytes) else content or "nowhere"


def words_of(command: str, option: str, value: str) -> list[str]:
    """The command line with this one mistake."""
    base = list(INSTEAD.get((command, option), COMMANDS[command][0]))
    if option in base:
        at = base.index(option)
        del base[at : at + 2]
    more = WITH.get((command, option), WITH.get((command, ""), ()))
    if option.startswith("--"):
        return [*base, *more, option, value]
    if option == "more":
        return [*base, *more, value]
    return [base[0], value, *base[2:], *more]  # the first argument


def cases() -> list[tuple[str, str, str]]:
    """(command, option, value) of all that is wrong."""
    return [
        (command, option, value)
        for command, (_, options) in COMMANDS.items()
        for option, kind in options.items()
        for value in KINDS[kind]
        if (option, value) not in RIGHT and (command, option, value) not in RIGHT
    ]


@pytest.fixture(scope="module", autouse=True)
def commands_are_read_once() -> Iterator[None]:
    """Not out of their functions' signatures for each that is run; nor are plugins looked for in
    every installed package again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        patch.setattr(plugins, "entry_points", cache(plugins.entry_points))
        yield


CLASS = re.compile(r"\b\w+(?:Error|Exception|Warning)\b|Traceback|Errno")


@pytest.mark.every(30)
@pytest.mark.parametrize(("command", "option", "value"), cases())
def test_a_mistake_is_one_sentence_that_names_it(
    command: str, option: str, value: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = spelled(value)
    words = words_of(command, option, value)
    before = {path.name for path in place.iterdir()}
    code = cli.main(words)
    shown = capsys.readouterr()
    assert (code, CLASS.findall(shown.err)) == (2, []), shown.err
    *_, last = shown.err.strip().splitlines()
    assert last.startswith(("error: ", "Error: ")) and not last.rstrip().endswith(":")
    name = option.lstrip("-").replace("-", "_")
    told = [part.strip() for part in value.split(",") if part.strip()] or ["empty"]
    named = (name, name.replace("_", "-"), name.replace("_", " "), *told, *MEANT)
    assert any(each[:60] in last for each in named), last
    left = {path.name for path in place.iterdir()} - before
    assert not left - {"mlruns", "cache"}, "something half-written is left"
    assert "run with --debug" not in shown.err


def test_every_option_is_tried() -> None:
    """All but flags and those of which any value will do."""
    from typer.main import get_command

    for name, command in get_command(cli.make_app()).commands.items():
        options = {
            each.opts[0]
            for each in command.params
            if not getattr(each, "is_flag", False) and each.name not in ANY
        }
        assert options - IDLE.get(name, set()) == set(COMMANDS[name][1]), name
