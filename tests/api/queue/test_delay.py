"""RETRY-4, RETRY-5: delayed messages wait with their target, whatever is repeated, and can be cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.mq.queue.delay import Cancelled
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.records import delay_marks_of
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref
from deltamq.tables.queue.waiting import DUE_KEPT_MS
from tests.api.as_static import AsStatic, is_static
from tests.api.running import ARROW, NDJSON, Api, Reply, arrow_stream, config_for, running
from tests.faulty_store import faulty_disk
from tests.rows import rows
from tests.set_clock import AheadClock

pytestmark = pytest.mark.static_too

HOUR_MS = 3_600_000
BROKERS = ("broker-a", "broker-b")


def waiting(api: Api, topic: str) -> list[dict[str, Any]]:
    """What waits for a topic, of all brokers, in offset order."""
    found = [row for broker in BROKERS for row in _rows(api.service.warehouse, DELAY, broker)]
    topic_id = api.call("GET", f"/v1/topics/{quote(topic, safe='')}").json["id"]
    return [row for row in found if row["origin"]["topic"] == f"{topic_id}/{topic}"]


def _rows(warehouse: Warehouse, kind: str, broker: str) -> list[dict[str, Any]]:
    ref = system_ref(kind, "deltamq", broker)
    if not warehouse.exists(ref):
        return []
    log = warehouse.open_partition(ref)
    return [{**row, "place": ref.name} for page in pages(log, log.min_offset) for row in page.rows.to_pylist()]


def delivered(api: Api, topic: str) -> list[str]:
    """The bodies of what consumers can see."""
    return [body for bodies in api.bodies(topic).values() for body in bodies]


def marks(api: Api) -> set[Cancelled]:
    """What was cancelled so far."""
    found = set[Cancelled]()
    for broker in BROKERS:
        ref = system_ref(DELAY_MARKS, "deltamq", broker)
        if api.service.warehouse.exists(ref):
            for page in pages(api.service.warehouse.open_partition(ref), 0):
                found |= {mark for mark in delay_marks_of(page.rows) if isinstance(mark, Cancelled)}
    return found


def cancel(api: Api, topic: str, message_id: str) -> Reply:
    return api.call("DELETE", f"/v1/topics/{quote(topic, safe='')}/messages/{quote(message_id, safe='')}")


@pytest.fixture(scope="module")
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, clock: AheadClock, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A service whose wall clock tests set ahead."""
    with running(config_for(tmp_path_factory.mktemp("warehouse")), Ports(clock=clock)) as found:
        yield AsStatic(found.port, found.service) if is_static(request) else found


@pytest.fixture
def later(clock: AheadClock) -> Iterator[Callable[[int], None]]:
    """Lets the service believe that it is so many milliseconds later than it is."""

    def set_ahead(ms: int) -> None:
        clock.ahead_ms = ms

    yield set_ahead
    clock.ahead_ms = 0


def soon(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).isoformat()


