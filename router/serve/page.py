"""The web page of the server: a chat that shows who wrote each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

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


class Files(StaticFiles):
    """The page's files, each with HEADERS and its type."""

    def file_response(self, full_path: Any, *given: Any, **named: Any) -> Response:
        response = super().file_response(full_path, *given, **named)
        response.headers.update(HEADERS | {"Content-Type": TYPES[Path(full_path).suffix]})
        return response


def mount(app: FastAPI) -> None:
    """Serve the page at `/` and its files at `/page/NAME`, without a key: a browser has to load
    the page before it can ask for one."""
    files = Files(directory=FOLDER)

    async def index(request: Request) -> Response:
        return await files.get_response(INDEX, request.scope)

    app.add_route("/", index, methods=["GET"], include_in_schema=False)
    app.mount("/page", files)
