"""Quotas of principals in this process: 429 with `Retry-After`, before a body is read (SPEC SEC-9)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from deltamq.api.wire.answer import WRITE_WHOLE, Header
from deltamq.api.wire.request import Receive, Scope, Send
from deltamq.mq.auth.principals import Bucket, Quota
from deltamq.mq.errors import Overloaded

#: How long an event stream waits at most before each piece: longer, and its end would go unseen.
_STREAM_WAIT_S: Final = 4.0


class _Body(msgspec.Struct):
    #: Bytes that were taken from the quota.
    taken: int
    received: int = 0


class Meter:
    """Counts what those use who share some buckets: of requests, of bytes in, of bytes out."""

    def __init__(self, buckets: Mapping[str, Bucket], now_ms: Callable[[], int]) -> None:
        self.buckets = buckets
        self._now_ms = now_ms

    def wait_s(self) -> float:
        """Return the seconds until they may ask again, for protocols whose clients wait; 0 for now."""
        now_ms = self._now_ms()
        return max((bucket.wait_s(now_ms) for bucket in self.buckets.values()), default=0.0)

    def asked(self, size: int) -> None:
        """Count a request of this many bytes."""
        self._take("requests", 1)
        self._take("bytes in", size)

    def answered(self, size: int) -> None:
        """Count an answer of this many bytes."""
        self._take("bytes out", size)

    def _take(self, name: str, count: int) -> None:
        bucket = self.buckets.get(name)
        if bucket is not None:
            bucket.take(count)


class PrincipalMeter(Meter):
    """Measures the requests of one principal."""

    def __init__(self, quota: Quota, now_ms: Callable[[], int], *, body_bytes_max: int) -> None:
        """`body_bytes_max` bounds what a declared length takes from the quota: larger bodies are refused."""
        self.quota = quota
        self._body_bytes_max = body_bytes_max
        bounds = {
            "requests": quota.requests_per_s,
            "bytes in": quota.bytes_in_per_s,
            "bytes out": quota.bytes_out_per_s,
        }
        super().__init__({name: Bucket(rate, now_ms()) for name, rate in bounds.items() if rate is not None}, now_ms)

    def enter(self, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Admit a request; return its `receive` and `send`, which count.

        Raises
        ------
        Overloaded
            `quota_exceeded`: the principal has used up its quota; `retry_after_s` says when it may ask again.
        """
        now_ms = self._now_ms()
        for name, bucket in self.buckets.items():
            wait_s = bucket.wait_s(now_ms)
            if wait_s > 0:
                detail = f"principal {self.quota.principal} has used up its quota of {name}"
                raise Overloaded(detail, retry_after_s=max(1, math.ceil(wait_s)), code="quota_exceeded")
        self._take("requests", 1)
        body = _Body(min(_declared(scope["headers"]), self._body_bytes_max))
        self._take("bytes in", body.taken)
        scope.get("extensions", {}).pop(WRITE_WHOLE, None)  # it would pass `send` by
        return self._receiving(receive, body), self._sending(send, body)

    def _settle(self, body: _Body) -> None:
        """Give back what was taken for bytes that did not come: no body is read after the answer."""
        self._take("bytes in", body.received - body.taken)
        body.taken = body.received

    def _receiving(self, receive: Receive, body: _Body) -> Receive:
        """Count bytes beyond those taken at first: all of a chunked body."""

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            body.received += len(message.get("body", b""))
            if body.received > body.taken or message["type"] == "http.disconnect":
                self._settle(body)
            return message

        return counted

    def _sending(self, send: Send, body: _Body) -> Send:
        """Count bytes sent; an event stream, which has no end, waits for its share."""
        out, is_stream = self.buckets.get("bytes out"), False

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                self._settle(body)
                is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            elif out is not None:
                wait_s = out.wait_s(self._now_ms()) if is_stream and message.get("more_body") else 0
                if wait_s > 0:
                    await asyncio.sleep(min(wait_s, _STREAM_WAIT_S))
                out.take(len(message.get("body", b"")))
            await send(message)

        return counted


class Quotas:
    """The meters of all principals with a quota; used on the event loop."""

    def __init__(
        self, newest: Callable[[], Mapping[str, Quota]], now_ms: Callable[[], int], *, body_bytes_max: int
    ) -> None:
        """`body_bytes_max` is the largest body that any call takes."""
        self._newest = newest
        self.now_ms = now_ms
        self._body_bytes_max = body_bytes_max
        self._meters: dict[str, PrincipalMeter] = {}

    def meter(self, principal: str) -> PrincipalMeter | None:
        """Return the principal's meter; None if it has no quota."""
        quota = self._newest().get(principal)
        if quota is None:
            self._meters.pop(principal, None)
            return None
        meter = self._meters.get(principal)
        if meter is None or meter.quota != quota:
            meter = self._meters[principal] = PrincipalMeter(quota, self.now_ms, body_bytes_max=self._body_bytes_max)
        return meter


def _declared(headers: list[Header]) -> int:
    value = next((value for name, value in headers if name == b"content-length"), b"")
    return int(value) if value.isdigit() else 0
