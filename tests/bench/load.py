"""HTTP clients that cost little: raw sockets, requests made in advance, answers read no further than needed.

Client and server share the machine, so what the client burns is missing from the server. A request here is one
`sendall` of ready bytes and one `recv_into` a reused buffer: about 20 microseconds of Python beside the kernel's share.
A library would take five to twenty times as much. Many synchronous clients are one thread that waits for all of
their sockets at once; clients that send or fetch megabytes are threads, since the kernel copies without the
interpreter's lock.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

__all__ = ["Address", "Answer", "Connection", "LoadError", "in_parallel", "paced", "request", "synchronous", "together"]

_BUFFER_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 60.0
_END_OF_HEAD: Final = b"\r\n\r\n"

Address = tuple[str, int]


class LoadError(Exception):
    """The service answered something else than success."""


class Answer(msgspec.Struct, frozen=True):
    """Status, raw header section, and a body that is valid until the connection's next exchange."""

    status: int
    head: bytes
    body: memoryview

    def header(self, name: bytes) -> bytes:
        """A header's value; the empty string when it is missing."""
        return _header(self.head, name)


def request(method: str, path: str, *, kind: str = "", body: bytes = b"", accept: str = "", **headers: str) -> bytes:
    """A whole request as bytes; keyword arguments become headers, `_` read as `-`."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench"]
    if kind:
        lines.append(f"Content-Type: {kind}")
    if accept:
        lines.append(f"Accept: {accept}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + _END_OF_HEAD + body


def _header(head: bytes, name: bytes) -> bytes:
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return b""
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


class Connection:
    """One keep-alive connection; one exchange at a time."""

    def __init__(self, address: Address, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self.socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(buffer_bytes)

    def exchange(self, data: bytes) -> Answer:
        """Send a request, wait for its whole answer."""
        self.socket.sendall(data)
        return self.answer()

    def answer(self) -> Answer:
        """The whole answer to a request that was sent."""
        got, head_end = 0, -1
        while head_end < 0:
            self._grow(got + 1, got)
            got += self._receive(got)
            head_end = self._buffer.find(_END_OF_HEAD, 0, got)
        head = bytes(self._buffer[:head_end])
        start = head_end + len(_END_OF_HEAD)
        length = int(_header(head, b"content-length") or 0)
        self._grow(start + length, got)
        while got < start + length:
            got += self._receive(got, start + length)
        return Answer(int(head[9:12]), head, memoryview(self._buffer)[start : start + length])

    def _receive(self, at: int, end: int | None = None) -> int:
        view = memoryview(self._buffer)[at:end]
        count = self.socket.recv_into(view)
        if count == 0:
            raise LoadError("the service closed the connection")
        return count

    def _grow(self, size: int, got: int) -> None:
        if size > len(self._buffer):
            larger = bytearray(max(size, 2 * len(self._buffer)))
            larger[:got] = self._buffer[:got]
            self._buffer = larger

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def checked(answer: Answer) -> Answer:
    """The answer, if it is a success."""
    if answer.status != 200:
        raise LoadError(f"status {answer.status}: {bytes(answer.body[:300])!r}")
    return answer


def synchronous(address: Address, data: bytes, clients: int, seconds: float) -> tuple[list[float], float]:
    """Clients that each send `data` again as soon as the answer is there.

    Returns
    -------
    tuple
        How long each exchange took, in milliseconds; and the seconds that passed.
    """
    connections = [Connection(address) for _ in range(clients)]
    try:
        if clients == 1:
            return _alone(connections, data, seconds)
        return together(connections, lambda _: data, seconds, lambda _client, _answer: None)
    finally:
        for connection in connections:
            connection.close()


def _alone(connections: Sequence[Connection], data: bytes, seconds: float) -> tuple[list[float], float]:
    took: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds or not took:
        sent = now
        checked(connections[0].exchange(data))
        now = time.perf_counter()
        took.append((now - sent) * 1e3)
    return took, now - began


def together(
    connections: Sequence[Connection],
    ask: Callable[[int], bytes],
    seconds: float,
    take: Callable[[int, Answer], None],
) -> tuple[list[float], float]:
    """Send on each connection what `ask(its number)` returns, hand the answer to `take`, and so on, in one thread.

    Returns as `synchronous` does.
    """
    took = []
    selector = selectors.DefaultSelector()
    began = now = time.perf_counter()
    sent = []
    for number, connection in enumerate(connections):
        selector.register(connection.socket, selectors.EVENT_READ, number)
        sent.append(time.perf_counter())
        connection.socket.sendall(ask(number))
    waiting = len(connections)
    while waiting:
        for key, _ in selector.select():
            number = key.data
            connection = connections[number]
            take(number, checked(connection.answer()))
            now = time.perf_counter()
            took.append((now - sent[number]) * 1e3)
            if now - began < seconds:
                sent[number] = now
                connection.socket.sendall(ask(number))
            else:
                waiting -= 1
    selector.close()
    return took, now - began


def paced(
    connections: Sequence[Connection], ask: Callable[[int], bytes], period_s: float, seconds: float
) -> tuple[list[float], float]:
    """Send on each connection what `ask(its number)` returns, every `period_s`, whatever the answers take.

    The first requests are spread over one period. A request whose connection still waits is sent after that answer,
    and its time counts from when it was due. All that were due within `seconds` are sent and answered.

    Returns as `synchronous` does.
    """
    selector = selectors.DefaultSelector()
    for number, connection in enumerate(connections):
        selector.register(connection.socket, selectors.EVENT_READ, number)
    began = now = time.perf_counter()
    due = [(began + period_s * number / len(connections), number) for number in range(len(connections))]
    asked_at: list[float | None] = [None] * len(connections)
    late: list[list[float]] = [[] for _ in connections]
    took: list[float] = []
    waiting = 0
    while due or waiting:
        while due and due[0][0] <= now:
            at, number = heapq.heappop(due)
            if at + period_s < began + seconds:
                heapq.heappush(due, (at + period_s, number))
            waiting += 1
            if asked_at[number] is None:
                asked_at[number] = at
                connections[number].socket.sendall(ask(number))
            else:
                late[number].append(at)
        for key, _ in selector.select(max(0.0, due[0][0] - now) if due else None):
            number = key.data
            checked(connections[number].answer())
            now, at_first = time.perf_counter(), asked_at[number]
            assert at_first is not None
            took.append((now - at_first) * 1e3)
            waiting -= 1
            asked_at[number] = late[number].pop(0) if late[number] else None
            if asked_at[number] is not None:
                connections[number].socket.sendall(ask(number))
        now = time.perf_counter()
    selector.close()
    return took, now - began


def in_parallel(
    address: Address, clients: int, seconds: float, step: Callable[[Connection, int], int]
) -> tuple[int, float]:
    """Threads that call `step(connection, client)` until the time is over; the sum of its results, and the seconds.

    The clock stops when the last step has ended, and all steps count.
    """
    connections = [Connection(address) for _ in range(clients)]
    totals = [0] * clients
    failed: list[BaseException] = []
    began = time.perf_counter()

    def work(client: int) -> None:
        try:
            while True:
                totals[client] += step(connections[client], client)
                if time.perf_counter() - began >= seconds:
                    return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    for connection in connections:
        connection.close()
    if failed:
        raise failed[0]
    return sum(totals), elapsed
