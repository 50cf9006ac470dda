"""What HTTP asks of a server: methods, headers, other origins, connections that are kept."""

import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import httpx
import pytest
import uvicorn
from pydantic import SecretStr
from serve_toys import Served, served, until

from decoders.common.errors import DraftpickError
from router.commands.serve.plan import origins_of
from router.serve import server
from router.serve.app import Settings
from router.serve.parsing import Limits
from router.serve.server import bound

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "abcabc"}], "max_tokens": 4}
READ = ("/health", "/ready", "/stats", "/metrics", "/v1/models", "/v1/models/auto", "/")
PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    settings = Settings(Limits(most_tokens=64), api_key=SecretStr("secret"), origins=(PAGE,))
    with served(settings) as toy, toy.http() as client:
        client.headers["Authorization"] = "Bearer secret"
        yield client


@pytest.mark.parametrize("path", READ)
def test_what_can_be_read_can_be_asked_for_its_head(http: httpx.Client, path: str) -> None:
    got, head = http.get(path), http.head(path)
    assert (got.status_code, head.status_code) == (200, 200)
    assert head.content == b"" and got.content
    assert head.headers["content-type"] == got.headers["content-type"]
    if path not in ("/stats", "/metrics"):  # which differ each time
        assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("path", READ)
def test_another_method_is_told_which_are_allowed(http: httpx.Client, path: str) -> None:
    refused = http.delete(path)
    assert refused.status_code == 405
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert refused.json()["error"]["message"].startswith(f"DELETE {path}")


def test_what_is_posted_to_allows_nothing_else(http: httpx.Client) -> None:
    for method in ("GET", "HEAD", "PUT"):
        refused = http.request(method, CHAT)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_stats_name_the_limits(http: httpx.Client) -> None:
    assert http.get("/stats").json()["limits"] == {"most_tokens": 64, "temperature": 0.0}


# -- pages of other origins -----------------------------------------------------------------------


def leave(http: httpx.Client, path: str, origin: str) -> httpx.Response:
    """Asked as browsers do before a script's request; they send no key."""
    wants = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    return httpx.options(f"{http.base_url}{path}", headers=wants)


@pytest.mark.parametrize("path", [CHAT, "/stats"])
def test_an_allowed_origin_is_given_leave(http: httpx.Client, path: str) -> None:
    given = leave(http, path, PAGE)
    assert given.status_code == 200
    assert given.headers["access-control-allow-origin"] == PAGE
    assert "POST" in given.headers["access-control-allow-methods"]
    assert "x-stainless-os" in given.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in given.headers
    other = leave(http, path, "https://other.example")
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


def test_what_an_allowed_origin_may_read(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ASKED, headers={"Origin": PAGE})
    assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
    shown = answer.headers["access-control-expose-headers"].split(", ")
    told = [name for name in answer.headers if name.startswith("x-")]
    assert len(told) >= 4 and set(told) <= set(shown)
    for wrong in (http.get("/v1/models/none"), http.get("/stats", headers={"Authorization": ""})):
        assert wrong.status_code >= 400 and "access-control-allow-origin" not in wrong.headers
    refused = http.get("/stats", headers={"Origin": PAGE, "Authorization": ""})
    assert refused.status_code == 401  # whose reason a script may read too
    assert refused.headers["access-control-allow-origin"] == PAGE


def test_other_origins_have_no_leave_unless_it_was_given(toy: Served) -> None:
    with toy.http() as http:
        assert leave(http, CHAT, PAGE).status_code == 405
        answer = http.post(CHAT, json=ASKED, headers={"Origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_origins_are_as_browsers_spell_them() -> None:
    given = ("https://Chat.example", "http://localhost:3000", "*")
    assert origins_of(given) == ("https://chat.example", "http://localhost:3000", "*")
    for wrong in ("chat.example", "https://chat.example/", "https://", "https://a b", ""):
        with pytest.raises(DraftpickError, match=r"for instance https://chat\.example, not"):
            origins_of([wrong])


# -- connections that are kept --------------------------------------------------------------------


class Nothing:
    """What is behind an application that needs no end of its own."""

    def drain(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


def test_an_idle_connection_is_kept_longer_than_a_proxy_in_front_keeps_it(
    toy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.IDLE_S > 60  # of nginx, and of the load balancers of clouds
    monkeypatch.setattr(server, "IDLE_S", 0.5)
    made: list[uvicorn.Server] = []

    class Noted(server._Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            made.append(self)

    monkeypatch.setattr(server, "_Server", Noted)
    held = bound("127.0.0.1", 0)
    serving = (toy.server.config.app, Nothing(), held, 1.0)
    thread = threading.Thread(target=server.serve, args=serving, daemon=True)
    thread.start()
    assert until(lambda: made)
    with socket.create_connection(held.getsockname()[:2], timeout=10) as kept:
        one = HTTPConnection("127.0.0.1")
        one.sock = kept
        began = time.monotonic()
        one.request("GET", "/health")
        assert one.getresponse().read() == b'{"status":"ok"}'
        assert kept.recv(1) == b""
        assert 0.5 <= time.monotonic() - began < 4  # uvicorn's own are 5
    made[0].should_exit = True
    thread.join(10)
