"""One HTTP answer, and how it is sent: whole, or piece by piece.

In one buffer, a large answer would cost more for fresh memory pages than for copying (measured with 40 MB: 20 ms
instead of 2 ms). Pieces of a few megabytes reuse the same memory, and a slow reader never holds more than two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from deltamq.api.wire.request import Scope, Send

#: Name of our HTTP protocol's ASGI extension: its `write`, `(Answer) -> bool`, writes head and body together.
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
        """Return the 200 that has this JSON."""
        return cls(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return len(self.body) if isinstance(self.body, (bytes, memoryview)) else self.body.size


#: Headers of every answer: browsers take it for what it says it is, show it in no frame, and tell nobody its address.
SECURITY_HEADERS: Final[list[Header]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


async def send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    """Send the whole answer; returns when the client has taken nearly all of it, so what it holds is counted till then.

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
