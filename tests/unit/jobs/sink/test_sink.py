"""The sink of Spark's writes: each batch once, whatever fails between, and each message where the service puts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from deltamq.api.wire.route_batch import route_messages
from deltamq.api.wire.rows import ArrowRows
from deltamq.jobs.sink.batch import stage_rows
from deltamq.jobs.sink.manifest import Manifests, planned, sweep_writes
from deltamq.jobs.sink.staging import INLINE_BYTES_MAX
from deltamq.mq.errors import Conflict, Corrupt, NotFound, Refused, StorageFull, Unavailable, Unknown
from deltamq.mq.meta.brokers import Host, HostRegistered, RoleTaken
from deltamq.mq.meta.topics import decide_delete_topic
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.fences import BROKER_FENCE
from deltamq.tables.log.paging import pages
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import MemoryStore
from tests.faults.crash_disk import CrashDisk, DiskStore, outcomes
from tests.faulty_store import FaultyStore, failing
from tests.set_clock import SetClock
from tests.unit.jobs.sink.sinks import Sink, keyed

STEPS = [
    "sink.before_manifest",
    "sink.after_manifest",
    "sink.before_append@1",
    "sink.before_append@2",
    "sink.after_append@1",
    "sink.after_append@2",
    "sink.before_done",
    "sink.after_done",
    "commit.after_data_write",
]


def _names(low: int, high: int) -> list[str]:
    return [f"m{number:04d}" for number in range(low, high)]


def test_spark_03_a_batch_is_one_commit_in_each_partition_whatever_the_number_of_tasks() -> None:
    sink = Sink()
    sink.put_topic()
    sink.write(0, *(keyed(_names(low, low + 100)) for low in range(0, 500, 100)))
    assert sink.bodies() == _names(0, 500)
    topic, placement = sink.place.routed("orders")
    assert len(placement.partitions) == 2
    assert [sink.place.log(topic, name).version for name in placement.partitions] == [1, 1]


def test_spark_03_keys_go_where_the_service_puts_them_and_keep_their_order() -> None:
    sink = Sink()
    sink.put_topic(partitions=7)
    rows = keyed(_names(0, 600), keys=50)
    sink.write(0, rows.slice(0, 300), rows.slice(300))
    _, placement = sink.place.routed("orders")
    shares = route_messages("orders", ArrowRows(600, rows.nbytes, rows), None, placement, 0)
    wanted = {
        share.partition: [(row["key"], row["value"].decode()) for row in share.messages.batch.to_pylist()]
        for share in shares
        if isinstance(share.messages, ArrowRows)
    }
    assert {name: found for name, found in sink.stored().items() if found} == wanted


def test_spark_03_a_batch_that_was_done_is_not_done_again() -> None:
    sink = Sink()
    sink.put_topic()
    for batch in range(3):
        sink.write(batch, keyed(_names(batch * 10, batch * 10 + 10)))
    sink.restart()
    sink.write(2, keyed(_names(20, 30)))
    sink.write(1, keyed(reversed(_names(10, 20))))
    assert sink.bodies() == _names(0, 30)
    assert sink.files() == [*(f"{batch:020d}.done" for batch in range(3)), f"{2:020d}.manifest"]


@pytest.mark.promise("PIPE-5")
@pytest.mark.parametrize("step", STEPS)
def test_spark_03_a_driver_that_fails_anywhere_leaves_a_batch_that_is_stored_once(step: str) -> None:
    sink = Sink()
    sink.put_topic()
    sink.write(0, keyed(_names(0, 40)))
    name, _, nth = step.partition("@")
    messages = sink.stage(1, keyed(_names(40, 200)), keyed(_names(200, 300)))
    arm(f"{name}=raise" + (f"@{nth}" if nth else ""))
    try:
        with pytest.raises((FailpointHit, Unknown)):
            sink.commit(1, messages)
    finally:
        arm("")
    sink.restart()
    # the shuffle has given its rows another order, and other tasks
    rows = [name for name in reversed(_names(40, 300)) if int(name[1:]) % 3] + _names(42, 300)[::3]
    sink.write(1, keyed(rows[:10]), keyed(rows[10:]))
    assert sink.bodies() == _names(0, 300)
    sink.write(2, keyed(_names(300, 310)))
    assert sink.bodies() == _names(0, 310)


def test_spark_17_the_first_manifest_of_a_batch_stands_though_its_rows_are_others_the_second_time() -> None:
    sink = Sink()
    sink.put_topic()
    messages = sink.stage(0, keyed(_names(0, 50)))
    arm("sink.after_append=raise@1")
    try:
        with pytest.raises(FailpointHit):
            sink.commit(0, messages)
    finally:
        arm("")
    sink.restart()
    other = sink.stage(0, keyed(_names(900, 1000)))
    with pytest.raises(Conflict, match="100 rows instead of 50 for topic orders"):
        sink.commit(0, other)
    sink.commit(0, other, ignores_repeats=True)
    assert sink.bodies() == _names(0, 50)
    sink.write(0, keyed(_names(0, 50)))
    assert sink.bodies() == _names(0, 50)


def test_spark_03_many_rows_are_staged_in_files_and_swept_with_their_batch() -> None:
    sink = Sink()
    sink.put_topic()
    big = [name + "x" * 1000 for name in _names(0, 200)]
    assert sum(map(len, big)) > INLINE_BYTES_MAX
    lost = sink.stage(0, keyed(big))  # a task that was speculated: nobody commits what it staged
    messages = sink.stage(0, keyed(big))
    assert len([name for name in sink.files() if name.endswith(".arrow")]) == 2
    sink.commit(0, messages)
    assert sink.bodies() == big
    assert sink.files() == [f"{0:020d}.done", f"{0:020d}.manifest"]
    assert lost != messages


def test_spark_03_a_power_cut_that_takes_the_mark_of_a_batch_leaves_all_of_its_staged_rows(
    tmp_path: Path,
) -> None:
    disk = CrashDisk(tmp_path)
    store = DiskStore(disk)
    manifests = Manifests(store, "query-1")
    manifests.put(planned("query-1", 0, 1, []))
    staged = {f"{manifests.folder}/{0:020d}-{task}-a-0.arrow" for task in range(3)}
    for key in staged:
        store.put(key, b"rows", durable=True)
    disk.forget_moments()
    manifests.finish(0, {})
    found = outcomes(disk)
    done = [f"{manifests.folder}/{0:020d}.done" in one.image for one in found]
    assert any(done) and len(found) > 8
    assert all(is_done or staged <= one.image.keys() for is_done, one in zip(done, found, strict=True))
    assert not staged & set(store.names(manifests.folder))


def test_spark_03_a_batch_whose_mark_and_staged_rows_are_gone_is_found_stored() -> None:
    """Releases before left this behind after a power cut."""
    sink = Sink()
    sink.put_topic()
    big = [name + "x" * 1000 for name in _names(0, 200)]
    sink.write(0, keyed(big))
    sink.store.delete(f"{sink.folder}/{0:020d}.done")
    assert sink.files() == [f"{0:020d}.manifest"]
    sink.restart()
    sink.write(0, keyed(big))
    sink.write(1, keyed(_names(300, 310)))
    assert sink.bodies() == sorted([*big, *_names(300, 310)])


def test_spark_03_rows_without_keys_are_spread_over_all_partitions_piece_by_piece() -> None:
    schema = T.StructType([T.StructField("value", T.StringType())])
    sink = Sink(schema=schema)
    sink.put_topic(partitions=9)
    rows = pa.RecordBatch.from_pydict({"value": [f"m{number:06d}" for number in range(60_000)]})
    task = stage_rows(
        sink.place,
        sink.columns,
        "orders",
        iter([rows.slice(low, 6_000) for low in range(0, 60_000, 6_000)]),
        name=sink.name,
        batch=0,
        task=0,
        piece_bytes_max=100_000,
    )
    sink.commit(0, [task])
    found = sink.stored()
    assert sum(map(len, found.values())) == 60_000
    assert sum(1 for rows_ in found.values() if rows_) >= 4


def test_spark_03_staged_rows_that_are_damaged_are_not_appended() -> None:
    store = MemoryStore()
    sink = Sink(store)
    sink.put_topic(partitions=1)
    messages = sink.stage(0, keyed([name + "x" * 1000 for name in _names(0, 200)]))
    [file] = [name for name in sink.files() if name.endswith(".arrow")]
    data = bytearray(store.read(f"{sink.folder}/{file}").to_pybytes())
    data[5000] ^= 1
    store.put(f"{sink.folder}/{file}", bytes(data), durable=True)
    with pytest.raises(Corrupt, match="damaged"):
        sink.commit(0, messages)
    assert sink.bodies() == []


@pytest.mark.promise("PIPE-7")
def test_spark_03_a_full_disk_fails_the_batch_and_its_repetition_stores_it_once(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(tmp_path))
    sink = Sink(store)
    sink.put_topic()
    sink.write(0, keyed(_names(0, 10)))
    messages = sink.stage(1, keyed(_names(10, 60)))
    store.once("before", "put", failing(StorageFull()), key=".parquet")
    with pytest.raises(StorageFull):
        sink.commit(1, messages)
    sink.restart()
    sink.write(1, keyed(_names(10, 60)))
    assert sink.bodies() == _names(0, 60)


def test_spark_03_an_append_without_an_answer_is_repeated_and_stored_once() -> None:
    store = FaultyStore(MemoryStore())
    sink = Sink(store)
    sink.put_topic()
    sink.write(0, keyed(_names(0, 10)))
    messages = sink.stage(1, keyed(_names(10, 20)))
    store.once("after", "put_if_absent", failing(Unknown()), key="_delta_log")
    sink.commit(1, messages)
    assert sink.bodies() == _names(0, 20)


def test_spark_03_a_manifest_without_an_answer_is_the_one_that_is_stored() -> None:
    store = FaultyStore(MemoryStore())
    sink = Sink(store)
    sink.put_topic()
    messages = sink.stage(0, keyed(_names(0, 20)))
    store.once("after", "put_if_absent", failing(Unknown()), key=".manifest")
    sink.commit(0, messages)
    assert sink.bodies() == _names(0, 20)


@pytest.mark.promise("PIPE-7")
def test_spark_03_a_query_that_stood_still_for_days_asks_the_rows_what_is_stored() -> None:
    clock = SetClock()
    sink = Sink(clock=clock)
    sink.put_topic()
    messages = sink.stage(0, keyed(_names(0, 50)))
    arm("sink.after_append=raise@1")
    try:
        with pytest.raises(FailpointHit):
            sink.commit(0, messages)
    finally:
        arm("")
    clock.advance_ms(3 * 24 * 3600 * 1000)
    sink.restart()
    sink.write(0, keyed(_names(0, 50)))
    assert sink.bodies() == _names(0, 50)


# Expansions, fences, topics that come and go ------------------------------------------------------------------


@pytest.mark.promise("PIPE-8")
@pytest.mark.parametrize("strategy", ["strict", "best_tried"])
@pytest.mark.parametrize("step", ["", "sink.after_manifest", "sink.after_append=raise@1"])
def test_route_06_a_topic_that_is_expanded_under_a_batch_gets_each_message_once_and_in_order(
    strategy: str, step: str
) -> None:
    sink = Sink()
    sink.put_topic(partitions=2, order_strategy=strategy)
    sink.write(0, keyed(_names(0, 100), keys=40))
    messages = sink.stage(1, keyed(_names(100, 300), keys=40))
    if step:
        arm(step if "=" in step else f"{step}=raise")
        try:
            with pytest.raises(FailpointHit):
                sink.commit(1, messages)
        finally:
            arm("")
    sink.restart()
    sink.put_topic(partitions=5, order_strategy=strategy)
    sink.commit(1, messages)
    sink.write(2, keyed(_names(300, 400), keys=40))
    assert sink.bodies() == _names(0, 400)
    for rows in sink.stored().values():
        by_key: dict[str | None, list[str]] = {}
        for key, body in rows:
            by_key.setdefault(key, []).append(body)
        assert all(bodies == sorted(bodies) for bodies in by_key.values())


@pytest.mark.promise("PIPE-8")
def test_i15_rows_that_a_route_fence_refuses_go_to_the_new_partition_behind_the_seal() -> None:
    sink = Sink()
    sink.put_topic(partitions=1, order_strategy="strict")
    sink.write(0, keyed(_names(0, 50), keys=40))
    sink.put_topic(partitions=2, order_strategy="strict")
    topic, _ = sink.place.routed("orders")
    # the fence of another process, whose seal is still to come
    epoch = sink.place.meta.meta.moved_keys(topic.id).unsealed("orders@broker-a")[0]
    sink.opened().log(topic, "orders@broker-a").fence("route", epoch)
    sink.write(1, keyed(_names(50, 200), keys=40))
    assert sink.bodies() == _names(0, 200)
    assert not sink.opened().meta.meta.moved_keys(topic.id).waiting
    assert len(sink.stored()["orders@broker-b"]) > 0


def test_i14_a_sink_appends_behind_the_fence_of_a_broker_that_changed_hands_when_it_has_read_why() -> None:
    sink = Sink()
    sink.put_topic(partitions=1)
    sink.write(0, keyed(_names(0, 10)))
    other = sink.opened()
    host = Host(id="h2", address="http://h2", brokers=("broker-a",), renewal=0, load=0)
    taken = other.meta.submit_any(
        lambda meta: (
            [] if meta.brokers.hosts else [HostRegistered(host=host), RoleTaken(role="broker-a", host="h2", epoch=1)]
        )
    )
    topic, _ = other.routed("orders")
    other.log(topic, "orders@broker-a").fence(BROKER_FENCE, taken.brokers.epoch)
    sink.write(1, keyed(_names(10, 20)))
    assert sink.bodies() == _names(0, 20)


def test_i14_a_fence_that_nobody_explains_stops_the_query() -> None:
    sink = Sink(fenced_s=0.05)
    sink.put_topic(partitions=1)
    topic, _ = sink.place.routed("orders")
    sink.place.log(topic, "orders@broker-a").fence(BROKER_FENCE, 99)
    with pytest.raises(Unavailable, match="is being taken over") as raised:
        sink.write(0, keyed(_names(0, 10)))
    assert raised.value.code == "fenced"
    assert sink.bodies() == []


def test_spark_03_an_unknown_topic_is_refused_or_made_as_the_settings_say() -> None:
    with pytest.raises(NotFound, match="auto_create_topics"):
        Sink().stage(0, keyed(["a"]))
    making = Sink(auto_create=True)
    making.write(0, keyed(_names(0, 10)))
    assert making.bodies() == _names(0, 10)
    with pytest.raises(Refused, match="DLQ"):
        Sink(auto_create=True, topic="%DLQ%g").stage(0, keyed(["a"]))


def test_spark_03_a_topic_that_was_made_again_gets_the_batch_in_its_new_life() -> None:
    sink = Sink()
    sink.put_topic(partitions=3)
    sink.write(0, keyed(_names(0, 10)))
    messages = sink.stage(1, keyed(_names(10, 30)))
    sink.place.meta.submit(lambda state: decide_delete_topic(state, "orders"))
    sink.put_topic(partitions=3)
    with pytest.raises(Unavailable, match="made again"):
        sink.commit(1, messages)
    sink.write(1, keyed(_names(10, 30)))
    sink.restart()
    sink.write(1, keyed(_names(10, 30)))
    assert sink.bodies() == _names(10, 30)


def test_spark_16_a_batch_that_was_done_before_its_topic_was_made_again_is_stored_in_the_new_one() -> None:
    sink = Sink()
    sink.put_topic()
    sink.write(0, keyed(_names(0, 10)))
    sink.place.meta.submit(lambda state: decide_delete_topic(state, "orders"))
    sink.put_topic()
    sink.write(0, keyed(_names(10, 30)))
    sink.write(0, keyed(_names(10, 30)))
    assert sink.bodies() == _names(10, 30)


def test_spark_16_one_identity_stores_in_each_topic_delayed_rows_too() -> None:
    """The delay partition of a broker is one for all topics: producers' ids tell them apart."""
    store = MemoryStore()
    rows = _placed_in(("value", "delay_ms"), [("a", None), ("b", 3_600_000)])
    schema = T.StructType([T.StructField("value", T.StringType()), T.StructField("delay_ms", T.LongType())])
    one = Sink(store, name="key-day", topic="one", schema=schema)
    two = Sink(store, name="key-day", topic="two", schema=schema)
    for sink in (one, two):
        sink.put_topic(sink.topic, partitions=1)
        for _ in range(2):
            sink.write(0, rows)
        assert sink.bodies(sink.topic) == ["a"]
    delayed = one.opened().delay_log("one@broker-a")
    assert sum(page.rows.num_rows for page in pages(delayed, 0)) == 2


