"""Quotas of principals: 429 with `Retry-After`, before bodies are read (SPEC SEC-9)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

from deltamq.api.auth.quotas import PrincipalMeter
from deltamq.api.ports import Ports
from deltamq.mq.auth.principals import Quota
from tests.api.guarded import Guarded, guarded
from tests.api.running import Reply, until
from tests.set_clock import SetClock


class World:
    """A service whose clock tests move, as its administrator sees it."""

    def __init__(self, admin: Guarded, clock: SetClock) -> None:
        self.admin = admin
        self.clock = clock

    def caller(self, name: str, **bounds: int) -> Guarded:
        """A principal that may publish and subscribe, with a quota."""
        self.admin.put_topic(name, partitions=1)
        found = self.admin.caller(name, ("topic", name, "publish", "subscribe"))
        assert self.admin.call("PUT", f"/v1/auth/quotas/{name}", bounds).json == {"principal": name, **whole(bounds)}
        return found


def whole(bounds: dict[str, int]) -> dict[str, int | None]:
    return {name: bounds.get(name) for name in ("requests_per_s", "bytes_in_per_s", "bytes_out_per_s")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = SetClock()
    with guarded(tmp_path_factory.mktemp("quotas"), Ports(clock=clock)) as admin:
        yield World(admin, clock)


def over(reply: Reply) -> int:
    """The seconds to wait that a refusal says."""
    assert (reply.status, reply.json["code"]) == (429, "quota_exceeded"), reply
    return int(reply.headers["retry-after"])


def test_sec_09_requests_are_bounded(world: World) -> None:
    caller = world.caller("q.requests", requests_per_s=3)
    statuses = [caller.call("GET", "/v1/topics/q.requests").status for _ in range(4)]
    assert statuses == [200] * 4 and over(caller.call("GET", "/v1/topics/q.requests")) == 1
    assert world.admin.call("GET", "/v1/topics/q.requests").status == 200, "others are not concerned"
    world.clock.advance_ms(1_000)
    assert caller.call("GET", "/v1/topics/q.requests").status == 200


def test_sec_09_bytes_in_are_bounded_and_the_next_body_is_not_read(world: World) -> None:
    caller = world.caller("q.in", bytes_in_per_s=1_000)
    assert caller.send("q.in", "x" * 4_000).status == 200
    assert over(caller.send("q.in", "x")) in (3, 4)
    with closing(socket.create_connection(("127.0.0.1", caller.port), timeout=30)) as connection:
        head = f"POST /v1/topics/q.in/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {caller.token}\r\n"
        connection.sendall(f"{head}content-type: application/json\r\ncontent-length: 50000000\r\n\r\n".encode())
        assert b" 429 " in connection.recv(1_000), "it answers before there is a body"
    world.clock.advance_ms(10_000)
    chunks = iter([b'{"messages": [{"body": "', b"x" * 5_000, b'"}]}'])
    assert caller.call("POST", "/v1/topics/q.in/messages", chunks, "application/json").status == 200
    assert over(caller.send("q.in", "x")) >= 4, "a body of chunks counts, too"


def test_sec_09_what_was_declared_of_a_body_and_never_came_is_given_back(world: World) -> None:
    """A body that is refused unread for its length, and one whose client goes in the middle of it."""
    caller = world.caller("q.declared", bytes_in_per_s=100_000)
    head = f"POST /v1/topics/q.declared/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {caller.token}\r\n"
    head += "content-type: application/json\r\ncontent-length: "
    with closing(socket.create_connection(("127.0.0.1", caller.port), timeout=30)) as connection:
        connection.sendall(f"{head}{10**12}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(1_000)
    assert caller.send("q.declared", "x").status == 200
    with closing(socket.create_connection(("127.0.0.1", caller.port), timeout=30)) as connection:
        connection.sendall(f"{head}{50_000_000}\r\n\r\n{{".encode())
        until(lambda: caller.send("q.declared", "x").status == 429)
    until(lambda: caller.send("q.declared", "x").status == 200)


def test_sec_09_no_more_is_taken_at_first_than_a_body_may_have() -> None:
    meter = PrincipalMeter(Quota(principal="ada", bytes_in_per_s=1_000), lambda: 0, body_bytes_max=5_000)

    async def play() -> None:
        async def nothing(*_: object) -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * 8_000, "more_body": True}

        receive, send = meter.enter({"headers": [(b"content-length", b"%d" % 10**12)]}, nothing, nothing)
        assert meter.wait_s() == 4.0
        await receive()
        assert meter.wait_s() == 7.0, "what comes counts, whatever was declared"
        await send({"type": "http.response.start", "headers": []})
        assert meter.wait_s() == 7.0

    asyncio.run(play())


def test_sec_09_bytes_out_are_bounded(world: World) -> None:
    caller = world.caller("q.out", bytes_out_per_s=1_000)
    assert world.admin.send("q.out", "x" * 4_000).status == 200
    path = f"/v1/topics/q.out/partitions/{quote('q.out@broker-a')}/messages"
    assert caller.call("GET", path).status == 200
    assert over(caller.call("GET", path)) >= 3


def test_sec_09_a_quota_is_listed_and_taken_away(world: World) -> None:
    caller = world.caller("q.gone", requests_per_s=1)
    assert [caller.call("GET", "/v1/topics/q.gone").status for _ in range(3)] == [200, 200, 429]
    listed: Any = world.admin.call("GET", "/v1/auth/quotas").json["quotas"]
    assert {"principal": "q.gone", **whole({"requests_per_s": 1})} in listed
    assert world.admin.call("PUT", "/v1/auth/quotas/q.gone", {}).status == 200
    assert [caller.call("GET", "/v1/topics/q.gone").status for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("wrong", [{"requests_per_s": 0}, {"bytes_in_per_s": "many"}, {"seconds": 1}])
def test_sec_09_a_wrong_quota_is_refused(world: World, wrong: dict[str, object]) -> None:
    world.admin.put_principal("q.wrong")
    reply = world.admin.call("PUT", "/v1/auth/quotas/q.wrong", wrong)
    assert reply.status in (400, 422) and reply.json["field"].endswith(next(iter(wrong)))
