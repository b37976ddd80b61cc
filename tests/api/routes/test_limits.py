"""Every queue and body has a limit, and being over it has an answer (SPEC RELY-8)."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.api.wire.request import Admission
from deltamq.mq.errors import Overloaded
from deltamq.mq.limits import ADMIN_BYTES_MAX, FETCH_BYTES_MAX, KIB, MIB
from tests.api.running import ARROW, PROBLEM, Api, arrow_stream, config_for, running


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with the smallest request limit."""
    config = config_for(tmp_path_factory.mktemp("warehouse"), request_bytes_max=64 * KIB, queue_bytes_max=MIB)
    with running(config) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that does not wait long for headers."""
    with running(config_for(tmp_path_factory.mktemp("warehouse")), Ports(header_section_s=0.1)) as found:
        yield found


def _raw(api: Api, *pieces: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    """Send bytes as they are; the answer's status, headers and problem."""
    with closing(socket.create_connection(("127.0.0.1", api.port), timeout=20)) as sock:
        for piece in pieces:
            sock.sendall(piece)
        stream = sock.makefile("rb")
        status = int(stream.readline().split()[1])
        headers = {}
        while line := stream.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers, json.loads(stream.read(int(headers["content-length"])))


HEAD = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(small: Api) -> None:
    status, _, problem = _raw(small, HEAD + b"Content-Length: 65537\r\n\r\n")
    assert (status, problem["code"], problem["field"], problem["limit"]) == (413, "request_too_large", "body", 65536)


def test_a_chunked_body_is_counted_as_it_arrives(small: Api) -> None:
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    status, _, problem = _raw(small, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 5)
    assert (status, problem["code"], problem["limit"]) == (413, "request_too_large", 65536)
    assert small.stored("orders") == {}


