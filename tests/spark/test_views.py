"""The queue in SQL (SPEC POP-19, CONS-4, RETRY-3, RETRY-8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from deltamq.jobs.merge.merge import Merger
from deltamq.jobs.queue.revive import Reviver
from deltamq.jobs.sql.queue_source import SpaceSource
from deltamq.jobs.sql.views import VIEWS, register_views
from deltamq.mq.audit import ActBegun, ActEnded, AuditRecord, RefusalCount
from deltamq.mq.errors import Refused
from deltamq.mq.history import HistoryRecord
from deltamq.mq.meta.group import decide_delete_group
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.dead_letters import Deleted, SentBack
from deltamq.mq.queue.delay import Ended
from deltamq.mq.queue.ordered_pop import CONDEMNED, REJECTED
from deltamq.mq.queue.progress import Committed, Delivered, OffsetRecord
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.statistics import Consumed, MinuteKey, StatisticsRecord
from deltamq.tables.log.batch import Batch
from deltamq.tables.queue.records import (
    rows_of_audit,
    rows_of_dead_marks,
    rows_of_history,
    rows_of_lost_records,
    rows_of_offset_records,
    rows_of_statistics,
)
from deltamq.tables.queue.refs import (
    AUDIT,
    DELAY,
    HISTORY,
    LOST,
    OFFSETS,
    STATISTICS,
    dead_marks_ref,
    dead_ref,
    system_ref,
)
from deltamq.tables.schema import INTERNAL_SCHEMA
from deltamq.tables.state.schema import STATE_TABLES
from tests.api.audit.test_killed_acts import OUTCOMES, killed_at_each_point
from tests.queue_tables import BROKER, CLUSTER, QueueTables, config

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW_MS = 1_790_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


def rows(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in spark.sql(query).collect()]


def commit(tables: QueueTables, lane: LaneKey, epoch: int, offset: int, *delivered: Delivered) -> None:
    record = OffsetRecord(lane=lane, topic="orders", committed=Committed(epoch, offset, (), delivered))
    tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER)).append([Batch(rows_of_offset_records([record]))])


@pytest.mark.long
def test_before_the_first_merge_there_is_nothing_to_see(spark: SparkSession, tables: QueueTables) -> None:
    tables.send(tables.topic(), "a")
    assert register_views(spark, tables.conf) == ["job_shards", *VIEWS]
    assert all(rows(spark, f"SELECT * FROM {name}") == [] for name in VIEWS if name != "mq_partitions")
    shown = "SELECT topic, partition, end_offset, logical_queue, logical_end_offset FROM mq_partitions"
    assert [tuple(row.values()) for row in rows(spark, f"{shown} WHERE space = 'topics'")] == [
        ("orders", f"orders@{BROKER}", 1, None, None)
    ]


@pytest.mark.long
def test_views_that_are_made_after_the_first_run_see_all_that_comes_later(
    spark: SparkSession, tables: QueueTables
) -> None:
    merger, nothing = Merger(tables.warehouse, tables.conf), cast(Any, None)
    assert merger.run(nothing, NOW)["rows"] == 0, "an empty warehouse gets its tables without Spark"
    register_views(spark, tables.conf)
    assert rows(spark, "SELECT * FROM mq_in_flight") == []
    topic, group = tables.topic(), tables.group()
    tables.send(topic, "a")
    tables.pop(group, topic, [0], at_ms=NOW_MS, invisible_ms=10**10)
    merger.run(spark, NOW)
    assert rows(spark, "SELECT `group`, offset FROM mq_in_flight") == [{"group": "billing", "offset": 0}]


@pytest.mark.long
def test_state_tables_have_their_columns_before_they_have_rows(spark: SparkSession, tables: QueueTables) -> None:
    Merger(tables.warehouse, tables.conf).run(cast(Any, None), NOW)
    for table, columns in STATE_TABLES.items():
        name = f"delta.`{tables.warehouse.store.uri(table)}`"
        assert spark.table(name).schema == from_arrow_schema(columns), table
        (about,) = rows(spark, f"DESCRIBE DETAIL {name}")
        assert (about["numFiles"], about["minReaderVersion"], about["minWriterVersion"]) == (0, 1, 2)
        assert about["properties"]["delta.logRetentionDuration"] == "interval 1 days"


@pytest.mark.promise("STATE-5")
def test_retry_08_sql_tells_what_became_of_a_dead_letter(spark: SparkSession, tables: QueueTables) -> None:
    Merger(tables.warehouse, tables.conf).run(cast(Any, None), NOW)
    group = tables.group()
    dead = tables.warehouse.create(dead_ref(group.name, group.epoch, BROKER))
    bodies = [{"body": b"%d" % at} for at in range(5)]
    dead.append([Batch(pa.RecordBatch.from_pylist(bodies, schema=INTERNAL_SCHEMA))])
    register_views(spark, tables.conf)
    told = "SELECT offset, state, sent_back_time, sent_back_by FROM mq_dead_letters ORDER BY offset"
    assert [tuple(row.values()) for row in rows(spark, told)] == [(at, "new", None, None) for at in range(5)]
    marks = [SentBack(((1, 4),), "origin", NOW_MS, "ada"), SentBack(((3, 4),), "retry", NOW_MS), Deleted(((2, 3),), 1)]
    marked = tables.warehouse.create(dead_marks_ref(group.name, group.epoch, BROKER))
    marked.append([Batch(rows_of_dead_marks(marks))])
    sent = NOW.astimezone().replace(tzinfo=None)
    assert [tuple(row.values()) for row in rows(spark, told)] == [
        (0, "new", None, None),
        (1, "sent_back", sent, "ada"),
        (2, "deleted", sent, "ada"),
        (3, "sent_back", sent, None),
        (4, "new", None, None),
    ]


def test_look_27_sql_shows_what_is_delayed_and_has_not_ended(spark: SparkSession, tables: QueueTables) -> None:
    register_views(spark, tables.conf)
    told = "SELECT topic, topic_id, partition, key, body, state, delay_offset FROM mq_delayed ORDER BY deliver_time"
    assert rows(spark, told) == []
    topic, later = tables.topic(), NOW_MS * 2
    tables.delay(
        topic, ("last", later + 2), ("late", 1_000), ("cancelled", later), ("forwarded", 500), ("next", later + 1)
    )
    tables.cancel(2)
    tables.mark(Ended(system_ref(DELAY, CLUSTER, BROKER).name, ((3, 4),)))
    (partition,) = topic.route.partitions
    found = rows(spark, told)
    assert {(one["topic"], one["topic_id"], one["partition"]) for one in found} == {("orders", topic.id, partition)}
    assert [(one["key"], bytes(one["body"]), one["state"], one["delay_offset"]) for one in found] == [
        ("key-late", b"late", "late", 1),
        ("key-cancelled", b"cancelled", "cancelled", 2),
        ("key-next", b"next", "waiting", 4),
        ("key-last", b"last", "waiting", 0),
    ]
    count = "SELECT count(*) AS n FROM mq_delayed WHERE state = 'waiting' AND topic = 'orders'"
    assert rows(spark, count) == [{"n": 2}]


@pytest.mark.promise("STATE-5")
@pytest.mark.long
def test_everything_is_sql(spark: SparkSession, tables: QueueTables) -> None:
    """A small queue: lag, in flight, retried, dead and lost, seen anew by each query."""
    topic, group = tables.topic("orders", 2), tables.group(max_attempts=2)
    lane = LaneKey(topic.id, group.name, False, topic.route.partitions[0])
    tables.send(topic, *"abcdef")
    tables.send(topic, *"gh", partition=1)
    expired = tables.pop(group, topic, [0, 1], at_ms=NOW_MS - 60_000, attempts=(1, 2))
    tables.ack(tables.pop(group, topic, [2, 4, 5], at_ms=NOW_MS, invisible_ms=10**10), 4)
    commit(tables, lane, group.epoch, 2)
    heard = tables.group("prices", consume_strategy="broadcast")
    commit(tables, lane._replace(group="prices@web-1"), heard.epoch, 5)
    Reviver(tables.warehouse, tables.conf).run(NOW_MS)
    lost = LostRecord(lane=lane, topic="orders", ranges=((7, 9),), reason=LostReason.RETENTION, time_ms=NOW_MS)
    tables.warehouse.create(system_ref(LOST, CLUSTER, BROKER)).append([Batch(rows_of_lost_records([lost]))])
    told = tables.warehouse.create(system_ref(STATISTICS, CLUSTER, BROKER))
    for process, counted in (
        ("p", Consumed(delivered=4, succeeded=2, failed=1, age_ms=70, age_max_ms=50, handling_ms=30)),
        ("q", Consumed(delivered=2, succeeded=1, age_ms=50, age_max_ms=30, handling_ms=10)),
    ):
        minute = MinuteKey(NOW_MS, "billing", "orders", topic.id, BROKER)
        told.append([Batch(rows_of_statistics([StatisticsRecord(minute, process, counted)]))])
    merger = Merger(tables.warehouse, tables.conf)
    merger.run(spark, NOW)
    register_views(spark, tables.conf)

    in_flight = rows(
        spark, "SELECT `group`, topic, partition, offset, attempt, overdue FROM mq_in_flight ORDER BY offset"
    )
    whose = {"group": "billing", "topic": "orders", "partition": f"orders@{BROKER}"}
    assert in_flight == [{**whose, "offset": at, "attempt": 1, "overdue": False} for at in (2, 5)]

    lag = {
        (row["partition"], row["retry"]): (row["committed_offset"], row["end_offset"], row["lag"], row["in_flight"])
        for row in rows(spark, "SELECT * FROM mq_lag WHERE `group` = 'billing'")
    }
    assert lag == {
        (f"orders@{BROKER}", False): (2, 6, 4, 2),
        (f"orders#1@{BROKER}", False): (None, 2, 2, 0),
        (f"%RETRY%billing_orders@{BROKER}", True): (None, 1, 1, 0),
    }

    assert rows(spark, "SELECT partition, lag FROM mq_lag WHERE `group` = 'prices@web-1' ORDER BY partition") == [
        {"partition": f"orders#1@{BROKER}", "lag": 2},
        {"partition": f"orders@{BROKER}", "lag": 1},
    ]

    retries = rows(spark, "SELECT `group`, topic, attempt, messages, waiting FROM mq_retries")
    assert retries == [{"group": "billing", "topic": "orders", "attempt": 2, "messages": 1, "waiting": 1}]

    (dead,) = rows(spark, "SELECT * FROM mq_dead_letters")
    assert (dead["group"], dead["reason"], dead["attempts"], dead["body"]) == ("billing", "max_attempts", 2, b"b")
    assert (dead["topic"], dead["origin_partition"], dead["origin_offset"]) == ("orders", f"orders@{BROKER}", 1)
    assert expired.span.last_offset == 1

    (gone,) = rows(spark, "SELECT `group`, topic, low, high, messages, reason FROM mq_lost")
    assert gone == {"group": "billing", "topic": "orders", "low": 7, "high": 9, "messages": 2, "reason": "retention"}

    (row,) = rows(spark, "SELECT * FROM mq_statistics")
    assert (row["group"], row["delivered"], row["succeeded"], row["success_rate"]) == ("billing", 6, 3, 0.75)
    assert (row["mean_age_ms"], row["longest_age_ms"], row["mean_handling_ms"]) == (20.0, 50, 10.0)

    # The same views, later.
    tables.send(topic, "i")
    retry = LaneKey(topic.id, group.name, True, f"%RETRY%billing_orders@{BROKER}")
    commit(tables, retry, group.epoch, 1)
    tables.pop(group, topic, [1], partition=1, at_ms=NOW_MS - 1, invisible_ms=1)
    merger.run(spark, NOW)
    assert rows(spark, "SELECT sum(lag) AS lag FROM mq_lag WHERE NOT retry AND `group` = 'billing'") == [{"lag": 7}]
    assert rows(spark, "SELECT waiting FROM mq_retries") == [{"waiting": 0}]
    assert rows(spark, "SELECT offset FROM mq_in_flight WHERE partition = 'orders#1@broker-a'") == [{"offset": 1}]


@pytest.mark.long
def test_pop_19_what_is_in_flight_in_order_is_sql(spark: SparkSession, tables: QueueTables) -> None:
    topic, group = tables.topic(), tables.group()
    tables.send(topic, *"abc")
    lane = LaneKey(topic.id, group.name, False, topic.route.partitions[0])
    condemned = Delivered(2, CONDEMNED + 3, NOW_MS, NOW_MS + 5)
    commit(tables, lane, group.epoch, 1, Delivered(1, 2, NOW_MS, NOW_MS + 10**10), condemned)
    Merger(tables.warehouse, tables.conf).run(spark, NOW)
    register_views(spark, tables.conf)
    shown = rows(
        spark,
        "SELECT offset, attempt, unix_millis(pop_time) AS popped, invisible_ms, dead_reason, overdue FROM mq_in_flight",
    )
    known = {"popped": NOW_MS, "overdue": False}
    assert sorted(shown, key=lambda row: row["offset"]) == [
        {**known, "offset": 1, "attempt": 2, "invisible_ms": 10**10, "dead_reason": None},
        {**known, "offset": 2, "attempt": 3, "invisible_ms": 5, "dead_reason": REJECTED, "overdue": True},
    ]
    assert rows(spark, "SELECT lag, in_flight FROM mq_lag WHERE NOT retry") == [{"lag": 2, "in_flight": 2}]


@pytest.mark.long
def test_order_08_what_an_exclusive_group_tries_in_place_is_sql(spark: SparkSession, tables: QueueTables) -> None:
    topic, group = tables.topic(), tables.group()
    tables.send(topic, *"abc")
    lane = LaneKey(topic.id, group.name, False, topic.route.partitions[0])
    commit(tables, lane, group.epoch, 1, Delivered.tried(1, 4, NOW_MS))
    Merger(tables.warehouse, tables.conf).run(spark, NOW)
    register_views(spark, tables.conf)
    shown = rows(
        spark,
        "SELECT offset, attempt, unix_millis(pop_time) AS tried, invisible_ms, revive_time, overdue FROM mq_in_flight",
    )
    nothing = {"invisible_ms": None, "revive_time": None, "overdue": False}
    assert shown == [{"offset": 1, "attempt": 4, "tried": NOW_MS, **nothing}]


@pytest.mark.long
def test_a_group_that_was_made_again_has_none_of_the_old_retries(spark: SparkSession, tables: QueueTables) -> None:
    topic, group = tables.topic(), tables.group()
    tables.pop(group, topic, tables.send(topic, "a"), at_ms=NOW_MS - 60_000)
    Reviver(tables.warehouse, tables.conf).run(NOW_MS)
    tables.meta.submit_groups(lambda m: decide_delete_group(m.groups, group.name))
    tables.group()
    Merger(tables.warehouse, tables.conf).run(spark, NOW)
    register_views(spark, tables.conf)
    assert rows(spark, "SELECT * FROM mq_retries") == rows(spark, "SELECT * FROM mq_lag") == []


@pytest.mark.parametrize("options", [{"space": "retry"}, {"warehouse": "w", "space": "topics"}, {"warehouse": "w"}])
def test_a_source_says_which_option_it_lacks(spark: SparkSession, options: dict[str, str]) -> None:
    source = SpaceSource(options)
    with pytest.raises(Refused, match="option"):
        source.reader(source.schema())


def begun(number: int, principal: str = "ada", **more: Any) -> ActBegun:
    asked = {"address": "10.0.0.1:9", "process": "p1", "call": "PUT /v1/auth", "resource": "principal", "asked": "{}"}
    return ActBegun(
        **{"id": f"a{number}", "time_ms": NOW_MS + number, "principal": principal, "name": "x", **asked, **more}
    )


def ended(number: int, before: str = "", after: str = "", **more: Any) -> ActEnded:
    known = {"outcome": "done", "status": 200, "code": "", "detail": "", "events": ()}
    return ActEnded(
        **{"id": f"a{number}", "time_ms": NOW_MS + number, "before": before, "after": after, **known, **more}
    )


def state(*patterns: str) -> str:
    """A principal's state as an act shows it."""
    acls = [{"id": p, "effect": "allow", "resource": "topic", "pattern": p, "verbs": ["subscribe"]} for p in patterns]
    return json.dumps({"auth/reports": {"note": "", "acls": acls}})


