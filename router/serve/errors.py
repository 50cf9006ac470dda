"""Errors in OpenAI's form: one clear sentence, a type, and the field that it is about."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from decoders.common.errors import (
    ArmDown,
    Cancelled,
    ContextTooLong,
    DraftpickError,
    NotANumber,
    StillCompiling,
    UpstreamBroke,
    UpstreamRefused,
)
from decoders.models.memory import OutOfMemory
from policies.errors import PolicyError

from .queue import QueueFull
from .scheduler import Closing

logger = logging.getLogger(__name__)

TYPES = {  # by status; of others invalid_request_error
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "timeout_error",
}
RETRY_S = 1  # after which a client whose turn did not come may ask again
HEADERS = {  # by status
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": str(RETRY_S)},
    503: {"Retry-After": str(RETRY_S)},
}


class ApiError(Exception):
    """A client's response in place of an answer.

    param: the field of the request that is at fault.
    headers: of the response, besides those that its status asks for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        body = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": body}

    def response(self) -> Response:
        headers = HEADERS.get(self.status, {}) | self.headers
        return JSONResponse(self.to_json(), self.status, headers=headers)


def as_api_error(error: Exception) -> ApiError:
    """A client's response to any error. Errors that are not the client's are only logged."""
    match error:
        case ApiError():
            return error
        case QueueFull():
            return ApiError(429, f"{error}; ask again in a moment", code="queue_full")
        case Closing():
            return ApiError(503, str(error), code="shutting_down")
        case Cancelled():
            return ApiError(503, "the server shut down before the answer ended; ask again")
        case ContextTooLong():
            return ApiError(400, str(error), code="context_length_exceeded")
        case StillCompiling():
            return ApiError(503, str(error), code="still_compiling")
        case ArmDown():
            logger.error("%s", error)
            return ApiError(503, str(error), code="arm_down")
        case UpstreamBroke():
            logger.error("%s", error)
            return ApiError(502, str(error), code="upstream_broke_off")
        case UpstreamRefused():  # its words may quote a key
            logger.error("%s", error)
            words = f"the endpoint of arm {error.arm!r} refuses this server, whose log says why"
            return ApiError(502, words, code="upstream_refused")
        case OutOfMemory():
            logger.error("%s", error)
            return ApiError(503, f"{error}; ask for less, or again when less is running")
        case NotANumber():
            logger.error("%s", error)
            return ApiError(500, str(error), code="not_a_number")
        case DraftpickError() | PolicyError():
            return ApiError(400, str(error))
    logger.error("an answer failed", exc_info=error)
    return ApiError(500, "the server failed to answer; its log says why", code="internal_error")


def mount(app: Starlette) -> None:
    """Give every error of an application this form."""

    async def invalid(request: Request, error: Any) -> Response:
        return from_validation(error.errors()).response()

    async def http(request: Request, error: Any) -> Response:
        where = f"{request.method} {request.url.path}"
        words = f"{where}: {error.detail}" if error.status_code in (404, 405) else error.detail
        return ApiError(error.status_code, words, headers=error.headers).response()

    async def other(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (Exception, ApiError, QueueFull, Closing, DraftpickError, PolicyError):
        app.add_exception_handler(kind, other)


def from_validation(found: Any) -> ApiError:
    """All that is wrong with a body, in one sentence. found: pydantic's errors."""
    problems, first = [], None
    for each in found:
        place = [str(part) for part in each["loc"] if part != "body"]
        if each["type"] == "json_invalid":
            problems.append(f"the body is not JSON ({each['ctx']['error']})")
            continue
        if not place and each["type"] in ("missing", "model_attributes_type"):
            what = "empty" if each["type"] == "missing" else "no JSON object"
            problems.append(f"the body is {what}; send one with Content-Type application/json")
            continue
        words = each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            words = "unknown field; leave it out"
        words = words[:1].lower() + words[1:]
        first = first or (".".join(place) or None)
        problems.append(f"{'.'.join(place)}: {words}" if place else words)
    return ApiError(400, "; ".join(dict.fromkeys(problems)), first)
