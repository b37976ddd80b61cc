"""One HTTP answer, and how it is sent: whole, or piece by piece; errors as RFC 9457 problem documents.

In one buffer, a large answer would cost more for fresh memory pages than for copying (measured with 40 MB: 20 ms
instead of 2 ms). Pieces of a few megabytes reuse the same memory, and a slow reader never holds more than two.

Every answer that is not a success has one shape:

    DeltaMQError -> Answer(status, headers, body)
        {"type", "title", "status", "detail", "code", "field"?, ...facts such as "limit" or "end_offset"}

An unexpected error becomes 500 `internal` without its text: the log has it, the client must not see it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from deltamq.api.wire.request import REFUSAL, ClientDisconnected, Scope, Send
from deltamq.mq.errors import DeltaMQError, Refused, Unknown, Unprocessable
from deltamq.tables.failpoints import FailpointHit

#: Name of an ASGI extension of our HTTP protocol: its `write`, `(Answer) -> bool`, writes head and body together.
WRITE_WHOLE: Final = "deltamq.write_whole"
#: Bytes up to which joining head and body costs less than a second write.
_WHOLE_BYTES_MAX: Final = 16 * 1024

Header = tuple[bytes, bytes]
Piece = bytes | memoryview


class Pieces(Protocol):
    """A body of known size whose pieces are made when they are sent, each in about a millisecond."""

    size: int

    def __iter__(self) -> Iterator[Piece]: ...


class Answer(NamedTuple):
    """One complete HTTP answer; its headers include the length."""

    status: int
    headers: list[Header]
    body: Piece | Pieces

    @classmethod
    def of_json(cls, body: bytes) -> Answer:
        """Return a 200 answer with this JSON body."""
        return cls(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return len(self.body) if isinstance(self.body, (bytes, memoryview)) else self.body.size


#: Headers of every answer: browsers do not guess its type, show it in no frame, and send its address nowhere.
SECURITY_HEADERS: Final[list[Header]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


async def send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    """Send the whole answer; return when the client has taken nearly all of it, so that its bytes count until then.

    A slow reader delays the next piece, and the empty one at the end.
    """
    body = answer.body
    if isinstance(body, bytes) and len(body) <= _WHOLE_BYTES_MAX:
        extension = scope.get("extensions", {}).get(WRITE_WHOLE)
        if extension is not None and extension["write"](answer):
            await send({"type": "http.response.body", "body": b""})
            return
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    sent = 0
    for piece in (body,) if isinstance(body, (bytes, memoryview)) else body:
        sent += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    assert sent == answer.size, "the length in the headers is the length of the body"
    await send({"type": "http.response.body", "body": b""})


log = logging.getLogger("deltamq.api")

PROBLEM_TYPE = b"application/problem+json"


def answer_of(error: DeltaMQError) -> Answer:
    """Return the problem document of `error`, with `Retry-After` if trying again helps."""
    document: dict[str, Any] = {
        "type": f"urn:deltamq:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.field is not None:
        document["field"] = error.field
    document.update(error.extra)
    body = msgspec.json.encode(document)
    headers = [(b"content-type", PROBLEM_TYPE), (b"content-length", b"%d" % len(body))]
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="deltamq"'))
    retry_after_s: int | None = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    return Answer(error.status, headers, body)


def as_deltamq_error(error: BaseException) -> DeltaMQError:
    """Map any error of an endpoint to a `DeltaMQError`; an unexpected error is logged, and its text is not shown."""
    if isinstance(error, DeltaMQError):
        return error
    if isinstance(error, FailpointHit):
        return Unknown("the outcome is not known; repeat the request with the same producer sequence")
    log.error("event=unhandled_error kind=%s", type(error).__name__, exc_info=error)
    return _internal()


def _internal() -> DeltaMQError:
    return DeltaMQError("the service failed to handle this request; its log says why")


class _MethodNotAllowed(Refused):
    status = 405
    code = "method_not_allowed"


#: Kinds of pydantic errors that mean "well-formed, but outside its bounds" (422); all others are 400.
_BOUNDS = (
    "greater_than",
    "less_than",
    "too_short",
    "too_long",
    "string_pattern",
    "enum",
    "literal_error",
    "value_error",
)


def validation_error(errors: Iterable[Any]) -> Refused:
    """Return the first of FastAPI's validation errors as a refusal that names the field and its limit."""
    first = next(iter(errors))
    where = [str(part) for part in first.get("loc", ())]
    field = ".".join(where[1:]) or (where[0] if where else "body")
    kind = str(first.get("type", ""))
    limits = {k: v for k, v in (first.get("ctx") or {}).items() if isinstance(v, (int, float))}
    extra = {"limit": next(iter(limits.values()))} if limits else {}
    if kind == "json_invalid":
        return Refused("the body is not valid JSON", code="invalid_json", field="body")
    if kind == "extra_forbidden":
        return Refused(f"{field} is not a field of this request", code="unknown_field", field=field)
    cls = Unprocessable if any(part in kind for part in _BOUNDS) else Refused
    return cls(f"{field}: {first.get('msg', 'is not valid')}", field=field, extra=extra)


def _http_error(error: HTTPException) -> DeltaMQError:
    if error.status_code == HTTPStatus.NOT_FOUND:
        mapped: DeltaMQError = Refused("there is no such path", code="path_not_found")
    else:
        mapped = Refused(str(error.detail), code="invalid_json" if error.status_code == 400 else None)
    mapped.status = error.status_code
    return mapped


def _methods(app: FastAPI, path: str) -> str:
    """Return the methods of all calls at this path; Starlette knows only those of the first route."""
    methods = {
        method.upper()
        for template, calls in app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
        for method in calls
    }
    return ", ".join(sorted(methods))


def method_not_allowed(allow: str) -> Answer:
    """Return a 405 with the methods that the path takes."""
    answer = answer_of(_MethodNotAllowed(f"this path takes {allow}", field="method"))
    answer.headers.append((b"allow", allow.encode()))
    return answer


def as_response(answer: Answer) -> Response:
    """Return the answer as Starlette's response."""
    assert isinstance(answer.body, bytes), "problems are small"
    response = Response(answer.body, status_code=answer.status)
    response.raw_headers = list(answer.headers)
    return response


def install(app: FastAPI) -> None:
    """Answer every error of FastAPI or a route with a problem document."""

    async def on_deltamq(_: Request, error: Exception) -> Response:
        return as_response(answer_of(as_deltamq_error(error)))

    async def on_disconnected(request: Request, error: Exception) -> Response:
        refusal: DeltaMQError | None = request.scope.get(REFUSAL)
        if refusal is None:
            raise error
        return as_response(answer_of(refusal))

    async def on_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return as_response(answer_of(validation_error(error.errors())))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return as_response(method_not_allowed(_methods(app, request.scope["path"])))
        return as_response(answer_of(_http_error(error)))

    async def on_unexpected(_: Request, error: Exception) -> Response:
        # Starlette raises the error again, and uvicorn logs it.
        return as_response(answer_of(_internal()))

    app.add_exception_handler(Exception, on_unexpected)
    app.add_exception_handler(DeltaMQError, on_deltamq)
    app.add_exception_handler(ClientDisconnected, on_disconnected)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
