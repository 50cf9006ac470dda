"""Clients that send or read too slowly are left, and nobody else notices."""

import json
import socket
import time
from http.client import HTTPConnection, HTTPResponse

import pytest
from pydantic import SecretStr
from serve_toys import served, until

from router.serve import server as patience
from router.serve.app import Settings
from router.serve.server import bound

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def connected(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10)


@pytest.mark.parametrize("sent", [b"", b"POST /v1", HEAD])
def test_a_head_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(patience, "HEADERS_S", 0.2)
    with served() as toy, connected(toy.url) as slow:
        slow.sendall(sent)
        assert slow.recv(1) == b""  # closed, with nothing said


def test_a_second_request_has_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEADERS_S", 0.3)
    with served() as toy, connected(toy.url) as slow:
        kept = HTTPConnection("127.0.0.1")
        kept.sock = slow
        for _ in range(4):  # together they take longer than one may
            kept.request("GET", "/health")
            assert kept.getresponse().read() == b'{"status":"ok"}'
            time.sleep(0.15)
        slow.sendall(b"GET /hea")
        assert slow.recv(1) == b""


def test_a_body_that_comes_after_its_refusal_does_not_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "HEADERS_S", 0.2)
    with served(Settings(api_key=SecretStr("key"))) as toy, connected(toy.url) as slow:
        kept = HTTPConnection("127.0.0.1")
        kept.sock = slow
        slow.sendall(HEAD + b"Content-Length: 2\r\n\r\n")
        made = HTTPResponse(slow)
        made.begin()
        assert made.status == 401 and made.read()
        slow.sendall(b"{}")
        time.sleep(0.4)
        kept.request("GET", "/health")
        assert kept.getresponse().status == 200


def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEADERS_S", 0.2)
    with served(pause_s=0.02) as toy, toy.http() as http:
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 40}
        began = time.monotonic()
        made = http.post("/v1/chat/completions", json=body | {"arm": "autoregressive"})
        assert made.status_code == 200 and time.monotonic() - began > 0.4


def test_a_body_that_does_not_come_is_a_408() -> None:
    with served(Settings(body_s=0.2)) as toy, connected(toy.url) as slow:
        slow.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"messages": ')
        made = HTTPResponse(slow)
        made.begin()
        error = json.loads(made.read())["error"]
    assert made.status == 408 and error["type"] == "timeout_error"
    assert "within 0.2 s" in error["message"]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot")
def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "UNREAD_S", 0.5)
    with bound("127.0.0.1", 0) as held, socket.socket() as lazy:
        held.listen()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy.connect(held.getsockname())
        server, _ = held.accept()
        server.setblocking(False)

        def left() -> bool:
            try:
                server.send(bytes(65536))
            except BlockingIOError:
                return False
            except TimeoutError:
                return True
            return False

        with server:
            assert until(left, 10)


def test_a_client_that_half_closes_has_gone() -> None:
    with served(pause_s=0.02) as toy, connected(toy.url) as half:
        body = b'{"messages": [{"role": "user", "content": "abc"}], "max_tokens": 400}'
        half.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert until(lambda: toy.scheduler.running == 1)
        half.shutdown(socket.SHUT_WR)
        assert until(lambda: toy.scheduler.running == 0, 2)  # whole, it takes 4 s or more
