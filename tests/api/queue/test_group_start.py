"""Where a group begins that does not begin at the first message, in a topic that grows (MODEL-4, CONS-2, ROUTE-6).

It gets everything of a partition that was added after it had begun in the topic. One that begins only after the
expansion begins in what was added as in the rest, by its settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.api.as_static import is_static
from tests.api.exclusive import Member, exclusive_group
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.api.running import config_for, running, until

pytestmark = pytest.mark.static_too

#: Far enough in the future that nothing is ever appended at or after it.
LATER = (datetime.now(UTC) + timedelta(days=3650)).isoformat().replace("+00:00", "Z")
STARTS = pytest.mark.parametrize("consume_from", ["last", LATER], ids=["last", "time"])
ORDERS = pytest.mark.parametrize("order", [False, True, "key"])
OLD, NEW, NEXT = "orders@broker-a", "orders@broker-b", "orders#1@broker-a"
KEYS = [f"k{i}" for i in range(64)]
OFFSETS = "/v1/groups/late/topics/orders/offsets"


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path, static=is_static(request)) as found:
        yield found


def take_all(consumer: Consumer) -> list[str]:
    """Pop and acknowledge until nothing is left."""
    bodies: list[str] = []
    while (popped := consumer.pop()).messages:
        bodies += popped.bodies
        assert consumer.ack(popped.handles) == {}
    return bodies


def place_of_keys(queue: Queue) -> dict[str, str]:
    """The partition that each key goes to."""
    route = queue.api.service.topics.state.topic("orders").route
    return {key: route.partitions[route.partition_of(key)] for key in KEYS}


def expand(queue: Queue, partitions: int = 2) -> None:
    queue.topic(partitions)


@pytest.mark.promise("GROUP-3")
@STARTS
@ORDERS
def test_model_4_a_group_gets_all_of_a_partition_that_was_added_after_it_began(
    queue: Queue, consume_from: str, order: bool | str
) -> None:
    queue.topic(1)
    queue.send("before", "before, too")
    late = queue.group("late", consume_from=consume_from, order=order)
    assert take_all(late) == (["before, too"] if consume_from == "last" else [])
    queue.settle()
    expand(queue)
    queue.send("1", "2", "3", partition=NEW)
    queue.crash()
    assert take_all(queue.consumer("late")) == ["1", "2", "3"]
    queue.send("4", partition=NEW)
    assert take_all(queue.consumer("late")) == ["4"], "and goes on there"


@ORDERS
def test_cons_02_a_group_that_begins_after_an_expansion_begins_at_the_end_everywhere(
    queue: Queue, order: bool | str
) -> None:
    queue.topic(1)
    late = queue.group("late", consume_from="last", order=order)
    expand(queue)
    for partition in (OLD, NEW):
        queue.send("1", "2", "3", partition=partition)
    assert take_all(late) == ["3", "3"]


def test_cons_02_where_the_group_has_not_begun_of_what_was_there_it_begins_at_the_end(queue: Queue) -> None:
    queue.topic(2)
    late = queue.group("late", consume_from="last")
    assert late.pop(partition=OLD).messages == []
    queue.send("1", "2", partition=NEW)
    assert late.pop(partition=NEW).bodies == ["2"]


def test_cons_02_another_life_of_the_topic_or_the_group_begins_anew(queue: Queue) -> None:
    queue.topic(1)
    assert take_all(queue.group("late", consume_from="last")) == []
    assert queue.api.call("DELETE", "/v1/topics/orders").status in (200, 204)
    queue.topic(1)
    expand(queue)
    queue.send("1", "2", partition=NEW)
    assert take_all(queue.consumer("late")) == ["2"]
    assert queue.api.call("DELETE", "/v1/groups/late").status in (200, 204)
    expand(queue, 3)
    queue.send("1", "2", partition=NEXT)
    assert take_all(queue.group("late", consume_from="last")) == ["2", "2"]


@pytest.mark.parametrize("how", ["commit", "reset"])
def test_model_4_who_commits_or_is_reset_has_begun(queue: Queue, how: str) -> None:
    queue.topic(1)
    queue.send("1", "2")
    late = queue.group("late", consume_from="last")
    if how == "commit":
        assert queue.api.call("PUT", OFFSETS, {"offsets": {OLD: 1}}).status == 200
    else:
        assert queue.api.call("POST", f"{OFFSETS}/reset", {"to": {OLD: 1}}).status == 200
    expand(queue)
    queue.send("3", "4", partition=NEW)
    assert sorted(take_all(late)) == ["2", "3", "4"]


def test_model_4_a_group_that_began_at_the_first_message_has_begun_before_its_setting_changes(queue: Queue) -> None:
    queue.topic(1)
    queue.send("1")
    assert take_all(queue.group("late")) == ["1"]
    late = queue.group("late", consume_from="last")
    expand(queue)
    queue.send("2", "3", partition=NEW)
    assert take_all(late) == ["2", "3"]


@pytest.mark.promise("GROUP-3")
@STARTS
def test_model_4_an_exclusive_group_gets_all_of_a_partition_that_was_added(queue: Queue, consume_from: str) -> None:
    queue.topic(1)
    queue.send("before")
    exclusive_group(queue.api, "late", consume_from=consume_from)
    member = Member(queue.api, "late", "orders", "c1")
    assert member.allocated() == [OLD]
    assert member.take(OLD)["offsets"] == {OLD: 1}
    expand(queue)
    queue.send("1", "2", partition=NEW)
    until(lambda: member.allocated() == [OLD, NEW])
    assert member.take(NEW)["offsets"] == {NEW: 0}
    assert [one["body"] for one in member.fetch(NEW, "&offset=0").json["messages"]] == ["1", "2"]


@pytest.mark.plain_only("added queues divide the keys in another way")
def test_route_06_keys_wait_for_a_partition_that_was_added_after_the_group_began(queue: Queue) -> None:
    """A key moved twice: where it was in between, the group has committed nothing, but has all of it to consume."""
    queue.topic(1, order_strategy="strict")
    queue.group("late", consume_from="last")
    assert queue.api.call("PUT", OFFSETS, {"offsets": {OLD: 0}}).status == 200
    expand(queue)
    for key in KEYS:
        queue.send(f"{key}:1", key=key)
    between = place_of_keys(queue)
    expand(queue, 4)
    now = place_of_keys(queue)
    key = next(key for key in KEYS if between[key] == NEW != now[key])
    queue.send(f"{key}:2", key=key)

    def pulled() -> list[str]:
        found = queue.api.fetch("orders", now[key], "?group=late&offset=0")
        return [message["body"] for message in found.json["messages"]]

    assert pulled() == []
    assert queue.api.call("PUT", OFFSETS, {"offsets": {NEW: queue.api.stored("orders")[NEW]}}).status == 200
    assert pulled() == [f"{key}:2"]


@pytest.mark.promise("GROUP-3")
def test_model_4_a_group_that_began_at_another_process_is_known_to_have_begun(tmp_path: Path) -> None:
    with (
        running(config_for(tmp_path, brokers=("broker-a",))) as a,
        running(config_for(tmp_path, brokers=("broker-b",))) as b,
    ):
        until(lambda: b.service.hosting.hosts("broker-b") and len(a.service.meta.now.brokers.available) == 2)
        a.put_topic("orders", partitions=1)
        assert a.call("PUT", "/v1/groups/late", {"consume_from": "last"}).status == 201
        late = Consumer(a, "late", "orders")
        assert late.pop().messages == []
        # The one that has the new partition expands; it has heard nothing of the group's pops.
        assert [one["partition"] for one in b.put_topic("orders", partitions=2)["partitions"]] == [OLD, NEW]
        assert b.send("orders", *({"body": body, "partition": NEW} for body in "123")).status == 200
        assert Consumer(b, "late", "orders").pop_again(3, partition=NEW).bodies == ["1", "2", "3"]
