"""The check alone: what it remembers, and for how long (SPEC SEC-4, SEC-5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deltamq.api.auth.calls import CALLS
from deltamq.api.auth.gate import Gate
from deltamq.api.wire.request import Client
from deltamq.mq.auth.changes import decide_first_administrator, decide_put_key, decide_put_principal, decide_put_rule
from deltamq.mq.auth.keys import new_key
from deltamq.mq.auth.principals import quota_of, rule_of
from deltamq.mq.auth.state import AuthState, KeyRevoked, QuotaPut
from deltamq.mq.errors import Forbidden, Unauthenticated

QUOTA = QuotaPut(quota=quota_of("reports", requests_per_s=1))


class World:
    """A gate, and the state and the time that it sees."""

    def __init__(self) -> None:
        self.now_ms = 10
        key, self.root = new_key("root", b"r" * 8, b"R" * 32, 1)
        self.state = AuthState().apply_all(decide_first_administrator(AuthState(), key))
        self.state = self.state.apply_all(decide_put_principal(self.state, "reports", "", 1))
        made, self.token = new_key("reports", b"k" * 8, b"K" * 32, 1, 100)
        self.state = self.state.apply_all(decide_put_key(self.state, made))
        rule = rule_of(principal="reports", effect="allow", resource="topic", pattern="o*", verbs=["publish"])
        self.state = self.state.apply_all(decide_put_rule(self.state, rule))
        self.gate = Gate(lambda: self.state, lambda: self.now_ms)

    def ask(self, path: str = "/v1/topics/orders/messages", *, header: str | None = None, **more: Any) -> str:
        """The name of the caller that is admitted."""
        return self.gate.admit(self.scope(path, header=header, **more)).name

    def scope(
        self, path: str = "/v1/topics/orders/messages", *, header: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """The scope of a request with this `Authorization`, the principal's own if none is given."""
        value = f"Bearer {self.token}" if header is None else header
        headers = more.pop("headers", [(b"authorization", value.encode())])
        return {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": headers, **more}


@pytest.fixture
def world() -> World:
    return World()


def test_sec_05_what_is_remembered_is_forgotten_with_the_rules_the_key_and_the_time(world: World) -> None:
    assert world.ask() == world.ask() == "reports"
    before = world.state
    (rule,) = before.rules_of("reports")
    world.state = AuthState(before.principals, before.keys, {i: r for i, r in before.rules.items() if i != rule.id})
    with pytest.raises(Forbidden):
        world.ask()
    world.state = before.apply_all([KeyRevoked(id=(b"k" * 8).hex(), principal="reports")])
    with pytest.raises(Unauthenticated):
        world.ask()
    world.state = before
    world.now_ms = 99
    assert world.ask() == "reports"
    world.now_ms = 100
    for path in ("/v1/topics/orders/messages", "/v1/topics/others/messages"):
        with pytest.raises(Unauthenticated):
            world.ask(path)


def test_sec_04_two_headers_are_no_key(world: World) -> None:
    right = (b"authorization", f"Bearer {world.token}".encode())
    assert world.ask(headers=[(b"host", b"x"), right]) == "reports"
    for other in (right, (b"authorization", b"Bearer x")):
        for headers in ([right, other], [other, right]):
            with pytest.raises(Unauthenticated):
                world.ask(headers=headers)


def test_sec_04_what_callers_send_fills_no_memory(world: World) -> None:
    for number in range(50):
        with pytest.raises(Forbidden):
            world.ask(f"/v1/topics/{number}/messages")
        with pytest.raises(Unauthenticated):
            world.ask(header=f"Bearer {number}")
    padded = f"Bearer {' ' * 2_000}{world.token}"
    assert world.ask(header=padded) == "reports"
    assert padded.encode() not in world.gate._known and len(world.gate._known) == 1
    assert world.ask(f"/v1/topics/orders/messages/{'x' * 5_000}", method="DELETE") == "reports"
    (known,) = world.gate._known.values()
    assert not known.admitted, "neither what was refused nor what its caller made long"
    assert world.gate._known_bytes < 100


def test_sec_04_what_is_remembered_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltamq.api.auth.gate.DECISIONS_CACHED_MAX", 10)
    monkeypatch.setattr("deltamq.api.auth.gate.CREDENTIALS_BYTES_MAX", 500)
    for number in range(50):
        assert world.ask(f"/v1/topics/o{number}/messages") == "reports"
        assert world.ask(header=f"Bearer {' ' * number}{world.token}") == "reports"
        assert sum(len(known.admitted) for known in world.gate._known.values()) <= 10
        assert sum(map(len, world.gate._known)) == world.gate._known_bytes <= 500


@pytest.mark.parametrize("name", CALLS)
def test_sec_07_an_administrator_may_call_everything(world: World, name: str) -> None:
    method, _, path = name.partition(" ")
    path = path.replace("{", "").replace("}", "").replace(":path", "")
    assert world.ask(path, method=method, header=f"Bearer {world.root}") in ("root", "")


def test_sec_09_a_quota_counts_also_for_requests_that_are_remembered(world: World) -> None:
    sent = f"Bearer {world.token}".encode()
    scope = {"method": "POST", "raw_path": b"/v1/topics/orders/messages"}
    before = world.state
    for state, is_metered in ((before, False), (before.apply_all([QUOTA]), True), (before, False)):
        world.state = state
        assert world.gate.remembered(sent, scope) is None, (
            "whether a caller has a quota is part of what the check knows"
        )
        assert world.ask() == "reports"
        found = world.gate.remembered(sent, scope)
        assert found is not None and found.is_metered == is_metered
    world.now_ms = 100
    assert world.gate.remembered(sent, scope) is None, "the key has ended"


def test_sec_05_a_request_whose_access_ended_before_it_waits_does_not_wait(world: World) -> None:
    """Its body may have come slowly: what ended since it was admitted ends it as it begins to wait."""
    asyncio.run(_waits_for_nothing(world))


async def _waits_for_nothing(world: World) -> None:
    async def receive() -> dict[str, Any]:
        return await asyncio.Event().wait() or {}

    def admitted() -> Client:
        scope = world.scope()
        world.gate.admit(scope)
        return Client(scope, receive)

    before, kept = admitted(), admitted()
    assert not kept.gone.done()
    world.state = world.state.apply_all([KeyRevoked(id=(b"k" * 8).hex(), principal="reports")])
    assert before.refusal is None
    world.gate.recheck()
    assert before.gone.done() and isinstance(before.refusal, Unauthenticated)
    assert kept.gone.done() and isinstance(kept.refusal, Unauthenticated)
    for client in (before, kept):
        client.close()
    assert not world.gate._waiting
