"""Streams over static topics: positions are logical and go on behind remappings (SPEC STATIC-13, 15, 16, SPARK-2)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltamq.jobs.stream.planner import StreamDataLost
from deltamq.jobs.stream.progress import behind
from deltamq.mq.meta.access import OPEN, Access
from deltamq.mq.meta.access_changes import decide_broker_access
from deltamq.mq.meta.static_topics import RemapMode
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.recovery import recover_progress
from tests.static_tables import TOPIC, StaticTables
from tests.unit.jobs.stream.driven import Stream

Q0, Q1 = queue_name(0), queue_name(1)
MODES: tuple[RemapMode, ...] = ("strict", "available")


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    opened = Warehouse.open(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def orders(warehouse: Warehouse) -> StaticTables:
    """Queue 0 has five messages on A, queue 1 two on B."""
    made = StaticTables(warehouse)
    made.send(0, 5)
    made.send(1, 2)
    return made


def _stream(orders: StaticTables, checkpoint: dict[str, object] | None = None, **options: str) -> Stream:
    return Stream(orders.warehouse.store.uri(""), checkpoint, **options)


def _at(stream: Stream) -> dict[str, int]:
    found: dict[str, int] = stream.at["topics"][TOPIC]["partitions"]
    return found


def _behind(stream: Stream) -> int:
    source = {"endOffset": stream.at, "latestOffset": stream.reader.reportLatestOffset()}
    return behind({"sources": [source]})[0].total


@pytest.mark.parametrize("mode", MODES)
def test_static_15_a_stream_goes_on_behind_a_remapping(orders: StaticTables, mode: RemapMode) -> None:
    stream = _stream(orders)
    assert stream.batch() == [*((Q0, at) for at in range(5)), *((Q1, at) for at in range(2))]
    orders.remap(["B"], mode, [0], seal=False)
    orders.send(0, 3)
    before = stream.batch()
    orders.seal()
    first = 5 if mode == "strict" else 10_000
    after = [row for _ in range(3) for row in stream.batch()]
    # strict: messages went to the old leader until the seal
    assert before == ([(Q0, at) for at in (5, 6, 7)] if mode == "strict" else [])
    assert after == ([] if mode == "strict" else [(Q0, first + at) for at in range(3)])
    assert orders.send(0, 1) == [8 if mode == "strict" else 10_003]
    assert stream.batch() == [(Q0, 8 if mode == "strict" else 10_003)]


@pytest.mark.parametrize("mode", MODES)
def test_static_16_a_checkpoint_of_before_a_remapping_goes_on(orders: StaticTables, mode: RemapMode) -> None:
    stream = _stream(orders, maxOffsetsPerTrigger="4")
    read = stream.batch()
    orders.remap(["B"], mode, [0])
    orders.send(0, 3)
    orders.remap(["A"], mode, [0])
    orders.send(0, 2)
    again = _stream(orders, stream.at)
    read += again.batch()
    assert [at for name, at in sorted(read) if name == Q0] == sorted(
        segment.logical(at)
        for segment in orders.queues[0].segments
        for at in range(orders.log(segment.partition).end_offset)
    )
    assert len(set(read)) == len(read) == 12


def test_static_15_limits_count_messages_and_not_holes(orders: StaticTables) -> None:
    orders.remap(["B"], "available", [0])
    orders.send(0, 10)
    stream = _stream(orders, maxOffsetsPerTrigger="4")
    sizes = []
    while rows := stream.batch():
        sizes.append(len(rows))
    assert sum(sizes) == 17
    assert all(3 <= size <= 6 for size in sizes[:-1]), "about four each, at least one of each queue"
    assert _at(stream) == {Q0: 10_010, Q1: 2}


def test_static_15_the_least_number_of_messages_is_no_number_of_offsets(orders: StaticTables) -> None:
    stream = _stream(orders, minOffsetsPerTrigger="4")
    assert len(stream.batch()) == 7
    orders.remap(["B"], "available", [0])
    orders.send(0, 3)
    assert stream.batch() == [], "three messages, though ten thousand offsets"
    assert stream.batch() == []
    orders.send(0, 1)
    assert stream.batch() == [(Q0, 10_000 + at) for at in range(4)]


def test_static_13_a_position_before_a_hole_moves_on_at_once(orders: StaticTables) -> None:
    stream = _stream(orders)
    stream.batch()
    orders.remap(["B"], "available", [0])
    assert stream.batch() == []
    assert _at(stream) == {Q0: 10_000, Q1: 2}
    at = stream.at
    assert stream.batch() == [] and stream.at == at, "an idle query gets its position back unchanged"
    orders.log("orders@A").delete_below(5)
    orders.drop(["orders@A"])
    orders.send(0, 1)
    assert stream.batch() == [(Q0, 10_000)], "nothing is lost with the dropped segment"


def test_static_15_the_lag_of_a_query_counts_messages(orders: StaticTables) -> None:
    stream = _stream(orders)
    stream.batch()
    orders.send(0, 2)
    orders.remap(["B"], "available", [0])
    orders.send(0, 3)
    stream.reader.latestOffset(stream.at, ReadAllAvailable())
    assert _behind(stream) == 5
    stream.batch()
    assert _behind(stream) == 0


def test_static_17_a_stream_notices_messages_that_went_with_a_dropped_segment(orders: StaticTables) -> None:
    stream = _stream(orders, maxOffsetsPerTrigger="4")
    stream.batch()
    read = _at(stream)[Q0]
    orders.remap(["B"], "strict", [0])
    orders.send(0, 2)
    orders.log("orders@A").delete_below(5)
    orders.drop(["orders@A"])
    with pytest.raises(StreamDataLost, match=rf"removed offsets \[{read}, 5\)"):
        _stream(orders, stream.at).batch()
    assert _stream(orders, stream.at, failOnDataLoss="false").batch()[:2] == [(Q0, 5), (Q0, 6)]


def test_static_15_available_now_ends_though_a_remapping_comes_in_between(orders: StaticTables) -> None:
    stream = _stream(orders, maxOffsetsPerTrigger="4")
    stream.reader.prepareForTriggerAvailableNow()
    read = stream.batch()
    orders.remap(["B"], "available", [0])
    orders.send(0, 3)
    for _ in range(5):
        read += stream.batch()
    assert sorted(read) == [*((Q0, at) for at in range(5)), *((Q1, at) for at in range(2))]
    at = stream.at
    assert stream.batch() == [] and stream.at == at


def test_static_2_new_queues_are_read_from_their_start(orders: StaticTables) -> None:
    stream = _stream(orders)
    stream.batch()
    orders.put(3)
    orders.sent[2] = []
    orders.send(2, 2)
    assert stream.batch() == [(queue_name(2), 0), (queue_name(2), 1)]


# The group -----------------------------------------------------------------------------------------------------------


def _lanes(orders: StaticTables, group: str) -> dict[str, int]:
    topic = orders.topic
    found = recover_progress(orders.warehouse, "deltamq", ["A", "B"])
    lanes = {name: found.get(LaneKey(topic.id, group, False, name)) for name in topic.route.partitions}
    return {name: one.offset for name, one in lanes.items() if one is not None}


def test_static_16_progress_is_committed_to_the_lanes_of_the_segments(orders: StaticTables) -> None:
    stream = _stream(orders, group="dashboard")
    stream.batch()
    stream.batch()
    assert _lanes(orders, "dashboard") == {"orders@A": 5, "orders#1@B": 2}
    orders.send(0, 1)
    orders.remap(["B"], "available", [0])
    orders.send(0, 3)
    again = _stream(orders, stream.at, group="dashboard", maxOffsetsPerTrigger="3")
    again.batch()
    again.batch()
    assert _lanes(orders, "dashboard") == {"orders@A": 6, "orders#1@B": 2, "orders#2@B": 2}
    again.batch()
    assert _lanes(orders, "dashboard") == {"orders@A": 6, "orders#1@B": 2, "orders#2@B": 3}


# All of it together --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 24))])
def test_static_13_whatever_happens_between_batches_each_message_is_read_once(warehouse: Warehouse, seed: int) -> None:
    chance = random.Random(seed)
    orders = StaticTables(warehouse, total_queues=2, brokers=("A", "B", "C"))
    stream = _stream(orders, maxOffsetsPerTrigger=str(chance.randint(1, 5)))
    read: list[tuple[str, int]] = []
    for _ in range(40):
        step = chance.randrange(6)
        if step < 2:
            orders.send(chance.randrange(2), chance.randint(1, 4))
        elif step == 2 and not orders.meta.meta.moved_keys(orders.topic.id).waiting:
            orders.remap([chance.choice("ABC")], chance.choice(MODES), [chance.randrange(2)], seal=False)
        elif step == 3:
            orders.seal()
        elif step == 4:
            stream = _stream(orders, stream.at, maxOffsetsPerTrigger=str(chance.randint(1, 5)))
        else:
            read += stream.batch()
    orders.seal()
    read += _stream(orders, stream.at).batch()
    wanted = [
        (queue.name, segment.logical(at))
        for queue in orders.queues.values()
        for segment in queue.segments
        for at in range(orders.log(segment.partition).end_offset)
    ]
    assert sorted(read) == sorted(wanted), "each message once"
    assert len(wanted) == sum(map(len, orders.sent.values()))


def test_route_09_a_stream_reads_up_to_a_closed_segment_and_goes_on_when_it_is_open(orders: StaticTables) -> None:
    orders.remap(["B"], "strict", [0])
    orders.send(0, 3)
    orders.meta.submit_any(lambda meta: decide_broker_access(meta, "B", Access(readable=False), orders.now_ms))
    stream = _stream(orders)
    assert stream.batch() == [(Q0, at) for at in range(5)], "queue 1 and the newest segment of queue 0 are at B"
    assert stream.batch() == []
    orders.remap(["A"], "strict", [0])
    orders.send(0, 1)
    assert stream.batch() == [], "what lies behind a closed segment comes after it"
    orders.meta.submit_any(lambda meta: decide_broker_access(meta, "B", OPEN, orders.now_ms))
    assert stream.batch() == [*((Q0, at) for at in (5, 6, 7, 8)), (Q1, 0), (Q1, 1)]


def test_route_09_a_stream_that_reads_all_there_is_ends_before_what_is_closed(orders: StaticTables) -> None:
    orders.meta.submit_any(lambda meta: decide_broker_access(meta, "A", Access(readable=False), orders.now_ms))
    stream = _stream(orders)
    assert stream.all_of_it() == [(Q1, 0), (Q1, 1)]
    assert stream.all_of_it() == []
