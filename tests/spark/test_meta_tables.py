"""Topics, routes, groups, brokers, exclusive clients, allocations and moves are tables (SPEC META-4)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import Merger
from deltamq.jobs.merge.meta_tables import META_TABLES, meta_rows
from deltamq.jobs.sql.views import register_views
from deltamq.mq.auth.changes import (
    decide_disable_principal,
    decide_first_administrator,
    decide_put_principal,
    decide_put_quota,
)
from deltamq.mq.auth.keys import Key
from deltamq.mq.auth.principals import quota_of
from deltamq.mq.auth.state import AuthState
from deltamq.mq.meta.access import Access, BrokerAccessPut
from deltamq.mq.meta.brokers import Host, decide_leave, decide_register, decide_renew, decide_takeover
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import decide_seal, moves_of
from deltamq.mq.meta.online import Subscription, TopicPartitions, decide_heartbeat
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.mq.schemas.registry import Reference, Schema, SchemaDeleted, SchemaRegistered
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.refs import OFFSETS, system_ref
from deltamq.tables.state.schema import (
    ACLS,
    ALLOCATIONS,
    BROKERS,
    CLIENTS,
    GROUPS,
    KEYS,
    MOVES,
    PRINCIPALS,
    QUOTAS,
    ROUTES,
    SCHEMAS,
    TOPICS,
)
from deltamq.tables.state.table import read_state_log
from tests.queue_tables import CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
AB = ("A", "B")


class Cluster(QueueTables):
    """What brokers, the meta role and exclusive clients leave in the metadata log."""

    def register(self, id: str, *brokers: str) -> None:
        host = Host(id=id, address=f"http://{id}:8080", brokers=brokers, renewal=0, load=0)
        self.meta.submit_any(lambda meta: decide_register(meta.brokers, host))

    def strict(self, partitions: int) -> Topic:
        """The topic `orders`, made or expanded."""
        request = TopicRequest(partitions=partitions, order_strategy="strict")

        def decide(meta: Meta) -> list[Any]:
            events = decide_put_topic(meta.topics, "orders", request, AB, "id-1", 0)
            return [*events, *moves_of(meta.topics, events)]

        return self.meta.submit_any(decide).topics.topic("orders")

    def heartbeat(self, client: str, topic: Topic, *, online: bool = True) -> None:
        partitions = {"orders": TopicPartitions(topic.id, topic.route.partitions)}
        self.meta.submit_any(
            lambda meta: decide_heartbeat(
                meta.online,
                "billing",
                client,
                subscriptions={"orders": Subscription(order=True, tags="paid")},
                online=online,
                topics=partitions,
                strategy="sticky",
                now_ms=1_000,
            )
        )

    def seal(self, topic: Topic, source: str, end_offset: int) -> None:
        """As the broker of `source` does after the expansion."""
        epoch = topic.route.epoch
        self.meta.submit_any(lambda m: decide_seal(m.moved_keys(topic.id), topic.id, source, epoch, end_offset))

    def commit(self, topic: Topic, offsets: dict[str, int]) -> None:
        for partition, offset in offsets.items():
            lane = LaneKey(topic.id, "billing", False, partition)
            epoch = self.meta.groups.epoch_of(lane)
            assert epoch is not None
            record = OffsetRecord(lane=lane, topic=topic.name, committed=Committed(epoch, offset))
            log = self.warehouse.create(system_ref(OFFSETS, CLUSTER, partition.rpartition("@")[2]))
            log.append([Batch(rows_of_offset_records([record]))])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "w")
    yield made
    made.close()


@pytest.fixture
def merger(cluster: Cluster) -> Iterator[Merger]:
    """The job's, in a process of its own."""
    warehouse = Warehouse.open(cluster.conf.warehouse.uri)
    yield Merger(warehouse, cluster.conf)
    warehouse.close()


def rows(spark: SparkSession, cluster: Cluster, table: str) -> list[dict[str, Any]]:
    """What Spark reads."""
    frame = spark.read.format("delta").load(cluster.warehouse.store.uri(table))
    return [row.asDict(recursive=True) for row in frame.collect()]


def version(cluster: Cluster, table: str) -> int:
    found = read_state_log(cluster.warehouse.store, table)
    assert found is not None
    return found.version