@pytest.mark.parametrize("bodies", [_names(0, 11), _names(0, 9), [*_names(0, 9), "x"], []])
def test_spark_17_a_repeat_with_other_rows_is_refused_and_stores_nothing(bodies: list[str]) -> None:
    sink = Sink()
    sink.put_topic()
    sink.write(0, keyed(_names(0, 10)))
    sink.write(1, keyed(_names(20, 30)))
    sink.restart()
    messages = sink.stage(0, keyed(bodies))
    with pytest.raises(Conflict) as refused:
        sink.commit(0, messages)
    assert refused.value.code == "producer_sequence_reused"
    sink.commit(0, messages, ignores_repeats=True)
    assert sink.bodies() == [*_names(0, 10), *_names(20, 30)]


def test_spark_17_what_is_forgotten_is_refused_too() -> None:
    sink = Sink()
    sink.put_topic(partitions=1)
    sink.write(5, keyed(["a"]))
    with pytest.raises(Conflict, match="comes after batch 5, and its first contents are not known"):
        sink.write(4, keyed(["b"]))
    sink.write(4, keyed([]))
    contents = sink.manifests.done(5)
    assert contents is not None
    sink.manifests.finish(5 + 127, contents)
    sink.write(5, keyed(["a"]))
    sink.manifests.finish(5 + 128, contents)
    with pytest.raises(Conflict, match="not known"):
        sink.write(5, keyed(["a"]))
    assert sink.bodies() == ["a"]