def test_a_chunked_body_within_the_limit_is_taken(small: Api) -> None:
    body = json.dumps({"messages": [{"body": "x" * 40_000}]}).encode()
    chunks = [b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:20_000], body[20_000:])]
    status, _, answer = _raw(small, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n")
    assert status == 200 and answer["duplicate"] is False


def test_the_connection_lives_on_after_a_refused_body(small: Api) -> None:
    with closing(socket.create_connection(("127.0.0.1", small.port), timeout=20)) as sock:
        sock.sendall(
            HEAD + b"Content-Length: 70000\r\n\r\n" + b" " * 70_000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        received = b""
        while b"alive" not in received:
            received += sock.recv(65536)
        assert received.startswith(b"HTTP/1.1 413 ") and b"HTTP/1.1 200 OK" in received


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    with running(config_for(tmp_path, request_ms=100)) as api:
        for framing in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
            status, _, problem = _raw(api, HEAD + framing + b"\r\n\r\n5\r\nhello\r\n")
            assert (status, problem["code"], problem["limit"]) == (408, "request_timeout", 100)
        assert api.service.admission.bytes == 0


@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD], ids=["nothing", "half a line", "no end"])
def test_headers_that_do_not_come_end_the_connection(impatient: Api, sent: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", impatient.port), timeout=60)) as sock:
        sock.sendall(sent)
        assert sock.recv(1) == b""


def test_headers_in_many_pieces_are_taken(small: Api) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", small.port), timeout=20)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(request)):
            sock.sendall(request[at : at + 1])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("how", [b"", b"Connection: close\r\n"], ids=["kept alive", "closed"])
def test_an_answer_is_whole_whether_the_connection_is_kept_or_not(small: Api, how: bytes) -> None:
    body = b'{"messages": [{"body": "x"}]}'
    status, headers, answer = _raw(small, HEAD + how + b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert (status, answer["duplicate"], headers.get("connection")) == (200, False, "close" if how else None)


def test_administrative_bodies_are_small(small: Api) -> None:
    reply = small.call("PUT", "/v1/topics/t", b" " * (ADMIN_BYTES_MAX + 1), "application/json")
    assert (reply.status, reply.json["code"], reply.json["limit"]) == (413, "request_too_large", ADMIN_BYTES_MAX)


def test_full_queues_answer_429_and_recover(tmp_path: Path) -> None:
    with running(config_for(tmp_path, queue_requests_max=2)) as api:
        api.put_topic("orders", partitions=1)
        gate = _held(api)
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(api.send, "orders", "a") for _ in range(2)]
            while api.service.admission.requests < 2:
                threading.Event().wait(0.002)
            refused = api.send("orders", "b")
            assert (refused.status, refused.json["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
            gate.set()
            assert [w.result().status for w in waiting] == [200, 200]
        assert api.send("orders", "c").status == 200
        assert api.stored("orders") == {"orders@broker-a": 3}


def _held(api: Api) -> threading.Event:
    """Commits wait until the event is set: another thread has the partition's turn."""
    gate, taken = threading.Event(), threading.Event()

    def hold() -> None:
        with api.hosted("orders", "orders@broker-a").open().turn:
            taken.set()
            gate.wait(20)

    threading.Thread(target=hold).start()
    assert taken.wait(20)
    return gate


def test_bytes_under_way_are_bounded(small: Api) -> None:
    """Twenty bodies of 60 KiB are declared and not sent: the queue of 1 MiB has place for seventeen."""
    opened: list[socket.socket] = []
    statuses = []
    try:
        for _ in range(20):
            under_way = small.service.admission.requests
            sock = socket.create_connection(("127.0.0.1", small.port), timeout=20)
            opened.append(sock)
            sock.sendall(HEAD + b"Content-Length: 61440\r\n\r\n ")
            answered = _answered(small, under_way, sock)
            statuses.append(int(sock.recv(65536).split()[1]) if answered else 0)
    finally:
        for sock in opened:
            sock.close()
    assert statuses == [0] * 17 + [429] * 3
    while small.service.admission.bytes:  # what a client that went away had reserved is given back
        threading.Event().wait(0.005)
    assert small.send("orders", "a").status == 200


def _answered(api: Api, under_way: int, sock: socket.socket) -> bool:
    """Whether the service answered, once it has either answered or kept the request."""
    while True:
        readable, _, _ = select.select([sock], [], [], 0.01)
        if readable:
            return True
        if api.service.admission.requests > under_way:
            return False


def test_rows_of_answers_under_way_are_bounded(tmp_path: Path) -> None:
    """Readers that ask for 32 MiB each and do not take it: what is on its way to them is bounded."""
    with running(config_for(tmp_path, answer_bytes_max=FETCH_BYTES_MAX)) as api:
        api.put_topic("orders", partitions=1)
        stream = arrow_stream(body=[bytes(MIB)] * 40)
        assert api.produce("orders", stream, ARROW).status == 200
        path = "/v1/topics/orders/partitions/orders%40broker-a/messages?max_bytes=33554432"
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {ARROW}\r\n\r\n".encode()
        with ExitStack() as slow:
            for _ in range(2):
                sock = slow.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=20))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(request)
                sock.recv(1)
            refused = api.call("GET", path, Accept=ARROW)
            assert (refused.status, refused.json["code"]) == (429, "queue_full") and refused.headers["retry-after"]
        while api.service.answers.bytes:  # readers that are gone hold nothing
            threading.Event().wait(0.005)
        assert api.call("GET", path, Accept=ARROW).status == 200


def test_admission_counts_requests_and_bytes() -> None:
    admission = Admission("produce", bytes_max=10, requests_max=2)
    with admission.enter() as first, admission.enter():
        first.grow(10)
        with pytest.raises(Overloaded, match="10 bytes"):
            first.grow(1)
        with pytest.raises(Overloaded, match="2 produce requests"):
            admission.enter()
        assert (admission.requests, admission.bytes) == (2, 10)
    assert (admission.requests, admission.bytes) == (0, 0)


# HTTP itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"hello\r\n\r\n", 400, "invalid_http"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400, "invalid_http"),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "invalid_http"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid_http"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)), 431, "headers_too_large"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
    ],
    ids=["no HTTP", "path not ASCII", "negative length", "two framings", "two lengths", "bad chunk", "headers", "path"],
)
def test_what_is_not_http_gets_a_problem_too(small: Api, raw: bytes, status: int, code: str) -> None:
    found, headers, problem = _raw(small, raw)
    assert (found, problem["code"], headers["content-type"]) == (status, code, PROBLEM)
    assert headers["connection"] == "close"
    assert small.call("GET", "/healthz").status == 200


def test_a_queue_that_could_not_hold_one_request_is_no_setting() -> None:
    with pytest.raises(ValueError, match="queue_bytes_max must be at least"):
        config_for("unused", queue_bytes_max=MIB, request_bytes_max=2 * MIB)