def audited(tables: QueueTables, *records: AuditRecord) -> None:
    tables.warehouse.create(AUDIT).append([Batch(rows_of_audit(records))])


@pytest.mark.long
def test_sec_43_sql_shows_each_act_once_with_its_outcome(spark: SparkSession, tables: QueueTables) -> None:
    audited(tables, begun(1), begun(1), ended(1, after=state("a")), ended(1, after=state("a")))
    audited(tables, begun(2), ended(2, outcome="failed", status=0, code="process_ended"), ended(2, status=201))
    audited(tables, begun(3), begun(4), ended(4, outcome="refused", status=409, code="taken", detail="there is one"))
    audited(tables, ended(5))
    register_views(spark, tables.conf)
    shown = "SELECT id, principal, address, outcome, status, code, detail, after IS NOT NULL AS changed FROM mq_audit"
    assert [tuple(row.values()) for row in rows(spark, f"{shown} ORDER BY time")] == [
        ("a1", "ada", "10.0.0.1:9", "done", 200, None, None, True),
        ("a2", "ada", "10.0.0.1:9", "done", 201, None, None, False),
        ("a3", "ada", "10.0.0.1:9", "unknown", None, None, None, False),
        ("a4", "ada", "10.0.0.1:9", "refused", 409, "taken", "there is one", False),
    ]
    (first,) = rows(spark, "SELECT time FROM mq_audit WHERE id = 'a1'")
    assert first["time"].timestamp() * 1_000 == pytest.approx(NOW_MS + 1)


