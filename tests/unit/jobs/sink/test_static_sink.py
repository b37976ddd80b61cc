"""The sink on static topics: rows name queues, and a remapping between two tries stores each row once (STATIC-21)."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from deltamq.jobs.sink.routing import token_of
from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.meta.static_topics import RemapMode
from deltamq.mq.partitioners import logical_partition
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.paging import pages
from deltamq.tables.queue.placement import Placement
from tests.rows import all_bodies
from tests.set_clock import SetClock
from tests.static_tables import StaticTables
from tests.unit.jobs.sink.sinks import Sink, keyed

MODES: tuple[RemapMode, ...] = ("strict", "available")
NAMED = T.StructType(
    [
        T.StructField("partition", T.StringType()),
        T.StructField("key", T.StringType()),
        T.StructField("value", T.StringType()),
        T.StructField("delay_ms", T.LongType()),
    ]
)


def _named(*rows: tuple[str | None, str | None, str, int | None]) -> pa.RecordBatch:
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64())
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=NAMED.names)


def _names(low: int, high: int) -> list[str]:
    return [f"m{number:04d}" for number in range(low, high)]


def _static(sink: Sink, total_queues: int = 4) -> StaticTables:
    orders = StaticTables(sink.opened().warehouse, total_queues)
    sink.restart()
    return orders


def _by_queue(orders: StaticTables) -> dict[int, list[str]]:
    """Return the bodies of each queue, in the order of its logical offsets."""
    found = {}
    for index, queue in sorted(orders.queues.items()):
        bodies = []
        for segment in queue.segments:
            log = orders.log(segment.partition)
            log.refresh()
            stored = [body.decode() for body in all_bodies(log)]
            assert not segment.is_sealed or len(stored) == segment.end_offset, "nothing lies behind a seal"
            bodies += stored
        found[index] = bodies
    return found


def _queue_of_key(orders: StaticTables, key: str) -> int:
    partition = orders.topic.route.partitions[orders.topic.route.table[logical_partition(key)]]
    return {leader: index for index, leader in orders.topic.leaders().items()}[partition]


def test_static_2_rows_name_logical_queues_by_name_or_number() -> None:
    sink = Sink(schema=NAMED)
    orders = _static(sink)
    sink.write(
        0, _named((queue_name(3), "k", "a", None), ("1", None, "b", None), (None, "k", "c", None), ("1", "k", "d", 0))
    )
    home = _queue_of_key(orders, "k")
    assert _by_queue(orders) == {
        index: {3: ["a"], 1: ["b", "d"]}.get(index, []) + (["c"] if index == home else []) for index in range(4)
    }
    with pytest.raises(Unprocessable, match=queue_name(0)) as caught:
        sink.stage(1, _named(("orders@A", None, "x", None)))
    assert (caught.value.code, caught.value.field) == ("physical_partition", "partition")
    for name in ("4", queue_name(4), "elsewhere@A"):
        with pytest.raises(NotFound):
            sink.stage(1, _named((name, None, "x", None)))


def test_static_22_rows_of_a_queue_that_cannot_be_had_go_nowhere_else() -> None:
    sink = Sink(schema=NAMED)
    orders = _static(sink, 2)
    holder = orders.queues[0].leader.broker
    lost = MappingRemoved(topic_id=orders.topic.id, holder=holder)
    orders.meta.submit_any(lambda _: (lost,))
    with pytest.raises(Unavailable) as caught:
        sink.stage(0, _named(("0", None, "x", None)))
    assert caught.value.code == "queue_unserved"
    with pytest.raises(Unavailable, match="is not available"):
        sink.stage(0, _named(*((None, f"k{number}", "x", None) for number in range(40))))
    sink.write(0, _named(("1", None, "there", None), (None, None, "anywhere", None)))
    assert sorted(chain(*_by_queue(orders).values())) == ["anywhere", "there"]


def test_rely_10_rows_without_a_key_go_to_queues_whose_partitions_have_not_stopped() -> None:
    sink = Sink(schema=NAMED)
    orders = _static(sink, 2)
    sink.write(0, _named(("0", None, "first", None), ("1", None, "first", None)))
    folder = orders.log(orders.queues[0].leader.partition).ref.folder
    sink.store.delete_tree(f"{folder}/_delta_log")
    for batch in range(1, 9):
        sink.restart()
        sink.write(batch, _named((None, None, f"m{batch}", None)))
    log = sink.place.log(orders.topic, orders.queues[1].leader.partition)
    stored = [body.decode() for body in all_bodies(log)]
    assert stored == ["first", *(f"m{batch}" for batch in range(1, 9))]


def test_static_21_tokens_tell_placements_apart_that_differ_by_a_remapping() -> None:
    orders = _static(Sink(), 1)
    tokens = []

    def note() -> None:
        orders.meta.refresh()
        tokens.append(token_of(orders.topic, Placement.of(orders.topic, orders.meta.meta)))

    note()
    for brokers in (["B"], ["A"]):
        orders.remap(brokers)
        orders.drop([orders.queues[0].segments[0].partition])
        assert len(orders.topic.route.partitions) == 1
        note()
    assert len(set(tokens)) == 3


@pytest.mark.promise("PIPE-8")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "step", ["", "sink.after_manifest", "sink.after_append=raise@1", "sink.after_append=raise@2", "sink.before_done"]
)
def test_static_21_a_remapping_between_two_tries_stores_each_row_once_and_in_order(
    mode: RemapMode, step: str, *, sealed: bool
) -> None:
    sink = Sink()
    orders = _static(sink, 2)
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
    orders.remap(["B"], mode, [0], seal=sealed)
    orders.remap(["A"], mode, [1], seal=sealed) if sealed else None
    sink.commit(1, messages)
    sink.write(2, keyed(_names(300, 400), keys=40))
    orders.seal()
    found = _by_queue(orders)
    assert sorted(chain(*found.values())) == _names(0, 400)
    for bodies in found.values():
        by_key: dict[int, list[str]] = {}
        for body in bodies:
            by_key.setdefault(sum(body.encode()) % 40, []).append(body)
        assert all(those == sorted(those) for those in by_key.values())


@pytest.mark.parametrize("mode", MODES)
def test_static_21_named_rows_follow_their_queue_when_a_fence_refuses_them(mode: RemapMode) -> None:
    sink = Sink(schema=NAMED)
    orders = _static(sink, 2)
    sink.write(0, _named(("0", None, "a", None)))
    messages = sink.stage(1, _named(("0", None, "b", None), ("0", "k", "c", None)))
    orders.remap(["B"], mode, [0])
    orders.remap(["A"], mode, [0])
    # the sink does not know of the remappings: its append is refused
    sink.commit(1, messages)
    assert _by_queue(orders) == {0: ["a", "b", "c"], 1: []}
    assert orders.log(orders.queues[0].leader.partition).end_offset == 2


def test_static_21_named_rows_find_their_queue_though_their_segment_is_dropped() -> None:
    sink = Sink(schema=NAMED)
    orders = _static(sink, 2)
    messages = sink.stage(0, _named(("1", None, "b", None)))
    orders.remap(["A"], "strict", [1])
    orders.drop(["orders#1@B"])
    sink.commit(0, messages)
    assert _by_queue(orders) == {0: [], 1: ["b"]}


def test_static_9_an_undecided_leader_gets_rows_only_behind_the_seal() -> None:
    sink = Sink()
    orders = _static(sink, 1)
    sink.write(0, keyed(_names(0, 10)))
    orders.remap(["B"], "available", seal=False)
    sink.write(1, keyed(_names(10, 20)))
    topic = orders.topic
    assert not orders.meta.meta.moved_keys(topic.id).waiting, "the sink has sealed"
    assert [segment.logic_offset for segment in orders.queues[0].segments] == [0, 10_000]
    assert Counter(_by_queue(orders)[0]) == Counter(_names(0, 20))


def test_static_20_delayed_rows_wait_once_though_their_queue_moves_between_two_tries() -> None:
    sink = Sink(schema=NAMED, clock=SetClock())
    orders = _static(sink, 2)
    messages = sink.stage(0, _named(("0", None, "later", 60_000), ("0", None, "now", None)))
    arm("sink.after_append=raise@2")
    try:
        with pytest.raises(FailpointHit):
            sink.commit(0, messages)
    finally:
        arm("")
    sink.restart()
    orders.remap(["B"], "strict", [0])
    sink.commit(0, messages)
    assert _by_queue(orders) == {0: ["now"], 1: []}
    waiting = []
    for broker in ("A", "B"):
        log = sink.place.delay_log(f"x@{broker}")
        log.refresh()
        waiting += [
            (row["body"].decode(), row["origin"]["partition"])
            for page in pages(log, 0)
            for row in page.rows.to_pylist()
        ]
    assert waiting == [("later", queue_name(0))], "it waits for its queue, which may move again"
