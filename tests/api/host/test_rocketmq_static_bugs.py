"""RocketMQ's bugs of static topics, as tests of a service of ours; `#n` and `test_static_n_` name the issue there.

Those that are about decisions alone are in `tests/unit/mq/meta/test_static_topics.py` and
`tests/unit/mq/static/test_progress.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.exclusive import Member, exclusive_group
from tests.api.queue_calls import Queue, queue_in
from tests.api.static_calls import StaticTopic, name_of

A, B = "broker-a", "broker-b"
Q0 = name_of(0)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        yield found


def moved(queue: Queue, mode: str = "strict") -> StaticTopic:
    """The topic `orders`, whose one queue was remapped twice: `a` and `b`, then `c`, then `d`."""
    orders = StaticTopic(queue.api, "orders")
    assert orders.put(1, brokers=[A]).status == 201
    orders.send_to(0, "a", "b")
    for broker, body in ((B, "c"), (A, "d")):
        orders.remapped(broker, mode=mode)
        orders.send_to(0, body)
    return orders


def read_up(orders: StaticTopic, start: int = 0) -> list[tuple[int, str]]:
    """Offset and body of each message that a reader gets that follows `next_offset`."""
    found: list[tuple[int, str]] = []
    while (answer := orders.api.fetch("orders", Q0, f"?offset={start}").json)["status"] != "no_new_message":
        found += [(message["offset"], message["body"]) for message in answer["messages"]]
        assert answer["next_offset"] > start
        start = answer["next_offset"]
    return found


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_5812_a_remapped_topic_is_consumed_by_consumers_of_every_kind(queue: Queue, mode: str) -> None:
    """RocketMQ #5812: a static topic could not be consumed."""
    orders = moved(queue, mode)
    offsets = [0, 1, 2, 3] if mode == "strict" else [0, 1, 10_000, 20_000]
    assert read_up(orders) == list(zip(offsets, "abcd", strict=True))
    exclusive_group(queue.api, "ledger")
    client = Member(queue.api, "ledger", "orders", "c0")
    client.beat()
    assert client.take(Q0)["offsets"] == {Q0: 0}
    heard: list[Any] = []
    start = 0
    while start <= offsets[-1]:
        answer = client.fetch(Q0, f"&offset={start}").json
        heard += [(message["offset"], message["body"]) for message in answer["messages"]]
        start = answer["next_offset"]
    assert heard == list(zip(offsets, "abcd", strict=True))
    assert sorted(m["body"] for m in queue.group("billing").pop_all()) == list("abcd")


@pytest.mark.parametrize("order", [False, True, "key"])
def test_static_4062_pop_works_on_static_topics(queue: Queue, order: Any) -> None:
    """RocketMQ #4062: pop is declared unsupported there, and not refused."""
    moved(queue)
    billing = queue.group("billing", order=order)
    found: list[str] = []
    handles: list[str] = []
    while len(found) < 4:
        popped = billing.pop(1, ack=handles)
        assert popped.bodies and popped.failed == {}
        found, handles = found + popped.bodies, popped.handles
    assert billing.ack(handles) == {} and billing.pop().bodies == []
    assert sorted(found) == list("abcd") and (order is False or found == list("abcd"))


@pytest.mark.parametrize("clean", [True, False])
def test_static_3503_offsets_of_queues_and_groups_never_begin_at_0_again(queue: Queue, clean: bool) -> None:
    """RocketMQ #3503, #3401, #1440: after a restart or a move, a consumer was at 0 again."""
    orders = moved(queue)
    queue.group("billing")

    def commit(offset: int) -> None:
        asked = {"offsets": {Q0: offset}}
        assert queue.api.call("PUT", "/v1/groups/billing/topics/orders/offsets", asked).status == 200

    def committed() -> int:
        found: int = queue.api.call("GET", "/v1/groups/billing/topics/orders/offsets").json["offsets"][Q0]
        return found

    commit(3)
    for count in (4, 5):
        queue.restart() if clean else queue.crash()
        orders = StaticTopic(queue.api, "orders")
        assert committed() == 3, "the commit is of an older segment, the newest has none"
        assert read_up(orders, committed())[0] == (3, "d")
        assert orders.send_to(0, "x") == [count]
        orders.remapped(B if count == 4 else A)
        assert committed() == 3 and orders.queues[0]["max_offset"] == count + 1


def test_static_4070_a_search_by_time_looks_at_all_segments(queue: Queue) -> None:
    """RocketMQ #4070, #7074, #3105: wrong offsets, and a hit at offset 0 of a segment did not end the search."""
    orders = StaticTopic(queue.api, "orders")
    assert orders.put(1, brokers=[A]).status == 201
    moments = []
    for number, broker in enumerate((B, A, B)):
        moments.append(queue.now_ms)
        orders.send_to(0, str(number))
        queue.clock.advance_ms(10_000)
        orders.remapped(broker)

    def found(moment_ms: int) -> int:
        asked = queue.api.call("GET", f"/v1/topics/orders/offsets?time={_rfc3339(moment_ms)}")
        assert asked.status == 200, asked
        (one,) = asked.json["offsets"]
        assert one["partition"] == Q0
        offset: int = one["offset"]
        return offset

    assert [found(moment) for moment in moments] == [0, 1, 2]
    assert [found(moment + 1) for moment in moments] == [1, 2, 3]
    assert found(moments[0] - 5_000) == 0


def _rfc3339(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
