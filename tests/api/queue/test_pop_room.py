"""Pops while there is little room for answers, or none: what a client does not get is not taken (SPEC RELY-8)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.api.queue_calls import Queue
from tests.api.running import ARROW

MINUTE = 60_000
ORDERS = [False, True, "key"]

pytestmark = pytest.mark.static_too


@contextlib.contextmanager
def room_for(queue: Queue, nbytes: int) -> Iterator[None]:
    """Leave so many bytes for answers: readers hold the others."""
    answers = queue.api.service.answers
    held = answers._bytes_max - nbytes

    async def hold(count: int) -> None:
        answers.bytes += count

    queue.run(hold(held))
    try:
        yield
    finally:
        queue.run(hold(-held))
    assert answers.bytes == 0, "what was not used is given back"


@pytest.mark.parametrize("order", ORDERS)
def test_rely_8_a_pop_that_there_is_no_room_for_takes_nothing(queue: Queue, order: object) -> None:
    queue.send("a", key="a")
    queue.send("b", key="b")
    billing = queue.consumer("billing")
    with room_for(queue, 10):
        for accept in ("application/json", ARROW):
            refused = billing.ask(accept, order=order, wait_ms=20_000)
            assert (refused.status, refused.json["code"]) == (429, "queue_full") and refused.headers["retry-after"]
        assert billing.in_flight() == 0
    found = billing.pop(order=order)
    assert found.bodies == ["a", "b"] and found.attempts == [1, 1]


@pytest.mark.parametrize("order", ORDERS)
def test_rely_8_a_pop_takes_what_there_is_room_for(queue: Queue, order: object) -> None:
    for key in "abc":
        queue.send(key * 100_000, key=key)
    billing = queue.consumer("billing")
    with room_for(queue, 250_000):
        found = billing.pop(order=order)
        assert [body[0] for body in found.bodies] == ["a", "b"]
        rest = billing.pop(order=order, ack=found.handles)
        assert [body[0] for body in rest.bodies] == ["c"]


@pytest.mark.parametrize("order", ORDERS)
def test_rely_8_pops_that_are_refused_do_not_count_as_attempts(queue: Queue, order: object) -> None:
    billing = queue.group("billing", max_attempts=2, retry_policy={"fixed_ms": 0})
    queue.send("a", key="k")
    assert billing.pop(order=order).bodies == ["a"]
    queue.advance(2 * MINUTE)
    queue.revive()
    with room_for(queue, 10):
        for _ in range(3):
            assert billing.ask(order=order, wait_ms=20_000).status == 429
            queue.advance(2 * MINUTE)
            queue.revive()
    assert queue.dead_letters("billing") == []
    again = billing.pop_again(1, order=order)
    assert again.bodies == ["a"] and again.attempts == [2]


def test_pop_20_a_repeated_pop_that_there_is_no_room_for_gets_its_messages_later(queue: Queue) -> None:
    queue.send("a", "b")
    billing = queue.consumer("billing")
    lost = billing.pop(order=True, attempt_id="one")
    with room_for(queue, 0):
        assert billing.ask(order=True, attempt_id="one").status == 429
    again = billing.pop(order=True, attempt_id="one")
    assert again.bodies == lost.bodies and again.attempts == [1, 1]
    assert billing.ack(again.handles) == {}


def test_rely_8_a_lane_without_messages_needs_no_room(queue: Queue) -> None:
    billing = queue.consumer("billing")
    with room_for(queue, 0):
        assert billing.pop().bodies == []
