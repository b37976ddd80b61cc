"""SQL filters of pops, with and without order (SPEC CONS-9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.as_static import is_static
from tests.api.queue.test_pop_waiting import Waiting
from tests.api.queue_calls import Queue, queue_in

pytestmark = pytest.mark.static_too


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A topic of one partition with ten messages, bodies and the header `n` 0 to 9, tags x and y in turn."""
    with queue_in(tmp_path / "warehouse", static=is_static(request)) as found:
        found.topic()
        for at in range(10):
            found.send(f"{at}", tag="xy"[at % 2], headers={"n": f"{at}"}, key="k")
        yield found


def test_cons_09_a_pop_takes_what_its_filter_is_true_for_and_passes_over_the_rest(queue: Queue) -> None:
    billing = queue.consumer("billing")
    found = billing.pop(filter="n BETWEEN 2 AND 6", tags="x")
    assert found.bodies == ["2", "4", "6"]
    assert billing.pop().bodies == [], "passed over is consumed"
    assert billing.ack(found.handles) == {}
    queue.settle()
    stored = queue.committed(billing.lanes()[0])
    assert stored is not None and stored.offset == 10


def test_cons_09_a_filtered_pop_of_a_few_stops_behind_the_last_of_them(queue: Queue) -> None:
    billing = queue.consumer("billing")
    assert billing.pop(2, filter="n >= 3").bodies == ["3", "4"]
    assert billing.pop(2, filter="tag = 'y'").bodies == ["5", "7"]
    assert billing.pop().bodies == ["8", "9"]


@pytest.mark.parametrize("order", [True, "key"])
def test_cons_09_an_ordered_pop_with_a_filter_passes_over_the_others(queue: Queue, order: object) -> None:
    billing = queue.consumer("billing")
    found = billing.pop(1, order=order, filter="n IN (3, 5)")
    assert found.bodies == ["3"]
    assert billing.pop(1, order=order, filter="n IN (3, 5)", ack=found.handles).bodies == ["5"]


def test_cons_09_messages_that_do_not_fit_do_not_end_a_wait(queue: Queue) -> None:
    waiting = Waiting(queue.consumer("billing"), filter="n > 100")
    queue.send("a", headers={"n": "99"})
    queue.send("b", headers={"n": "101"})
    assert waiting.result().bodies == ["b"]


def test_cons_09_messages_from_files_are_filtered_and_so_are_those_delivered_again(queue: Queue) -> None:
    queue.restart()
    billing = queue.consumer("billing")
    found = billing.pop(filter="n > 7")
    assert found.bodies == ["8", "9"]
    assert billing.nack(found.handles, delay_ms=0) == {}
    queue.advance(60_000)
    queue.settle()
    queue.revive()
    again = billing.pop_again(1, filter="n = 9")
    assert (again.bodies, again.attempts) == (["9"], [2])


def test_cons_09_who_pops_is_shown_with_the_filter(queue: Queue) -> None:
    queue.consumer("billing").pop(client_id="w1", filter="n = 1")
    (client,) = queue.api.call("GET", "/v1/groups/billing").json["clients"]
    assert client["topics"] == {"orders": {"order": False, "tags": "*", "filter": "n = 1"}}


@pytest.mark.parametrize(("filter", "position"), [("", 0), ("n >", 3), ("n = 1 AND", 9), ("n" * 5000, 4096)])
def test_cons_09_a_wrong_filter_of_a_pop_is_refused_with_its_place(queue: Queue, filter: str, position: int) -> None:
    reply = queue.consumer("billing").ask(filter=filter)
    assert (reply.status, reply.json["code"], reply.json["field"]) == (422, "invalid_filter", "filter")
    assert reply.json["position"] == position
