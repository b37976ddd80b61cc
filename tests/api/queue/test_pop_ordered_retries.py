"""Retried messages of groups that pop in order: without their place, but they come (SPEC POP-3, POP-11)."""

from __future__ import annotations

import pytest

from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from tests.api.queue.test_pop_waiting import Waiting
from tests.api.queue_calls import Queue

BOTH = pytest.mark.parametrize("order", [True, "key"])

pytestmark = pytest.mark.static_too


def _revived(queue: Queue, *bodies: str) -> None:
    """Send messages of which the first is popped without order, and comes too late."""
    queue.send(*bodies)
    assert queue.consumer("billing").pop(1, invisible_ms=10_000).bodies == [bodies[0]]
    queue.advance(12_000)
    # Stored by then, and over for the partition: pops in order may begin there.
    queue.settle()
    queue.revive()
    assert len(queue.retries("billing")) == 1


@pytest.mark.promise("JOB-2")
@BOTH
@pytest.mark.parametrize("by_group", [False, True])
def test_pop_03_what_was_popped_without_order_comes_again_to_pops_in_order(
    queue: Queue, order: object, by_group: bool
) -> None:
    queue.group("billing")
    _revived(queue, "a", "b", "c")
    asked = {} if by_group else {"order": order}
    if by_group:
        queue.group("billing", order=order)
    billing = queue.consumer("billing")
    found = billing.pop_again(3, **asked)
    assert sorted(found.bodies) == ["a", "b", "c"]
    attempts = {message["body"]: message["delivery_attempt"] for message in found.messages}
    assert attempts == {"a": 2, "b": 1, "c": 1}
    assert billing.ack(found.handles) == {}
    assert billing.pop(**asked).bodies == [] and billing.in_flight() == 0


@pytest.mark.promise("JOB-2")
@BOTH
def test_pop_15_a_retry_wakes_a_pop_in_order_that_waits(queue: Queue, order: object) -> None:
    queue.send("a")
    queue.consumer("billing").pop(1, invisible_ms=10_000)
    queue.advance(12_000)
    waiting = Waiting(queue.consumer("billing"), order=order)
    queue.revive()
    assert waiting.result().bodies == ["a"]


@BOTH
def test_pop_11_a_retry_of_a_group_in_order_fails_until_it_is_dead(queue: Queue, order: object) -> None:
    queue.group("billing", max_attempts=3)
    _revived(queue, "a")
    billing = queue.group("billing", order=order)
    found = billing.pop_again(1, invisible_ms=10_000)
    assert found.attempts == [2]
    queue.restart()
    queue.advance(12_000)
    queue.revive()
    billing = queue.consumer("billing")
    last = billing.pop_again(1)
    assert (last.bodies, last.attempts) == (["a"], [3])
    assert billing.nack(last.handles) == {}
    queue.advance(12_000)
    queue.revive()
    (dead,) = queue.dead_letters("billing")
    assert dead["body"] == b"a" and dict(dead["headers"])[DEAD_REASON_HEADER] == "max_attempts"


def test_pop_16_a_retry_in_flight_does_not_hold_the_partition(queue: Queue) -> None:
    _revived(queue, "a", "b", "c")
    billing = queue.group("billing", order=True)
    found = {message["body"]: message["handle"] for message in billing.pop_again(3).messages}
    assert billing.ack([found["b"], found["c"]]) == {}
    queue.send("d")
    assert billing.pop().bodies == ["d"], "a is in flight still"
    assert billing.ack([found["a"]]) == {}


def test_retry_03_dead_letters_of_a_group_in_order_are_sent_to_its_retries(queue: Queue) -> None:
    billing = queue.group("billing", order=True)
    queue.send("poison", "good")
    found = billing.pop()
    assert billing.dead(found.handles[:1]) == billing.ack(found.handles[1:]) == {}
    reply = queue.api.call("POST", f"{billing.path}/dead-letters/replay", {"to": "retry"})
    assert (reply.status, reply.json["replayed"]) == (200, 1), reply
    again = billing.pop_again(1)
    assert again.bodies == ["poison"] and billing.ack(again.handles) == {}