@pytest.mark.long
def test_outsider_7_sql_shows_each_act_once_wherever_its_process_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with killed_at_each_point(tmp_path / "w"):
        register_views(spark, config(tmp_path / "w"))
        found = rows(spark, "SELECT name, outcome, count(*) AS times FROM mq_audit GROUP BY ALL ORDER BY name")
    made = [row for row in found if row["name"] != "admin"]
    assert made == [{"name": name, "outcome": outcome, "times": 1} for name, outcome in OUTCOMES]


def test_sec_43_sql_shows_refusals_by_minute(spark: SparkSession, tables: QueueTables) -> None:
    one = RefusalCount(
        id="r1",
        minute_ms=NOW_MS,
        process="p1",
        principal="poor",
        call="GET /",
        status=403,
        code="no",
        count=3,
        address="b",
    )
    audited(tables, one, one, replace(one, id="r2", process="p2", count=4))
    register_views(spark, tables.conf)
    found = rows(spark, "SELECT principal, sum(count) AS count FROM mq_refusals GROUP BY principal")
    assert found == [{"principal": "poor", "count": 7}]


def test_cons_13_sql_shows_the_samples_of_each_process_once(spark: SparkSession, tables: QueueTables) -> None:
    register_views(spark, tables.conf)
    assert rows(spark, "SELECT * FROM mq_history") == []
    record = HistoryRecord("lag", "billing", "orders", "p1", NOW_MS, 60_000, [5.0, None, 7.0])
    delayed = HistoryRecord("delayed", "", "", "p1", NOW_MS, 60_000, [1.5])
    log = tables.warehouse.create(HISTORY)
    log.append([Batch(rows_of_history([record, delayed])), Batch(rows_of_history([record]))])
    of_lag = "SELECT unix_millis(time) AS ms, `group`, topic, process, value FROM mq_history WHERE metric = 'lag'"
    its = {"group": "billing", "topic": "orders", "process": "p1"}
    assert rows(spark, f"{of_lag} ORDER BY time") == [
        {"ms": NOW_MS, **its, "value": 5.0},
        {"ms": NOW_MS + 120_000, **its, "value": 7.0},
    ]
    of_delayed = "SELECT `group`, topic, value FROM mq_history WHERE metric = 'delayed'"
    assert rows(spark, of_delayed) == [{"group": None, "topic": None, "value": 1.5}]


@pytest.mark.long
def test_sec_43_sql_shows_who_could_do_what_when(spark: SparkSession, tables: QueueTables) -> None:
    nobody = json.dumps({"auth/reports": None})
    audited(tables, begun(10), ended(10, before=nobody, after=state()))
    audited(tables, begun(20), ended(20, before=state(), after=state("a")))
    audited(tables, begun(30), ended(30, outcome="done", status=0))  # it was killed: what it left is not recorded
    audited(tables, begun(40), ended(40, before=state("a", "b"), after=state("b")))
    audited(tables, begun(50), ended(50, before=state("b"), after=nobody))
    register_views(spark, tables.conf)

    def at(ms: int) -> set[str]:
        moment = f"timestamp_millis({NOW_MS + ms})"
        query = f"SELECT pattern FROM mq_access_history WHERE since <= {moment} AND coalesce(until > {moment}, true)"
        return {row["pattern"] for row in rows(spark, query)}

    assert [at(ms) for ms in (5, 15, 45, 55)] == [set(), set(), {"b"}, set()]
    assert at(35) == {"a", "b"}
