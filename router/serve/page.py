"""The web page of the server: a chat that shows who wrote each token."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {  # by suffix; the system's own list may call a module plain text
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for again: the ETag answers with a 304
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class File:
    """A file of the page, as it is sent."""

    content: bytes
    headers: dict[str, str] = field(repr=False)


def mount(app: FastAPI) -> None:
    """Serve the page at `/` and its files at `/page/NAME`, without a key: a browser has to load
    the page before it can ask for one. Files are read once; no other path reaches the disk."""
    from fastapi import Response

    held = {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in TYPES}

    async def index(request: Request) -> Response:
        return _answer(held[INDEX], request)

    async def named(request: Request) -> Response:
        file = held.get(request.path_params["name"])
        if file is None:
            return Response("there is no such file\n", 404, HEADERS, "text/plain")
        return _answer(file, request)

    app.add_route("/", index, methods=["GET"], include_in_schema=False)
    app.add_route("/page/{name}", named, methods=["GET"], include_in_schema=False)


def _read(path: Path) -> File:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return File(content, {**HEADERS, "Content-Type": TYPES[path.suffix], "ETag": tag})


def _answer(file: File, request: Request) -> Response:
    from fastapi import Response

    had = request.headers.get("if-none-match", "").split(",")
    if file.headers["ETag"] in (tag.strip().removeprefix("W/") for tag in had):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