@pytest.mark.long
def test_meta_4_topics_routes_and_groups_are_tables(spark: SparkSession, cluster: Cluster, merger: Merger) -> None:
    cluster.topic("orders", 3, ("a", "b"))
    cluster.group("billing", max_attempts=3, order="key")
    assert merger.run(spark, NOW)["meta"] == 3
    assert SparkSession.getActiveSession() is spark, "who runs the job by hand goes on in this session"
    (topic,) = rows(spark, cluster, TOPICS)
    assert (topic["topic"], topic["partitions"], topic["order_strategy"]) == ("orders", 3, "best_tried")
    assert topic["partitioner"] == "lp"
    routes = rows(spark, cluster, ROUTES)
    assert sorted((row["number"], row["lp_low"], row["lp_high"]) for row in routes) == [
        (0, 0, 342),
        (1, 342, 683),
        (2, 683, 1024),
    ]
    (group,) = rows(spark, cluster, GROUPS)
    assert (group["group"], group["ordered"], group["max_attempts"]) == ("billing", "key", 3)
    assert group["allocation_strategy"] == "sticky"
    cluster.delete_topic(cluster.topic("orders", 3, ("a", "b")))
    merger.run(spark, NOW)
    assert rows(spark, cluster, TOPICS) == rows(spark, cluster, ROUTES) == []


@pytest.mark.promise("STATE-6")
@pytest.mark.long
def test_meta_4_brokers_clients_allocations_and_moves_are_tables(
    spark: SparkSession, cluster: Cluster, merger: Merger
) -> None:
    cluster.register("h1", "A")
    cluster.register("h2", "B")
    topic = cluster.strict(2)
    cluster.group("billing", consume_strategy="exclusive")
    for client in ("c1", "c2"):
        cluster.heartbeat(client, topic)
    topic = cluster.strict(4)
    cluster.seal(topic, "orders@A", 120)
    cluster.meta.submit_any(lambda meta: decide_takeover(meta.brokers, "h1", {"h2": 0}))
    key = Key(id="00112233aabbccdd", principal="root", digest="ab" * 32, created_ms=0)
    cluster.meta.submit_any(lambda meta: decide_first_administrator(meta.auth, key))
    registered = SchemaRegistered(subject="orders-value", version=1, id=1, schema=Schema(schema='"int"'))
    cluster.meta.submit_any(lambda meta: [registered])
    assert merger.run(spark, NOW)["meta"] == len(META_TABLES)
    (schema,) = rows(spark, cluster, SCHEMAS)
    assert (schema["subject"], schema["id"], schema["references"]) == ("orders-value", 1, [])
    assert {row["resource"] for row in rows(spark, cluster, ACLS)} == {"topic", "group", "cluster"}

    brokers = {row["broker"]: (row["epoch"], row["address"], row["stand_in"]) for row in rows(spark, cluster, BROKERS)}
    here = "http://h1:8080"
    assert brokers == {"A": (1, here, False), "/meta": (2, here, False), "B": (4, here, True)}

    clients = rows(spark, cluster, CLIENTS)
    assert {(row["group"], row["client"], row["leaving"]) for row in clients} == {
        ("billing", "c1", False),
        ("billing", "c2", False),
    }
    assert {topic["tags"] for row in clients for topic in row["topics"] if topic["in_order"]} == {"paid"}

    allocations = {row["partition"]: row for row in rows(spark, cluster, ALLOCATIONS)}
    assert {name: row["client"] for name, row in allocations.items()} == {"orders@A": "c1", "orders@B": "c2"}
    assert allocations["orders@B"]["earlier"] == ["c1"] and allocations["orders@A"]["earlier"] == []

    moves = [(row["source"], row["target"], row["lp_low"], row["end_offset"]) for row in rows(spark, cluster, MOVES)]
    assert sorted(moves) == [("orders@A", "orders#1@A", 256, 120), ("orders@B", "orders#2@B", 768, None)]


@pytest.mark.long
def test_meta_4_only_tables_with_news_are_written_again(spark: SparkSession, cluster: Cluster, merger: Merger) -> None:
    cluster.register("h1", *AB)
    cluster.group("billing", consume_strategy="exclusive")
    merger.run(spark, NOW)
    before = {table: version(cluster, table) for table in (BROKERS, GROUPS)}
    for _ in range(3):
        cluster.meta.submit_any(lambda meta: decide_renew(meta.brokers, "h1", 9))
    assert merger.run(spark, NOW)["meta"] == 0, "renewals of leases are no news"
    cluster.meta.submit_any(lambda meta: decide_leave(meta.brokers, "h1"))
    assert merger.run(spark, NOW)["meta"] == 1
    assert version(cluster, BROKERS) == before[BROKERS] + 1 and version(cluster, GROUPS) == before[GROUPS]
    assert {row["host"] for row in rows(spark, cluster, BROKERS)} == {None}


