"""Pops through the service: what a group gets, keeps, gives back and never gets twice (SPEC POP-1 to POP-10, CONS)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from tests.api.as_static import is_static
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.api.running import ARROW, until

pytestmark = pytest.mark.static_too(always=True)


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse", static=is_static(request)) as found:
        yield found


# What a pop brings ------------------------------------------------------------------------------------------------


def test_pop_01_a_pop_takes_from_all_partitions_and_says_what_is_left(queue: Queue) -> None:
    for name in queue.topic(partitions=4):
        queue.send(*(f"{name}/{i}" for i in range(10)), partition=name)
    found = queue.consumer("billing").pop(36)
    assert len(found.messages) == 36 and found.rest == 4
    assert {message["partition"] for message in found.messages} == set(queue.api.partitions("orders"))
    assert all(message["body"] == f"{message['partition']}/{message['offset']}" for message in found.messages)
    assert found.attempts == [1] * 36 and found.invisible_ms == 60_000


def test_pop_01_up_to_1024_messages_in_checkpoints_of_32(queue: Queue) -> None:
    queue.topic()
    queue.send(*map(str, range(1_100)))
    billing = queue.consumer("billing")
    found = billing.pop(1_024)
    assert found.bodies == [str(i) for i in range(1_024)] and found.rest == 76
    assert queue.api.service.lanes.checkpoints_in_memory == 32
    assert len(set(found.handles)) == 1_024
    assert billing.ack(found.handles) == {}


def test_pop_01_a_named_partition_is_the_only_one(queue: Queue) -> None:
    first, second = queue.topic(partitions=2)
    queue.send("here", partition=first)
    queue.send("there", partition=second)
    billing = queue.consumer("billing")
    assert billing.pop(partition=second).bodies == ["there"]
    assert billing.pop(partition=second).bodies == []
    refused = billing.ask(partition="nonsense@broker-a")
    assert (refused.status, refused.json["code"], refused.json["field"]) == (404, "partition_not_found", "partition")


def test_pop_01_the_start_is_random_so_that_no_partition_starves(queue: Queue) -> None:
    for name in queue.topic(partitions=4):
        queue.send(*["x"] * 100, partition=name)
    billing = queue.consumer("billing")
    firsts = Counter(billing.pop(1).messages[0]["partition"] for _ in range(60))
    assert len(firsts) == 4 and min(firsts.values()) >= 3


def test_pop_03_a_popped_message_is_invisible_to_its_group_alone(queue: Queue) -> None:
    queue.topic(partitions=2)
    queue.send("a", "b", "c")
    billing, audit = queue.consumer("billing"), queue.consumer("audit")
    assert sorted(billing.pop().bodies) == ["a", "b", "c"]
    assert billing.pop().bodies == []
    assert sorted(audit.pop().bodies) == ["a", "b", "c"]


def test_pop_03_what_nobody_acknowledged_comes_again_and_the_rest_does_not(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b", "c")
    billing = queue.consumer("billing")
    found = billing.pop(invisible_ms=20_000)
    assert billing.ack([found.handles[1]]) == {}
    queue.advance(19_000)
    queue.revive()
    assert queue.retries("billing") == [], "the time is not over"
    queue.advance(2_000)
    queue.revive()
    again = billing.pop_again(2)
    assert sorted(again.bodies) == ["a", "c"] and again.attempts == [2, 2]
    assert [m["origin"]["offset"] for m in sorted(again.messages, key=lambda m: m["body"])] == [0, 2]
    assert billing.ack(again.handles) == {}
    queue.advance(120_000)
    queue.revive()
    assert len(queue.retries("billing")) == 2


def test_pop_01_retried_messages_come_among_the_others(queue: Queue) -> None:
    queue.topic()
    queue.send("old")
    billing = queue.consumer("billing")
    billing.pop(invisible_ms=10_000)
    queue.advance(11_000)
    queue.revive()
    bodies = ["new"]
    while bodies != ["old"]:
        # More come than are popped: only who looks at the retries first, as one pop in five does, ever gets there.
        assert bodies == ["new"]
        queue.send("new", "new")
        bodies = billing.pop(1).bodies


def test_pop_07_a_new_group_begins_where_its_settings_say(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b", "c")
    assert queue.group("early", consume_from="first").pop().bodies == ["a", "b", "c"]
    late = queue.group("late", consume_from="last")
    assert late.pop().bodies == ["c"]
    (lane,) = late.lanes()
    queue.crash()
    stored = queue.committed(lane)
    assert stored is not None and stored.offset == 2, "the start was committed"
    queue.clock.advance_ms(60_000)
    queue.send("d")
    assert queue.consumer("late").pop().bodies == ["c", "d"], "the start stays"
    timed = queue.group("timed", consume_from="2023-11-14T22:13:30Z")
    assert timed.pop().bodies == ["d"]


@pytest.mark.promise("GROUP-2")
def test_pop_07_a_start_at_the_end_is_durable_before_the_answer(tmp_path: Path) -> None:
    """A service that is killed behind the answer and asked again must not begin at what has become the end."""
    # What is not stored before the answer is not stored by the crash.
    with queue_in(tmp_path, commit_every_ms=60_000) as queue:
        queue.topic(1)
        late = queue.group("late", consume_from="last")
        queue.send("a", "b")
        assert late.pop(1).bodies == ["b"]
        (lane,) = late.lanes()
        stored = queue.committed(lane)
        assert stored is not None and stored.offset == 1
        queue.send("c")
        queue.crash()
        assert queue.consumer("late").pop().bodies == ["b", "c"]


def test_cons_03_a_tag_filter_takes_what_it_names_and_passes_over_the_rest(queue: Queue) -> None:
    queue.topic()
    for at, tag in enumerate(("x", "y", "z", "x", "y")):
        queue.send(f"{at}", tag=tag)
    queue.send("5")
    billing = queue.consumer("billing")
    found = billing.pop(tags="x || z")
    assert found.bodies == ["0", "2", "3"]
    assert billing.pop(tags="*").bodies == [], "passed over is consumed"
    assert billing.ack(found.handles) == {}
    queue.settle()
    stored = queue.committed(billing.lanes()[0])
    assert stored is not None and stored.offset == 6


def test_cons_03_a_filtered_pop_of_a_few_stops_behind_the_last_of_them(queue: Queue) -> None:
    queue.topic()
    for at in range(100):
        queue.send(f"{at}", tag="x" if at % 10 == 3 else "y")
    billing = queue.consumer("billing")
    assert billing.pop(4, tags="x").bodies == ["3", "13", "23", "33"]
    assert billing.pop(4, tags="x").bodies == ["43", "53", "63", "73"]
    found = billing.pop(100, tags="y")
    assert found.bodies[0] == "74" and "83" not in found.bodies


def test_a_pop_as_arrow_has_the_message_row_with_handles(queue: Queue) -> None:
    for name in queue.topic(partitions=2):
        queue.send("a", "b", partition=name, key="k", headers={"n": "v"})
    billing = queue.consumer("billing")
    reply = billing.pop_arrow()
    rows = reply.table
    assert reply.headers["content-type"] == ARROW
    assert rows.column_names[0] == "partition" and rows.column_names[-2:] == ["handle", "delivery_attempt"]
    assert sorted(rows.column("body").to_pylist()) == [b"a", b"a", b"b", b"b"]
    assert rows.column("headers").to_pylist() == [[("n", "v")]] * 4
    assert rows.column("delivery_attempt").to_pylist() == [1] * 4
    assert (reply.headers["mq-rest"], reply.headers["mq-invisible-ms"]) == ("0", "60000")
    assert billing.ack(rows.column("handle").to_pylist()) == {}
    empty = billing.pop_arrow()
    assert empty.table.num_rows == 0 and empty.table.schema.equals(rows.schema)


def test_history_that_is_not_in_memory_is_popped_from_its_files(queue: Queue) -> None:
    queue.topic(partitions=2)
    queue.send(*map(str, range(300)))
    queue.restart()
    billing = queue.consumer("billing")
    assert sorted(map(int, (m["body"] for m in billing.pop_all()))) == list(range(300))


# Acknowledge ------------------------------------------------------------------------------------------------------


def test_pop_08_ack_twice_is_harmless(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b")
    billing = queue.consumer("billing")
    handles = billing.pop().handles
    assert billing.ack(handles[:1]) == {}
    assert billing.ack(handles[:1]) == {}
    assert billing.ack(handles) == {}
    assert billing.ack(handles * 3) == {}
    assert billing.in_flight() == 0


def test_pop_08_an_ack_after_its_time_is_refused_and_undoes_nothing(queue: Queue) -> None:
    queue.topic()
    queue.send("a")
    billing = queue.consumer("billing")
    (handle,) = billing.pop(invisible_ms=10_000).handles
    queue.advance(10_000)
    assert billing.ack([handle]) == {handle: "handle_expired"}
    queue.advance(1_000)
    queue.revive()
    assert billing.pop_again(1).bodies == ["a"]


def test_cons_05_a_shared_group_shows_who_has_popped_lately(queue: Queue) -> None:
    queue.topic()
    queue.topic(name="returns")
    billing = queue.consumer("billing")
    billing.pop()

    def shown() -> dict[str, dict[str, object]]:
        view = queue.api.call("GET", "/v1/groups/billing").json
        assert all(one["online"] and one["authorized_ms"] is None for one in view["clients"])
        return {one["client_id"]: one["topics"] for one in view["clients"]}

    assert shown() == {}, "it has not named itself"
    billing.pop(client_id="w2", tags="x")
    queue.advance(20_000)
    billing.pop(client_id="w1")
    queue.consumer("billing", "returns").pop(client_id="w1")
    plain = {"order": False, "tags": "*", "filter": None}
    assert shown() == {"w1": {"orders": plain, "returns": plain}, "w2": {"orders": {**plain, "tags": "x"}}}
    queue.advance(10_000)
    assert list(shown()) == ["w1"], "the other has said nothing for as long as an authorization lasts"
    assert queue.api.call("DELETE", "/v1/groups/billing").status == 204
    queue.group("billing")
    assert shown() == {}


@pytest.mark.promise("JOB-6")
def test_pop_19_what_waits_for_its_revival_is_in_flight_until_it_is_lag(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b")
    billing = queue.consumer("billing")
    _, done = billing.pop(invisible_ms=10_000).handles
    billing.ack([done])

    def shown() -> tuple[int, int]:
        queue.settle()
        (topic,) = queue.api.call("GET", "/v1/groups/billing").json["topics"]
        return topic["lag"], sum(one["in_flight"] for one in topic["partitions"])

    queue.advance(8_000)
    assert shown() == (0, 1)
    queue.advance(60_000)
    assert shown() == (0, 1), "nobody has it, and nobody is done with it"
    queue.restart()
    assert shown() == (0, 1), "also after a restart"
    queue.revive()
    assert shown() == (1, 0), "it waits in the retry topic"
    assert queue.consumer("billing").pop_again(1).bodies == ["a"]


def test_an_ack_carried_by_the_next_pop_counts_first(queue: Queue) -> None:
    queue.topic()
    queue.send(*map(str, range(64)))
    billing = queue.consumer("billing")
    first = billing.pop()
    second = billing.pop(ack=[*first.handles, "nonsense"])
    assert len(second.messages) == 32 and second.failed == {"nonsense": "handle_invalid"}
    assert billing.in_flight() == 32
    last = billing.pop_arrow(ack=[*second.handles, "nonsense"])
    assert last.table.schema.metadata == {b"mq-failed-acks": b'[{"handle":"nonsense","code":"handle_invalid"}]'}
    assert last.headers["mq-failed"] == "1" and billing.in_flight() == 0


def test_pop_14_the_offset_moves_over_what_is_acknowledged_in_order_of_pop(queue: Queue) -> None:
    queue.topic()
    queue.send(*map(str, range(96)))
    billing = queue.consumer("billing")
    first, second, third = (billing.pop() for _ in range(3))
    (lane,) = billing.lanes()

    def committed() -> int:
        queue.settle()
        found = queue.committed(lane)
        assert found is not None
        return found.offset

    billing.ack(second.handles)
    billing.ack(first.handles[:31])
    assert committed() == 0, "the first pop is not done"
    billing.ack(first.handles[31:])
    assert committed() == 64
    billing.ack(third.handles)
    assert committed() == 96


# Change -----------------------------------------------------------------------------------------------------------


def test_pop_09_a_new_invisible_time_makes_a_new_handle_and_kills_the_old(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b")
    billing = queue.consumer("billing")
    old, other = billing.pop(invisible_ms=20_000).handles
    new = billing.invisible(old, 60_000).json["handle"]
    assert new != old
    assert billing.ack([old]) == {old: "handle_expired"}
    queue.advance(30_000)
    queue.revive()
    assert billing.pop_again(1).bodies == ["b"], "only the other one's time is over"
    assert billing.ack([other]) == {other: "handle_expired"}
    assert billing.ack([new]) == {}
    queue.advance(60_000)
    queue.revive()
    assert [row["body"] for row in queue.retries("billing")] == [b"b"]


def test_pop_09_zero_returns_a_message_at_once(queue: Queue) -> None:
    queue.topic()
    queue.send("a")
    billing = queue.consumer("billing")
    (handle,) = billing.pop().handles
    assert billing.invisible(handle, 0).status == 200
    queue.advance(500)
    queue.revive()
    again = billing.pop_again(1)
    assert again.bodies == ["a"] and again.attempts == [2]


def test_pop_10_nack_waits_by_the_retry_policy_and_the_attempt(queue: Queue) -> None:
    queue.topic()
    billing = queue.group("billing", retry_policy=[20_000, 40_000], max_attempts=5)
    queue.send("a")
    for attempt, wait_ms in ((1, 20_000), (2, 40_000), (3, 40_000)):
        found = billing.pop_again(1)
        assert found.attempts == [attempt]
        assert billing.nack(found.handles) == {}
        queue.advance(wait_ms - 1_000)
        queue.revive()
        assert len(queue.retries("billing")) == attempt - 1
        queue.advance(2_000)
        queue.revive()
    assert billing.pop_again(1).attempts == [4]


def test_pop_10_a_nack_may_say_when(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b")
    billing = queue.consumer("billing")
    found = billing.pop()
    assert billing.nack(found.handles * 2, delay_ms=15_000) == {}, "twice in one call counts once"
    assert billing.nack(found.handles) == dict.fromkeys(found.handles, "handle_expired")
    queue.advance(16_000)
    queue.revive()
    assert sorted(billing.pop_again(2).bodies) == ["a", "b"]


def test_retry_03_a_nack_of_the_last_attempt_is_a_dead_letter(queue: Queue) -> None:
    queue.topic()
    billing = queue.group("billing", max_attempts=1)
    queue.send("a", key="k")
    assert billing.nack(billing.pop().handles, delay_ms=0) == {}
    queue.advance(500)
    queue.revive()
    assert queue.retries("billing") == []
    (dead,) = queue.dead_letters("billing")
    assert (dead["body"], dead["key"], dead["origin"]["offset"]) == (b"a", "k", 0)
    assert dict(dead["headers"])[DEAD_REASON_HEADER] == "max_attempts"


def test_a_message_may_be_condemned_with_a_reason(queue: Queue) -> None:
    queue.topic()
    queue.send("good", "bad")
    billing = queue.consumer("billing")
    found = billing.pop()
    assert billing.dead(found.handles[1:], "cannot be parsed") == {}
    assert billing.ack(found.handles) == {found.handles[1]: "handle_expired"}
    queue.advance(500)
    queue.revive()
    assert queue.retries("billing") == []
    (dead,) = queue.dead_letters("billing")
    assert dead["body"] == b"bad" and dict(dead["headers"])[DEAD_REASON_HEADER] == "cannot be parsed"


# Many at once -----------------------------------------------------------------------------------------------------


def _drain(consumer: Consumer, into: list[str]) -> None:
    handles: list[str] = []
    while True:
        found = consumer.pop(7, ack=handles)
        assert found.failed == {}
        if not found.messages:
            return
        into += found.bodies
        handles = found.handles


def _at_once(consumer: Consumer, clients: int) -> list[str]:
    seen: list[list[str]] = [[] for _ in range(clients)]
    threads = [threading.Thread(target=_drain, args=(consumer, into)) for into in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return [body for into in seen for body in into]


@pytest.mark.parametrize("memory_match", [True, False])
@pytest.mark.parametrize("partitions", [1, 4])
def test_pop_02_many_clients_at_once_get_each_message_once(tmp_path: Path, partitions: int, memory_match: bool) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=memory_match) as queue:
        queue.topic(partitions=partitions)
        queue.send(*map(str, range(400)))
        billing = queue.consumer("billing")
        found = _at_once(billing, 6)
        # A lane at work is passed by, so a client may find nothing while others still have some.
        found += [m["body"] for m in billing.pop_all()]
        assert sorted(map(int, found)) == list(range(400))


def test_cons_05_clients_come_and_go_and_stop_nobody(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b")
    gone, stays = queue.consumer("billing"), queue.consumer("billing")
    assert gone.pop(1, client_id="one").bodies == ["a"]
    assert stays.pop(1, client_id="two").bodies == ["b"]


def _metrics(queue: Queue) -> dict[str, float]:
    lines = queue.api.call("GET", "/metrics").body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_metrics_count_what_groups_do(queue: Queue) -> None:
    queue.topic()
    queue.send("a", "b", "c")
    billing = queue.consumer("billing")
    found = billing.pop(invisible_ms=10_000)
    billing.ack(found.handles[:1])
    queue.advance(11_000)
    queue.revive()
    again = billing.pop_again(2)
    billing.nack(again.handles[:1])
    billing.dead(again.handles[1:])
    # Leases that have ended are counted until the service's timer passes them.
    until(lambda: _metrics(queue)["deltamq_in_flight_messages"] == 2)
    values = _metrics(queue)
    lane = '{group="billing",topic="orders"}'
    assert values[f"deltamq_popped_messages_total{lane}"] == 5
    assert values[f"deltamq_redelivered_messages_total{lane}"] == 2
    assert values['deltamq_acked_messages_total{group="billing"}'] == 1
    assert values['deltamq_nacked_messages_total{group="billing"}'] == 1
    assert values['deltamq_condemned_messages_total{group="billing"}'] == 1
    assert values["deltamq_revive_records_total"] >= 3
    assert values["deltamq_stored_checkpoints_total"] == 1
    assert values["deltamq_in_flight_messages"] == 2
