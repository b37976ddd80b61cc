"""A slow client holds nothing that others need: headers, bodies, answers (SPEC SEC-30)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.limits import HEADER_LINES_MAX, HEADER_SECTION_BYTES_MAX, MIB
from tests.api.running import Api, config_for, running, until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    config = config_for(tmp_path_factory.mktemp("warehouse"), request_ms=100)
    with running(config, Ports(header_section_s=0.1, answer_look_s=0.2)) as found:
        found.put_topic("orders", partitions=1)
        for _ in range(16):
            assert found.send("orders", "x" * MIB).status == 200
        yield found


def _connect(api: Api) -> socket.socket:
    return socket.create_connection(("127.0.0.1", api.port), timeout=60)


def _all(sock: socket.socket) -> bytes:
    with sock.makefile("rb") as stream:
        return stream.read()


@pytest.mark.parametrize(
    "line",
    [
        "PUT /v1/topics/new",
        "PUT /v1/groups/new",
        "PUT /v1/brokers/broker-a",
        "POST /v1/topics/orders/messages",
        "POST /v1/groups/billing/ack",
        "POST /v1/groups/billing/topics/orders/pop",
        "PUT /v1/groups/billing/topics/orders/offsets",
        "POST /v1/groups/billing/dead-letters/replay",
    ],
)
def test_sec_30_a_body_that_does_not_come_is_given_up_by_every_call(api: Api, line: str) -> None:
    head = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    with closing(_connect(api)) as sock:
        sock.sendall(head.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += sock.recv(65536)
    assert received.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 404 ")), received
    assert b" 404 " not in received[:16] or line.endswith("replay"), received


def test_sec_30_a_client_that_goes_in_the_middle_of_its_body_is_no_error(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with closing(_connect(api)) as sock:
            sock.sendall(b"PUT /v1/topics/new HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert api.call("GET", "/v1/topics").json["topics"] == ["orders"]
    assert "Traceback" not in caplog.text and "Exception in ASGI" not in caplog.text


def test_sec_30_a_reader_that_takes_nothing_is_cut_off_and_frees_what_its_answer_held(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with closing(sock):
        sock.settimeout(60)
        sock.connect(("127.0.0.1", api.port))
        path = api.messages_path("orders", "orders@broker-a")
        sock.sendall(f"GET {path}?max_bytes={64 * MIB}&max_messages=100 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until(lambda: api.service.answers.bytes > 0)
        until(lambda: api.service.answers.bytes == 0)
    assert "event=slow_reader_cut_off" in caplog.text


def test_sec_30_a_reader_that_takes_its_time_gets_all(api: Api) -> None:
    path = api.messages_path("orders", "orders@broker-a")
    with closing(_connect(api)) as sock:
        head = f"GET {path}?max_bytes={64 * MIB}&max_messages=100 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        sock.sendall(head.encode())
        received = 0
        while data := sock.recv(8192):
            received += len(data)
    assert received > 16 * MIB


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"a: b\r\n" * (HEADER_LINES_MAX - 1), b"200"),
        (b"a: b\r\n" * HEADER_LINES_MAX, b"431"),
        (b"a:\r\n" * 20_000, b"431"),
        (b"a: " + b"b" * HEADER_SECTION_BYTES_MAX + b"\r\n", b"431"),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"Content-Length: 3\r\nContent-Length: 4\r\n", b"400"),
        (b"Content-Length: -1\r\n", b"400"),
        (b"Transfer-Encoding: chunked, identity\r\n", b"400"),
        (b" folded: line\r\n", b"400"),
        (b"a\0b: c\r\n", b"400"),
    ],
    ids=["most", "one more", "a flood", "long", "two framings", "two lengths", "negative", "framing", "folded", "nul"],
)
def test_sec_31_floods_of_headers_and_unclear_framings_are_refused(api: Api, headers: bytes, status: bytes) -> None:
    with closing(_connect(api)) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
        assert sock.recv(65536).split()[1] == status


def test_sec_31_trailers_count_as_headers(api: Api) -> None:
    with closing(_connect(api)) as sock:
        sock.sendall(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 2 * HEADER_LINES_MAX
        )
        assert b" 431 " in _until_status(sock)


def _until_status(sock: socket.socket) -> bytes:
    received = b""
    while b" 431 " not in received:
        data = sock.recv(65536)
        if not data:
            break
        received += data
    return received


def test_sec_31_an_encoded_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        for path in ("/v1/topics/t/messages", "/v1/groups/g/ack", "/v1/groups/g/topics/t/pop"):
            for encoding in ("gzip", "br", "zstd", "deflate", "gzip, gzip"):
                reply = api.call("POST", path, b"\x1f\x8b", "application/json", Content_Encoding=encoding)
                assert reply.status == 415, reply