# Columns that say where and when ------------------------------------------------------------------------------

_PLACED = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.StringType()),
        T.StructField("key", T.StringType()),
        T.StructField("value", T.StringType()),
        T.StructField("delay_ms", T.LongType()),
    ]
)


def _placed_in(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    kinds = {"delay_ms": pa.int64()}
    arrays = [
        pa.array(column, kinds.get(name, pa.string()))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _placed(*rows: tuple[str, str | None, str | None, str, int | None]) -> pa.RecordBatch:
    return _placed_in(("topic", "partition", "key", "value", "delay_ms"), rows)


def test_spark_03_rows_name_their_topic_and_their_partition_by_name_or_number() -> None:
    sink = Sink(topic=None, schema=_PLACED)
    sink.put_topic("orders", partitions=2)
    sink.put_topic("bills", partitions=1)
    sink.write(
        0,
        _placed(
            ("orders", "orders@broker-b", "k", "by name", None),
            ("bills", None, None, "a bill", None),
            ("orders", "1", "k", "by number", None),
            ("orders", "0", None, "another", None),
        ),
    )
    assert [body for _, body in sink.stored()["orders@broker-b"]] == ["by name", "by number"]
    assert [body for _, body in sink.stored()["orders@broker-a"]] == ["another"]
    assert sink.bodies("bills") == ["a bill"]
    with pytest.raises(NotFound, match="Drop the column") as raised:
        sink.stage(1, _placed(("orders", "nowhere@x", None, "lost", None)))
    assert raised.value.field == "partition"


def test_retry_04_rows_with_a_time_wait_in_the_delay_partition_of_their_target_once() -> None:
    clock = SetClock()
    sink = Sink(topic=None, schema=_PLACED, clock=clock)
    sink.put_topic("orders", partitions=1)
    messages = sink.stage(
        0,
        _placed(
            ("orders", None, "k", "now", None), ("orders", None, "k", "later", 60_000), ("orders", None, "k", "0", 0)
        ),
    )
    arm("sink.after_append=raise@2")
    try:
        with pytest.raises(FailpointHit):
            sink.commit(0, messages)
    finally:
        arm("")
    sink.restart()
    sink.commit(0, messages)
    assert sink.bodies() == ["0", "now"]
    log = sink.place.delay_log("orders@broker-a")
    log.refresh()
    [row] = log.read(0, max_messages=10, max_bytes=10_000).rows.to_pylist()
    topic, _ = sink.place.routed("orders")
    assert row["body"] == b"later" and row["key"] == "k"
    assert row["origin"] == {"topic": f"{topic.id}/orders", "partition": "orders@broker-a", "offset": -1}
    assert row["deliver_time"].timestamp() * 1000 == clock.wall_us() // 1000 + 60_000


# What batch writes leave --------------------------------------------------------------------------------------


def test_spark_03_what_batch_writes_left_is_swept_after_a_month_and_a_query_keeps_its_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("write-1", "key-a", "query-1"):
        Manifests(store, name).finish(0, {})
    now_ms = max(entry.modified_ms for entry in store.entries("jobs/sink/query-1"))
    sweep_writes(store, now_ms + 29 * 24 * 3600 * 1000)
    assert store.folders("jobs/sink") == ["key-a", "query-1", "write-1"]
    sweep_writes(store, now_ms + 31 * 24 * 3600 * 1000)
    assert store.folders("jobs/sink") == ["query-1"]


def test_spark_16_of_several_topics_only_the_one_that_was_made_again_gets_its_rows_again() -> None:
    sink = Sink(topic=None, schema=_PLACED)
    for topic in ("kept", "anew"):
        sink.put_topic(topic, partitions=1)
    rows = _placed(*((topic, None, None, f"{topic}{n}", None) for topic in ("kept", "anew") for n in range(3)))
    sink.write(0, rows)
    sink.place.meta.submit(lambda state: decide_delete_topic(state, "anew"))
    sink.put_topic("anew", partitions=1)
    for _ in range(2):
        sink.write(0, rows)
        assert sink.bodies("kept") == ["kept0", "kept1", "kept2"]
        assert sink.bodies("anew") == ["anew0", "anew1", "anew2"]
    with pytest.raises(Conflict, match="for topic anew"):
        sink.write(0, rows.slice(0, 5))
