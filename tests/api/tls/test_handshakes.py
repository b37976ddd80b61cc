"""TLS handshakes that are under way are connections, too (SPEC SEC-18)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.running import Api, config_for, running, until
from tests.certificates import Authority

LIMIT = 4


class Place:
    """A service with TLS that takes few connections."""

    def __init__(self, api: Api, authority: Authority) -> None:
        self.api = api
        self.context = ssl.create_default_context(cafile=authority.ca)

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.api.port), timeout=20)

    def ask(self) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, timeout=20, context=self.context)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz")
            return connection.getresponse().status

    def answers(self) -> bool:
        try:
            return self.ask() == 200
        except OSError:
            return False


@contextlib.contextmanager
def serving(folder: Path, **settings: int) -> Iterator[Place]:
    authority = Authority(folder / "tls")
    server = authority.server()
    config = config_for(folder / "warehouse", tls_cert=server.cert, tls_key=server.key, **settings)
    with running(config) as api:
        yield Place(api, authority)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with serving(tmp_path, connections_max=LIMIT) as place:
        yield place


def is_closed(plain: socket.socket) -> bool:
    """Whether the service has closed a connection on which nothing was sent; waits for it."""
    try:
        return plain.recv(1) == b""
    except ConnectionResetError:
        return True


def test_sec_18_handshakes_under_way_count_against_the_limit_of_connections(place: Place) -> None:
    with contextlib.ExitStack() as opened:
        silent = [opened.enter_context(contextlib.closing(place.open())) for _ in range(LIMIT)]
        assert is_closed(opened.enter_context(contextlib.closing(place.open()))), "one too many"
        assert not place.answers()
        silent[0].close()
        until(place.answers)
        # Made connections and handshakes count together.
        made = http.client.HTTPSConnection("127.0.0.1", place.api.port, timeout=20, context=place.context)
        opened.callback(made.close)

        def connected() -> bool:
            made.close()
            try:
                made.request("GET", "/healthz")
                return made.getresponse().read() != b""
            except OSError:
                return False

        until(connected)
        assert is_closed(opened.enter_context(contextlib.closing(place.open())))
    until(place.answers)


def test_sec_18_what_is_no_handshake_ends_its_connection_and_nothing_else(place: Place) -> None:
    for sent in (b"GET /healthz HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 100):
        with contextlib.closing(place.open()) as plain:
            plain.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(1_024):
                    pass
        assert place.answers()


def request_with_the_end_of_the_handshake(place: Place) -> bytes:
    """The answer to a request that goes out together with the client's last message of the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    agreed = place.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.closing(place.open()) as plain:

        def received() -> bool:
            data = plain.recv(65_536)
            incoming.write(data)
            return data != b""

        while True:
            try:
                agreed.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                assert received(), "the service closed the connection"
        agreed.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        plain.sendall(outgoing.read())
        answer = b""
        while b"alive" not in answer and received():
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while data := agreed.read():
                    answer += data
        return answer


def test_sec_18_requests_that_come_with_the_end_of_the_handshake_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as place:
        answers = [request_with_the_end_of_the_handshake(place) for _ in range(40)]
    assert all(one.startswith(b"HTTP/1.1 200") for one in answers)


def test_sec_18_a_service_stops_while_handshakes_are_under_way(tmp_path: Path) -> None:
    with serving(tmp_path) as place:
        silent = [place.open() for _ in range(3)]
        assert place.answers()
    for one in silent:
        with contextlib.closing(one):
            assert is_closed(one)
