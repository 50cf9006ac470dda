"""Every command against inputs that are wrong: exit code 2, one sentence that names what was wrong,
and no exception's name; nothing half-written stays."""

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
OPTIONS: dict[str, tuple[str, ...]] = {  # of each kind, whichever command takes them
    "count": (
        "--batch-size", "--batch-tokens", "--clients", "--clusters", "--collect-limit", "--context",
        "--draws", "--epochs", "--exit-layer", "--groups", "--limit", "--longest", "--max-body",
        "--max-new-tokens", "--max-prompt", "--max-tokens", "--most", "--queue", "--slots",
        "--tokens", "--train-size", "--vocab-size", "--width", "check --at-once",
    ),
    "natural": (
        "--blocks", "--earlier-tokens", "--port", "--timed", "--top-k", "--version",
        "--seed", "audit --draws",
    ),
    "integer": ("generate --seed",),
    "number": (
        "--cost", "--drain", "--earlier-age", "--lr", "--margin", "--matrix-lr", "--max-loss",
        "--minutes", "--seconds", "--temperature", "--timeout", "--top-p", "--write-minutes",
    ),
    "share": ("--acceptance", "--alpha", "--confidence", "--explore", "--validation-share"),
    "numbers": ("--at-once", "--parameters", "--temperatures"),
    "weights": ("--weights",),
    "name": (
        "--allow-origin", "--api-key-env", "--arm", "--backend", "--clear", "--device", "--dtype",
        "--engine", "--fetch", "--judge-by", "--kind", "--kv-dtype", "--prefix-memory",
        "--repetitive", "--reward", "--set", "engine", "model", "train --policy",
        "--ray-address",
    ),
    "names": ("--arms", "--by", "--features", "--tasks"),
    "text": ("--api-key", "--chat-template", "--model", "--stop", "prompt"),
    "file": (
        "--config", "--costs", "--from-logs", "--held-out", "--json-schema", "--outputs",
        "--prompts", "--queries", "--questions", "--start", "more",
    ),
    "folder": ("--logs", "--rewards", "--summary", "after", "before", "folder", "rewards"),
    "out folder": ("--learn", "--log", "--out"),
    "page": ("audit --out", "check --out", "costs --out", "report --out"),
    "figure": ("headroom --out",),
    "policy": ("--candidate", "--policy"),
    "target": ("--draft-model", "--embedder", "--target", "--tokenizer"),
    "store": ("--tracking-uri",),
    "new name": ("--alias", "--register"),
    "url": ("--plain-url", "url"),
    "fields": ("--body", "--plain-body"),
    "cost": ("--draft-cost",),
    "limit": ("--tau",),
    "host": ("--host",),
    "header": ("--isolate-by",),
    "collector": ("--otlp-traces-endpoint",),
}  # fmt: skip
KIND_OF = {option: kind for kind, options in OPTIONS.items() for option in options}
ARMS = ("--config", "arms.yaml")
COMMANDS: dict[str, tuple[str, ...]] = {  # what is right but for the one mistake
    "generate": ("Hi", *ARMS),
    "specbench": ("--no-routed", "--questions", "queries.jsonl", "--out", "out"),
    "report": ("bench",),
    "align": ("--queries", "queries.jsonl", "--out", "out"),
    "specialise": ("--queries", "queries.jsonl", "--out", "out"),
    "demo": ("--out", "out"),
    "arms": (),
    "models": (),
    "collect": (*ARMS, "--queries", "queries.jsonl", "--out", "out"),
    "theory": ("--acceptance", "0.5", "--cost", "0.1"),
    "headroom": ("rewards",),
    "costs": ("http://127.0.0.1:1/v1", "--out", "written.json"),
    "compare": ("rewards", "rewards"),
    "check": ("http://127.0.0.1:1",),
    "audit": ("http://127.0.0.1:1/v1", "--plain-url", "http://127.0.0.1:2/v1"),
    "train": ("--rewards", "rewards"),
    "evaluate": (),
    "serve": (*ARMS, "--port", "0"),
    "export": ("vllm",),
    "learn": ("--logs", "log", "--policy", "online", "--out", "out"),
    "promote": ("drafter", "--rewards", "rewards"),
}


# What a command needs besides, so that the one mistake is its only one.
WITH: dict[tuple[str, str], tuple[str, ...]] = {
    ("generate", ""): ("--policy", "policy"),
    ("generate", "--policy"): (), ("generate", "--config"): (),
    ("generate", "--learn"): ("--policy", "online"),
    ("serve", ""): ("--policy", "policy"), ("serve", "--policy"): (), ("serve", "--config"): (),
    ("serve", "--learn"): ("--policy", "online"),
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
    for option in ("--from-logs", "--tokenizer", "--costs", "--draft-model", "--draft-cost",
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
    base = list(INSTEAD.get((command, option), (command, *COMMANDS[command])))
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
    """(command, option, value) of all that is wrong: of every option but flags and those of which
    any value will do."""
    return [
        (name, option, value)
        for name, command in typer.main.get_command(cli.make_app()).commands.items()
        for each in command.params
        if not getattr(each, "is_flag", False) and each.name not in ANY
        for option in each.opts[:1]
        if option not in IDLE.get(name, ())
        for value in KINDS[KIND_OF.get(f"{name} {option}") or KIND_OF[option]]
        if (option, value) not in RIGHT
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