@pytest.mark.plain_only("looks at the names in the tables")
def test_retry_04_a_delayed_message_waits_with_its_target_and_its_time(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    began_ms = api.service.now_ms()
    message = {"key": "k", "tag": "t", "headers": {"h": "1"}, "body": "later", "delay_ms": HOUR_MS, "message_id": "m"}
    reply = api.send(topic, message, query="?ids=true").json
    (there,) = reply["ranges"]
    (row,) = waiting(api, topic)
    assert there == {"partition": row["place"], "base_offset": row["offset"], "count": 1, "delayed": True}
    assert reply["message_ids"] == ["m"] and set(api.stored(topic).values()) == {0}
    target = row["origin"]["partition"]
    assert row["place"].partition("@")[2] == target.partition("@")[2], "it waits on its target's broker"
    assert (row["key"], row["tag"], row["headers"], row["body"]) == ("k", "t", [("h", "1")], b"later")
    due_ms = row["deliver_time"].timestamp() * 1000
    assert began_ms + HOUR_MS <= due_ms <= api.service.now_ms() + HOUR_MS
    api.send(topic, {"key": "k", "body": "now"})
    assert api.bodies(topic)[target] == ["now"], "the target is that of the key"


@pytest.mark.plain_only("looks at the names in the tables")
def test_retry_04_a_request_may_hold_both_and_many_targets(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    sent = [{"key": f"k{i}", "body": str(i), **({"delay_ms": HOUR_MS} if i % 3 else {})} for i in range(90)]
    ranges = api.send(topic, *sent).json["ranges"]
    delayed = [r for r in ranges if r.get("delayed")]
    assert len(delayed) == 2 and {r["partition"].partition("@")[2] for r in delayed} == set(BROKERS)
    found = sorted(i for r in ranges for i in r["indexes"])
    assert found == list(range(90))
    assert sorted(i for r in delayed for i in r["indexes"]) == [i for i in range(90) if i % 3]
    there = {(row["place"], row["offset"]): row for row in waiting(api, topic)}
    for r in delayed:
        for at, index in enumerate(r["indexes"]):
            assert there[r["partition"], r["base_offset"] + at]["body"] == str(index).encode()
    direct = api.bodies(topic)
    assert sorted(int(b) for bodies in direct.values() for b in bodies) == [i for i in range(90) if i % 3 == 0]
    api.send(topic, *({"key": f"k{i}", "body": f"again-{i}"} for i in range(90)))
    home = {body: partition for partition, bodies in api.bodies(topic).items() for body in bodies}
    assert all(row["origin"]["partition"] == home[f"again-{row['body'].decode()}"] for row in there.values())


@pytest.mark.parametrize(
    "when", [{"deliver_time": soon(days=-400)}, {"deliver_time": soon(seconds=-1)}, {"delay_ms": 0}]
)
def test_retry_05_what_is_due_in_the_past_is_delivered_at_once(api: Api, topic: str, when: dict[str, object]) -> None:
    reply = api.send(topic, {"body": "now", **when}).json
    assert "delayed" not in reply["ranges"][0]
    assert delivered(api, topic) == ["now"] and waiting(api, topic) == []


@pytest.mark.parametrize(
    ("name", "body", "kind"),
    [
        ("ndjson", '{"body": "a", "delay_ms": 3600000}\n\n{"body": "b", "partition": "%s@broker-b"}', NDJSON),
        ("arrow delay", arrow_stream(body=[b"a", b"b"], delay_ms=[HOUR_MS, None]), ARROW),
        (
            "arrow time",
            arrow_stream(
                body=[b"a", b"b"],
                deliver_time=pa.array([datetime.now(UTC) + timedelta(hours=1), None], pa.timestamp("us", "UTC")),
            ),
            ARROW,
        ),
    ],
)
def test_retry_04_every_format_can_delay(api: Api, topic: str, name: str, body: str | bytes, kind: str) -> None:
    api.put_topic(topic)
    text = body % topic if isinstance(body, str) else body
    reply = api.produce(topic, text, kind)
    assert reply.status == 200, reply.body
    assert [row["body"] for row in waiting(api, topic)] == [b"a"]
    assert delivered(api, topic) == ["b"]


@pytest.mark.plain_only("looks at the names in the tables")
def test_retry_04_a_named_partition_is_the_target(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    api.send(topic, {"body": "a", "delay_ms": HOUR_MS}, query=f"?partition={topic}@broker-b")
    (row,) = waiting(api, topic)
    assert row["origin"] == {"topic": row["origin"]["topic"], "partition": f"{topic}@broker-b", "offset": -1}
    assert row["place"] == "rmq_sys_DELAY_deltamq@broker-b"


def test_retry_04_a_message_is_never_due_before_its_time(api: Api, topic: str) -> None:
    due = datetime.now(UTC).replace(microsecond=1) + timedelta(hours=1)
    api.send(topic, {"body": "a", "deliver_time": due.isoformat()})
    times = pa.array([due, None], pa.timestamp("us", "UTC"))
    api.produce(topic, arrow_stream(body=[b"b", b"c"], deliver_time=times), ARROW)
    assert [row["deliver_time"] for row in waiting(api, topic)] == 2 * [due.replace(microsecond=1000)]


# Idempotent producers -------------------------------------------------------------------------------------------------

MIXED = [{"key": f"k{i}", "body": str(i), **({"delay_ms": HOUR_MS} if i % 2 else {})} for i in range(40)]


def _places(reply: Reply) -> list[object]:
    assert reply.status == 200, reply.body
    return sorted((r["partition"], r["base_offset"], r["count"], r.get("indexes")) for r in reply.json["ranges"])


@pytest.mark.promise("DELAY-2")
def test_send_05_a_replay_with_delayed_messages_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    producer = {"id": "p", "seq": 3}
    with running(config) as api:
        api.put_topic("orders", partitions=4)
        first = api.send("orders", *MIXED, producer=producer, query="?ids=true")
        again = api.send("orders", *MIXED, producer=producer, query="?ids=true")
        assert again.json["duplicate"] and _places(again) == _places(first)
        assert again.json["message_ids"] == first.json["message_ids"]
    with running(config) as api:
        late = api.send("orders", *MIXED, producer=producer)
        assert late.json["duplicate"] and _places(late) == _places(first)
        assert len(waiting(api, "orders")) == 20 and sum(api.stored("orders").values()) == 20
        refused = api.send("orders", "x", producer={"id": "p", "seq": 2})
        assert (refused.status, refused.json["code"]) == (409, "producer_sequence_out_of_order")
        reused = api.send("orders", "x", producer=producer)
        assert (reused.status, reused.json["code"]) == (409, "producer_sequence_reused")


def test_send_05_a_request_of_nothing_but_delayed_messages_is_remembered(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    message = {"body": "a", "deliver_time": soon(hours=1)}
    with running(config) as api:
        first = api.send("orders", message, producer={"id": "p", "seq": 5})
    with running(config) as api:
        assert _places(api.send("orders", message, producer={"id": "p", "seq": 5})) == _places(first)
        assert api.send("orders", "late", producer={"id": "p", "seq": 4}).status == 409
        assert api.send("orders", "next", producer={"id": "p", "seq": 6}).status == 200
        assert len(waiting(api, "orders")) == 1 and sum(api.stored("orders").values()) == 1


@pytest.mark.promise("DELAY-2")
def test_send_05_a_replay_after_the_deliver_time_is_still_a_replay(
    api: Api, topic: str, later: Callable[[int], None]
) -> None:
    message = {"body": "a", "deliver_time": soon(hours=1)}
    first = api.send(topic, message, producer={"id": "p", "seq": 0})
    later(2 * HOUR_MS)
    again = api.send(topic, message, producer={"id": "p", "seq": 0})
    assert again.json["duplicate"] and _places(again) == _places(first)
    assert len(waiting(api, topic)) == 1 and sum(api.stored(topic).values()) == 0


def test_send_05_topics_share_delay_partitions_but_not_sequences(api: Api, topic: str) -> None:
    for name in (topic, f"{topic}.other"):
        for body in ("a", "a"):
            api.send(name, {"body": body, "delay_ms": HOUR_MS}, producer={"id": "same", "seq": 0})
    assert len(waiting(api, topic)) == len(waiting(api, f"{topic}.other")) == 1


def test_send_05_what_is_left_of_a_request_goes_where_none_of_it_is(api: Api, topic: str) -> None:
    """The first copy stored the immediate messages only; the second comes when the others are due."""
    api.put_topic(topic, partitions=1)
    target = f"{topic}@broker-a"
    messages = [{"body": "now"}, {"body": "later", "deliver_time": soon(seconds=-1)}]
    log = api.service.warehouse.open_partition(PartitionRef(Space.TOPICS, topic, target))
    log.append([Batch(rows([b"now"]), ProducerStamp("p", 0, (0,), 2))])
    reply = api.send(topic, *messages, producer={"id": "p", "seq": 0})
    assert [(r["partition"], r["indexes"]) for r in reply.json["ranges"]] == [
        (target, [0]),
        ("rmq_sys_DELAY_deltamq@broker-a", [1]),
    ]
    assert [row["body"] for row in waiting(api, topic)] == [b"later"] and api.stored(topic) == {target: 1}
    assert api.send(topic, *messages, producer={"id": "p", "seq": 0}).json["duplicate"]
    assert len(waiting(api, topic)) == 1 and api.stored(topic) == {target: 1}


# Cancel ---------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("DELAY-3")
def test_retry_04_a_waiting_message_can_be_cancelled_by_its_id(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    sent = [{"key": f"k{i}", "body": str(i), "delay_ms": HOUR_MS, "message_id": f"m/{i} é"} for i in range(20)]
    api.send(topic, *sent)
    before = marks(api)
    assert cancel(api, topic, "m/7 é").status == 204
    (mark,) = marks(api) - before
    (row,) = [row for row in waiting(api, topic) if row["message_id"] == "m/7 é"]
    assert (mark.delay_partition, mark.offset) == (row["place"], row["offset"])


def test_retry_04_ids_that_the_append_made_can_be_cancelled(api: Api, topic: str) -> None:
    reply = api.send(topic, {"body": "a", "delay_ms": HOUR_MS}, query="?ids=true").json
    assert cancel(api, topic, reply["message_ids"][0]).status == 204


def test_retry_04_only_what_waits_for_this_topic_is_cancelled(api: Api, topic: str) -> None:
    api.send(topic, {"body": "a", "delay_ms": HOUR_MS, "message_id": "shared"})
    api.send(f"{topic}.other", {"body": "b", "delay_ms": HOUR_MS, "message_id": "shared"})
    api.send(topic, {"body": "direct", "message_id": "direct"})
    before = marks(api)
    refused = [cancel(api, topic, "direct"), cancel(api, topic, "nobody"), cancel(api, topic, "x" * 300)]
    for reply in refused:
        assert (reply.status, reply.json["code"], reply.json["field"]) == (404, "message_not_found", "message_id")
    assert cancel(api, f"{topic}.none", "shared").json["code"] == "topic_not_found"
    assert marks(api) == before
    assert cancel(api, topic, "shared").status == 204
    (mark,) = marks(api) - before
    assert mark.offset in {row["offset"] for row in waiting(api, topic) if row["place"] == mark.delay_partition}


@pytest.mark.promise("DELAY-3")
def test_retry_04_what_is_due_cannot_be_cancelled_any_more(api: Api, topic: str, later: Callable[[int], None]) -> None:
    api.send(topic, {"body": "a", "delay_ms": HOUR_MS, "message_id": "a"})
    before = marks(api)
    later(HOUR_MS)
    refused = cancel(api, topic, "a")
    assert (refused.status, refused.json["code"]) == (409, "already_due") and marks(api) == before
    later(HOUR_MS + DUE_KEPT_MS)
    assert cancel(api, topic, "a").status == 404


def test_retry_04_a_cancellation_that_is_repeated_late_is_told_the_same(
    api: Api, topic: str, later: Callable[[int], None]
) -> None:
    """Its first answer may have been lost."""
    for message_id in "ab":
        api.send(topic, {"body": message_id, "delay_ms": HOUR_MS, "message_id": message_id})
    before = marks(api)
    assert [cancel(api, topic, "a").status for _ in range(2)] == [204, 204]
    later(HOUR_MS + 60_000)
    assert cancel(api, topic, "a").status == 204
    assert cancel(api, topic, "b").json["code"] == "already_due"
    assert len(marks(api) - before) == 1


def test_retry_04_an_id_used_again_names_the_message_that_waits(
    api: Api, topic: str, later: Callable[[int], None]
) -> None:
    api.send(topic, {"body": "first", "delay_ms": HOUR_MS, "message_id": "a"})
    api.send(topic, {"body": "second", "delay_ms": 3 * HOUR_MS, "message_id": "a"})
    later(HOUR_MS + 60_000)
    before = marks(api)
    assert cancel(api, topic, "a").status == 204
    (mark,) = marks(api) - before
    (second,) = [row for row in waiting(api, topic) if row["body"] == b"second"]
    assert (mark.delay_partition, mark.offset) == (second["place"], second["offset"])


def test_retry_04_a_message_that_falls_due_while_it_is_cancelled_is_unknown(tmp_path: Path) -> None:
    clock, store = AheadClock(), faulty_disk(tmp_path)

    def slow(_: str) -> None:
        clock.ahead_ms = HOUR_MS + 1

    with running(config_for(tmp_path), Ports(clock=clock, store=store)) as api:
        api.send("orders", {"body": "a", "delay_ms": HOUR_MS, "message_id": "a"})
        store.once("before", "put_if_absent", slow, key=DELAY_MARKS)
        refused = cancel(api, "orders", "a")
        assert (refused.status, refused.json["code"]) == (503, "outcome_unknown")
        assert [mark.message_id for mark in marks(api)] == ["a"]
        assert cancel(api, "orders", "a").json["code"] == "already_due", "nobody knows whether it was in time"


def test_retry_05_after_a_restart_messages_can_still_be_cancelled(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.send("orders", {"body": "a", "delay_ms": HOUR_MS, "message_id": "a"})
    with running(config) as api:
        assert cancel(api, "orders", "a").status == 204
        assert [mark.message_id for mark in marks(api)] == ["a"]


def test_pop_12_a_message_for_an_earlier_life_of_the_topic_cannot_be_found(api: Api, topic: str) -> None:
    api.send(topic, {"body": "a", "delay_ms": HOUR_MS, "message_id": "a"})
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    api.put_topic(topic)
    assert cancel(api, topic, "a").status == 404
