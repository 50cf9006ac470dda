"""Keys, set wherever one can be set, are in nothing that any command writes or says."""

import base64
import json
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from collect.endpoints.executor import Endpoints
from decoders.testing.fake_server import FakeEndpoint
from router import cli

MARK = "canary"
KEY = f"sk-{MARK}-key+/="
SAFE = f"{MARK}-pass"  # as part of an address
ARMS = ("--config", "arms.yaml")
QUERIES = "".join(
    json.dumps({"id": f"{task}{n}", "task": task, "turns": [f"{task} number {n}"]}) + "\n"
    for task in ("qa", "math")
    for n in range(10)
)


def arms(url: str, **more: Any) -> str:
    both = {
        name: {
            "kind": "endpoint", "url": url, "model": name, "api_key_env": "MY_KEY",
            "same_answers": True, **more,
        }
        for name in ("first", "second")
    }  # fmt: skip
    return json.dumps({"arms": both})


@pytest.fixture
def place(tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; what a user writes keys into lies beside it."""
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    (home / ".netrc").write_text(f"machine 127.0.0.1 login {SAFE} password {KEY}\n")
    for name, value in {
        "HOME": str(home),
        "NETRC": str(home / ".netrc"),
        "MY_KEY": f"{KEY}\n",
        "DRAFTPICK_API_KEY": KEY,
        "OPENAI_API_KEY": KEY,
        "HF_TOKEN": KEY,
        "MLFLOW_TRACKING_PASSWORD": KEY,
        "MLFLOW_TRACKING_TOKEN": KEY,
        "HTTPS_PROXY": f"http://me:{SAFE}@127.0.0.1:9",
        "HTTP_PROXY": f"http://{SAFE}@127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "DRAFTPICK_CACHE": str(folder / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "https_proxy", "no_proxy", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    # a collection waits a minute for a server that is dead
    monkeypatch.setattr(Endpoints.__init__, "__defaults__", (0.05, time.sleep))
    (folder / "queries.jsonl").write_text(QUERIES)
    (folder / "arms.yaml").write_text(arms(server.url))
    return folder


class Told:
    """Runs commands, and keeps all that they say."""

    def __init__(self, capfd: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd, self._caplog, self._patch = capfd, caplog, monkeypatch
        caplog.set_level(logging.INFO)
        self.words = ""

    def __call__(self, *words: str, debug: bool = False) -> int:
        given = [*words, *(["--debug"] if debug else [])]
        self._patch.setattr("sys.argv", ["draftpick", *given])  # which is stored with what is made
        code = cli.main(given)
        shown = self._capfd.readouterr()
        self.words += f"\n$ {words[0]}\n{shown.out}{shown.err}{self._caplog.text}"
        self._caplog.clear()
        return code


@pytest.fixture
def told(capfd: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(capfd, caplog, monkeypatch)


def spellings() -> list[bytes]:
    """What would give a key away: as it is, quoted, or as basic authentication writes it."""
    basic = [base64.b64encode(f"{user}:{KEY}".encode())[4:-4] for user in ("me", SAFE)]
    return [MARK.encode(), quote(MARK).encode(), *basic]


def found_in(folder: Path) -> list[str]:
    """Files that hold one, tables being read column by column."""
    guilty = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        if any(each in content for each in spellings()):
            guilty.append(str(path.relative_to(folder)))
    return guilty


def require_none(place: Path, told: Told) -> None:
    assert not found_in(place)
    given_away = [each.decode() for each in spellings()]
    assert not [line for line in told.words.splitlines() if any(e in line for e in given_away)]


def test_the_search_finds_keys(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"x{KEY}x")
    (tmp_path / "b").write_text("Basic " + base64.b64encode(f"me:{KEY}".encode()).decode())
    (tmp_path / "c").write_text("x")
    pq.write_table(__import__("pyarrow").table({"error": [KEY] * 3}), tmp_path / "d.parquet")
    assert found_in(tmp_path) == ["a", "b", "d.parquet"]


def test_commands_that_end_well(place: Path, server: FakeEndpoint, told: Told) -> None:
    from stored_tables import table_of

    import policies

    assert told("collect", *ARMS, "--queries", "queries.jsonl", "--out", "rewards") == 0
    assert server.heads[-1]["Authorization"] == f"Bearer {KEY}"
    policies.fit("thompson", table_of(place / "rewards", "measured")).policy.save(place / "online")
    log = ("--log", "log", "--log-embeddings", "--log-text", "--dynamic")
    for words in (
        ("collect", "--summary", "rewards", "--json"),
        ("headroom", "rewards", "--out", "gain.svg"),
        ("train", "--rewards", "rewards", "--policy", "best-fixed", "--out", "policy"),
        ("generate", "Hello there all of you", *ARMS, "--policy", "online", *log),
        ("evaluate", "--rewards", "rewards", "--policy", "policy"),
        ("arms", *ARMS),
        ("arms", *ARMS, "--json"),
        ("export", "vllm", *ARMS),
        ("learn", "--logs", "log", "--policy", "online", "--out", "learned"),
    ):
        assert told(*words, debug=True) == 0, told.words
    require_none(place, told)
    assert (place / "mlruns" / "mlflow.db").is_file()


QUOTED = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}."}}).encode()
AWAY = {"Location": f"https://me:{SAFE}@other.example/v1?api_key={SAFE}"}
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "401": (401, {"Content-Type": "application/json"}, QUOTED),
    "400": (400, {"Content-Type": "application/json"}, QUOTED),
    "503": (503, {"Content-Type": "application/json"}, QUOTED),
    "no JSON": (403, {"Content-Type": "text/plain"}, f"who is {KEY}?".encode()),
    "an error as an answer": (200, {"Content-Type": "application/json"}, QUOTED),
    "no event": (200, {"Content-Type": "text/event-stream"}, b"data: " + KEY.encode() + b"\n\n"),
    "a redirect": (307, AWAY, b""),
}  # fmt: skip


@pytest.mark.parametrize("sent", ANSWERS)
def test_servers_that_quote_the_key(
    sent: str, place: Path, server: FakeEndpoint, told: Told
) -> None:
    server.status, server.headers, server.raw = ANSWERS[sent]
    log = ("--log", "log", "--log-text")
    told("collect", *ARMS, "--queries", "queries.jsonl", "--limit", "1", "--out", "rewards")
    assert told("generate", "Hi", *ARMS, "--arm", "first", *log, debug=True) != 0
    (place / "p.jsonl").write_text('"Hi"\n')
    assert told("generate", "--prompts", "p.jsonl", *ARMS, "--arm", "first", "--json") != 0
    require_none(place, told)


STORES = (
    f"http://me:{SAFE}@127.0.0.1:1", f"http://{SAFE}@127.0.0.1:1",
    f"postgresql://me:{SAFE}@127.0.0.1:1/x", f"mysql+pymysql://me:{SAFE}@127.0.0.1:1/x",
    f"nonsense://me:{SAFE}@h", f"http://127.0.0.1:1/?token={SAFE}", f"sqlite:////proc/x?key={SAFE}",
)  # fmt: skip


@pytest.mark.parametrize(
    ("store", "how"), [*((store, "option") for store in STORES), (STORES[0], "environment")]
)
def test_stores_that_cannot_be_used(
    store: str, how: str, place: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = ("--tracking-uri", store) if how == "option" else ()
    if how == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert told("promote", "x", "--rewards", "nowhere", *option, debug=True) == 2
    require_none(place, told)


WRONG_ARMS = {
    "a password": {"url": f"http://me:{SAFE}@127.0.0.1/v1"},
    "a user": {"url": f"http://{SAFE}@127.0.0.1/v1"},
    "a parameter": {"url": f"http://127.0.0.1/v1?api-key={SAFE}"},
    "a field": {"extra_body": {"api_key": KEY}},
    "a field of a field": {"extra_body": {"metadata": [{"Authorization": f"Bearer {KEY}"}]}},
}


@pytest.mark.parametrize("wrong", WRONG_ARMS)
def test_arms_with_keys_are_refused(
    wrong: str, place: Path, tmp_path: Path, server: FakeEndpoint, told: Told
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(arms(**{"url": server.url, **WRONG_ARMS[wrong]}))
    for words in (("arms",), ("generate", "Hi"), ("export", "vllm"), ("collect", "--out", "x")):
        assert told(*words, "--config", str(file), debug=True) == 2
    assert "api_key_env" in told.words
    require_none(place, told)


@pytest.mark.parametrize(
    ("variable", "proxy"),
    [
        ("HTTP_PROXY", f"nonsense://me:{SAFE}@h:1"),
        ("HTTPS_PROXY", f"http://me:{SAFE}@127.0.0.1:1"),
        ("ALL_PROXY", f"http://{SAFE}@127.0.0.1:1"),
    ],
)
def test_proxies_that_cannot_be_used(
    variable: str, proxy: str, place: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, proxy)
    told("generate", "Hi", *ARMS, "--arm", "first", "--log", "log", debug=True)
    told("generate", "Hi", "--target", "me/there", debug=True)
    require_none(place, told)


@pytest.mark.parametrize("key", [KEY, f"{MARK} y", f"{MARK}\x7f", f"{MARK}\n2"])
def test_a_servers_own_key(
    key: str, place: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    import policies

    apps: list[Any] = []
    monkeypatch.setattr("router.serve.server.serve", lambda app, *_: apps.append(app))
    policies.fixed_policy(["first", "second"], "first").save(place / "policy")
    options = "--policy policy --port 0 --no-warm-up --log log --log-text"
    words = ("serve", *ARMS, *options.split())
    for given in (("--api-key", key), ()):
        monkeypatch.setenv("DRAFTPICK_API_KEY", key)
        assert told(*words, *given, debug=True) == (0 if key == KEY else 2)
    for app in apps:
        with TestClient(app) as http:
            asked = {"messages": [{"role": "user", "content": "Hi"}]}
            for sent in (KEY, f"{KEY}x"):
                headers = {"Authorization": f"Bearer {sent}", "X-Api-Key": KEY}
                for path in ("/v1/chat/completions", "/v1/models", "/metrics", "/stats"):
                    post = path.endswith("completions")
                    method, body = ("POST", asked) if post else ("GET", None)
                    reply = http.request(method, path, headers=headers, json=body)
                    told.words += f"\n{reply.status_code} {reply.headers} {reply.text}"
    require_none(place, told)