@pytest.mark.long
def test_what_was_replaced_is_swept(spark: SparkSession, cluster: Cluster, merger: Merger) -> None:
    for number in range(3):
        cluster.group(f"billing-{number}")
        merger.run(spark, NOW)
    folder = cluster.warehouse.store
    stored = [entry for entry in folder.entries(GROUPS) if entry.name.endswith(".parquet")]
    assert len(stored) == 3
    # Another process's first run, after the time in which queries may still read what was replaced.
    later = datetime.fromtimestamp(max(entry.modified_ms for entry in stored) / 1000, UTC) + timedelta(minutes=20)
    warehouse = Warehouse.open(cluster.conf.warehouse.uri)
    facts = Merger(warehouse, cluster.conf).run(spark, later)
    warehouse.close()
    assert int(facts["files_removed"]) >= 2
    assert len([entry for entry in folder.entries(GROUPS) if entry.name.endswith(".parquet")]) == 1
    assert len(rows(spark, cluster, GROUPS)) == 3


@pytest.mark.long
def test_meta_4_a_table_of_an_earlier_release_gets_its_new_columns(
    spark: SparkSession, cluster: Cluster, merger: Merger
) -> None:
    cluster.group("billing")
    merger.run(spark, NOW)
    uri = cluster.warehouse.store.uri(GROUPS)
    old = spark.read.format("delta").load(uri).drop("allocation_strategy")
    old.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(uri)
    cluster.group("audit")
    merger.run(spark, NOW)
    assert {row["allocation_strategy"] for row in rows(spark, cluster, GROUPS)} == {"sticky"}


@pytest.mark.long
@pytest.mark.promise("STATE-6")
def test_the_state_of_consumption_in_order_is_sql(spark: SparkSession, cluster: Cluster, merger: Merger) -> None:
    cluster.register("h1", "A")
    cluster.register("h2", "B")
    cluster.group("billing", consume_strategy="exclusive")
    topic = cluster.strict(2)
    cluster.heartbeat("c1", topic)
    cluster.heartbeat("c2", topic)
    cluster.send(topic, *"abc")
    cluster.send(topic, "d", partition=1)
    cluster.commit(topic, {"orders@A": 1, "orders@B": 1})
    topic = cluster.strict(4)
    cluster.seal(topic, "orders@A", 3)
    cluster.seal(topic, "orders@B", 1)
    cluster.heartbeat("c2", topic, online=False)
    merger.run(spark, NOW)
    register_views(spark, cluster.conf)

    def view(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(query).collect()]

    assert view("SELECT broker, online, address, stand_in, partitions FROM mq_brokers ORDER BY broker") == [
        ("/meta", True, "http://h1:8080", False, 0),
        ("A", True, "http://h1:8080", False, 2),
        ("B", True, "http://h2:8080", False, 2),
    ]
    everything = [f"orders@{name}" for name in AB] + [f"orders#{number}@{name}" for number, name in enumerate(AB, 1)]
    assert view("SELECT client, topic, in_order, leaving, partitions, lag FROM mq_clients ORDER BY client") == [
        ("c1", "orders", True, False, sorted(everything), 2),
        ("c2", "orders", True, True, [], 0),
    ]
    assert view("SELECT `group`, source, target, logical_partitions, passed FROM mq_moves ORDER BY source") == [
        ("billing", "orders@A", "orders#1@A", 256, False),
        ("billing", "orders@B", "orders#2@B", 256, True),
    ]


@pytest.mark.parametrize("table", META_TABLES)
def test_an_empty_warehouse_has_empty_tables(table: str) -> None:
    assert meta_rows(table, Meta()).num_rows == 0


