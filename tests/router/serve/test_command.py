"""The command and its process: options, the address, signals."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from commands import Draftpick
from serve_toys import ROOT, process, until
from tiny_models import target_model

from policies import fixed_policy
from router.commands.serve import served
from router.logs.reader import read_log
from router.serve.server import READY, STOPPING

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "abcabc"}], "max_tokens": 60}


def test_at_sigterm_answers_under_way_end_and_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service manager is told once it listens, and when it goes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        sigterm_amid_an_answer(manager)


def sigterm_amid_an_answer(manager: socket.socket) -> None:
    with process([str(Path(__file__).parent / "serve_main.py"), "20"], 60) as (server, url):
        assert manager.recv(100).decode() == READY
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx.post, url + CHAT, json=ASKED, timeout=30)
            assert until(lambda: httpx.get(f"{url}/stats").json()["requests_running"] == 1)
            server.send_signal(signal.SIGTERM)
            assert manager.recv(100).decode() == STOPPING
            assert until(lambda: httpx.get(f"{url}/ready").status_code == 503)
            assert httpx.post(url + CHAT, json=ASKED).status_code == 503
        told = asked.result()
        assert told.status_code == 200 and told.json()["usage"]["completion_tokens"] == 60
        assert server.wait(15) == 0


@pytest.mark.slow
def test_answers_that_take_longer_than_the_drain_are_told() -> None:
    with process([str(Path(__file__).parent / "serve_main.py"), "0.2"], 60) as (server, url):
        long = ASKED | {"max_tokens": 400}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx.post, url + CHAT, json=long, timeout=30)
            assert until(lambda: httpx.get(f"{url}/stats").json()["requests_running"] == 1)
            server.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert server.wait(15) == 0 and time.monotonic() - started < 10
        told = asked.result()
        assert told.status_code == 503 and "shut down" in told.json()["error"]["message"]


@pytest.mark.slow
def test_at_sighup_arms_and_policies_are_read_anew(tmp_path: Path) -> None:
    target, arms = target_model(tmp_path / "target"), tmp_path / "arms.yaml"
    copies = "{kind: max_gram, length: {k: 3}}"
    arms.write_text(f"arms: {{autoregressive: {{kind: autoregressive}}, one: {copies}}}")
    fixed_policy(["autoregressive", "one"], "one").save(tmp_path / "policy")
    words = ["-m", "router.cli", "serve", "--port", "0", "--target", str(target)]
    words += ["--config", str(arms), "--policy", str(tmp_path / "policy"), "--slots", "2"]
    with process(words, 60) as (server, url):

        def names() -> list[str]:
            return [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]

        def answered(**more: str) -> Any:
            return httpx.post(url + CHAT, json=ASKED | {"temperature": 0, **more}, timeout=30)

        before = answered()
        assert names() == ["auto", "autoregressive", "one"]
        arms.write_text("arms: {autoregressive: {kind: autoregressive}, two: nothing}")
        server.send_signal(signal.SIGHUP)  # a mistake changes nothing
        assert answered().status_code == 200 and "one" in names()
        arms.write_text(f"arms: {{autoregressive: {{kind: autoregressive}}, two: {copies}}}")
        fixed_policy(["autoregressive", "two"], "two").save(tmp_path / "policy")
        server.send_signal(signal.SIGHUP)
        assert until(lambda: names() == ["auto", "autoregressive", "two"])
        after = answered()
        assert [each.headers["x-draftpick-arm"] for each in (before, after)] == ["one", "two"]
        named = answered(model="two")
        said = [each.json()["choices"][0]["message"]["content"] for each in (before, after, named)]
        assert len(set(said)) == 1
        assert [answered(arm=arm).status_code for arm in ("one", "two")] == [400, 200]


# -- options --------------------------------------------------------------------------------------


def test_an_address_that_is_taken_is_told_before_anything_loads(
    draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "load_routers", None)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        said = draftpick("serve", "--port", port, code=2)
        assert f"cannot listen on 127.0.0.1:{port}" in said.err
    said = draftpick("serve", "--host", "no.such.host.invalid", code=2)
    assert "cannot listen" in said.err


def test_mistakes_are_told_before_anything_loads(
    draftpick: Draftpick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "load_routers", None)
    said = draftpick("serve", "--api-key", "ab cd", code=2)
    assert "holds a space, a line break" in said.err


def test_help_teaches(draftpick: Draftpick) -> None:
    said = " ".join(draftpick("serve", "--help").out.split())
    assert "/v1/chat/completions" in said and "DRAFTPICK_API_KEY" in said


# -- the whole ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_command(tmp_path: Path) -> None:
    words = ["-m", "router.cli", "serve", "--port", "0", "--log", str(tmp_path / "log")]
    words += ["--dtype", "float32"]  # so that all arms say the same to the last token
    words += ["--slots", "2"]  # of more it would measure what their passes cost
    words += ["--policy", f"mine={ROOT / 'router' / 'default_policy'}"]
    with process(words, 150) as (server, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()][:2] == ["auto", "autoregressive"]
        named: dict[str, Any] = {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 32,
        }
        plain = client.chat.completions.create(model="autoregressive", **named)
        auto = client.chat.completions.with_raw_response.create(model="auto", **named)
        assert "Paris" in (auto.parse().choices[0].message.content or "")
        assert auto.headers["x-draftpick-policy"] == "default"
        mine = client.chat.completions.create(
            model="auto", **named, logprobs=True, extra_body={"policy": "mine", "explain": True}
        )
        assert mine.choices[0].logprobs is not None
        assert mine.model_extra is not None and "metrics" in mine.model_extra
        stream = client.chat.completions.create(
            model="hybrid", **named, stream=True, stream_options={"include_usage": True}
        )
        *chunks, counts = list(stream)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert said == plain.choices[0].message.content
        assert counts.usage.completion_tokens == plain.usage.completion_tokens
        assert counts.usage.prompt_tokens == plain.usage.prompt_tokens
        assert counts.usage.prompt_tokens_details.cached_tokens > 0  # read for the same key before
        assert client.completions.create(model="auto", prompt="One, two,").choices[0].text
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    assert len(read_log(tmp_path / "log").decisions) == 5