def test_route_09_what_is_closed_is_in_the_tables_of_brokers_and_routes() -> None:
    host = Host(id="host", address="", brokers=("A", "B"), renewal=0, load=0)
    meta = Meta()
    meta = meta.apply_all(decide_register(meta.brokers, host))
    meta = meta.apply_all(decide_put_topic(meta.topics, "orders", TopicRequest(), ["A", "B"], "id-1", 1))
    closed = Access(writable=False, reason="disk", until_ms=1_000)
    meta = meta.apply_all([BrokerAccessPut(broker="A", access=closed)])
    columns = ("readable", "writable", "access_reason", "access_until")
    open_, shut = (True, True, None, None), (True, False, "disk", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    brokers = {row["broker"]: tuple(row[one] for one in columns) for row in meta_rows(BROKERS, meta).to_pylist()}
    assert (brokers["A"], brokers["B"]) == (shut, open_)
    routes = {row["broker"]: tuple(row[one] for one in columns) for row in meta_rows(ROUTES, meta).to_pylist()}
    assert routes == {"A": shut, "B": open_}
    assert {table for table, kind in META_TABLES.items() if "access" in kind.parts} == {BROKERS, ROUTES}


@pytest.mark.parametrize(("until_ms", "year"), [(1 << 60, 9999), (-(1 << 60), 1)])
def test_a_time_that_no_calendar_has_does_not_stop_the_merge(until_ms: int, year: int) -> None:
    meta = Meta()
    meta = meta.apply_all(decide_register(meta.brokers, Host(id="host", address="", brokers=("A",), renewal=0, load=0)))
    closed = Access(writable=False, reason="for ever", until_ms=until_ms)
    meta = meta.apply_all([BrokerAccessPut(broker="A", access=closed)])
    until = {row["broker"]: row["access_until"] for row in meta_rows(BROKERS, meta).to_pylist()}
    assert until["A"].year == year


def test_kafka_12_the_partitioner_is_in_the_table_of_topics_and_kafkas_has_no_logical_partitions() -> None:
    meta = Meta()
    for name, partitioner in (("bills", "lp"), ("orders", "kafka")):
        request = TopicRequest(partitions=2, partitioner=partitioner)  # type: ignore[arg-type]
        meta = meta.apply_all(decide_put_topic(meta.topics, name, request, ["A", "B"], f"id-{name}", 1))
    topics = {row["topic"]: row["partitioner"] for row in meta_rows(TOPICS, meta).to_pylist()}
    assert topics == {"bills": "lp", "orders": "kafka"}
    routes = [
        (row["partition"], row["number"], row["lp_low"], row["lp_high"]) for row in meta_rows(ROUTES, meta).to_pylist()
    ]
    assert routes == [
        ("bills@A", 0, 0, 512),
        ("bills@B", 1, 512, 1024),
        ("orders@A", 0, None, None),
        ("orders@B", 1, None, None),
    ]


def test_sec_19_the_table_of_principals_says_since_when_one_is_disabled() -> None:
    meta = Meta().apply_all(decide_put_principal(AuthState(), "reports", "Ada", 0))
    meta = meta.apply_all(decide_disable_principal(meta.auth, "reports", 1_000))
    since = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    told = {"principal": "reports", "note": "Ada", "created_time": since - timedelta(seconds=1)}
    assert meta_rows(PRINCIPALS, meta).to_pylist() == [{**told, "disabled_time": since}]


def test_type_20_subjects_and_their_versions_are_a_table() -> None:
    events = [
        SchemaRegistered(subject="orders-value", version=1, id=1, schema=Schema(schema='"int"')),
        SchemaRegistered(
            subject="refunds-value",
            version=1,
            id=2,
            schema=Schema(schema_type="JSON", schema="{}", references=(Reference("o", "orders-value", 1),)),
        ),
        SchemaDeleted(subject="refunds-value", versions=(1,), permanent=False),
    ]
    first, second = meta_rows(SCHEMAS, Meta().apply_all(events)).to_pylist()
    assert first == {
        "subject": "orders-value",
        "version": 1,
        "id": 1,
        "schema_type": "AVRO",
        "schema": '"int"',
        "references": [],
        "deleted": False,
    }
    assert (second["schema_type"], second["deleted"]) == ("JSON", True)
    assert second["references"] == [{"name": "o", "subject": "orders-value", "version": 1}]


def test_sec_03_who_may_do_what_is_in_tables_without_any_secret_or_its_hash() -> None:
    key = Key(id="00112233aabbccdd", principal="root", digest="ab" * 32, created_ms=0, until_ms=1_000)
    meta = Meta().apply_all(decide_first_administrator(AuthState(), key))
    meta = meta.apply_all(decide_put_quota(meta.auth, quota_of("root", requests_per_s=5)))
    (quota,) = meta_rows(QUOTAS, meta).to_pylist()
    assert quota == {"principal": "root", "requests_per_s": 5, "bytes_in_per_s": None, "bytes_out_per_s": None}
    tables = {table: meta_rows(table, meta).to_pylist() for table in (PRINCIPALS, KEYS, ACLS)}
    assert [(row["principal"], row["disabled_time"]) for row in tables[PRINCIPALS]] == [("root", None)]
    ends = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    begins = ends - timedelta(seconds=1)
    assert tables[KEYS] == [{"key_id": key.id, "principal": "root", "created_time": begins, "until_time": ends}]
    granted = {row["resource"]: (row["effect"], row["pattern"], len(row["verbs"])) for row in tables[ACLS]}
    assert granted == {"topic": ("allow", "*", 6), "group": ("allow", "*", 5), "cluster": ("allow", "*", 3)}
    assert key.digest not in str(tables)
    assert {table for table, kind in META_TABLES.items() if "auth" in kind.parts} == {*tables, QUOTAS}
