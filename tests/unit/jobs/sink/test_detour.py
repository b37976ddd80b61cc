"""The way of rows around partitions that have stopped: what moves, what waits, and that each row is stored once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from deltamq.mq.errors import Corrupt
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.store.local import LocalStore
from tests.unit.jobs.sink.sinks import KEYED, Sink

GOOD, BAD = "orders@broker-a", "orders@broker-b"
PLACED = T.StructType([*KEYED.fields, T.StructField("partition", T.StringType())])


def _free(low: int, high: int) -> pa.RecordBatch:
    """Rows that may go to any partition."""
    bodies = _bodies(low, high)
    return pa.RecordBatch.from_pydict(
        {"key": pa.nulls(len(bodies), pa.string()), "value": [b.encode() for b in bodies]}
    )


def _bodies(low: int, high: int) -> list[str]:
    return [f"m{number:04d}" for number in range(low, high)]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    """A sink on a disk, with a message in each of two partitions."""
    made = Sink(LocalStore(tmp_path))
    made.put_topic(partitions=2)
    topic = made.place.topic("orders")
    for number, partition in enumerate((GOOD, BAD)):
        Sink(made.store, name=f"first-{number}", schema=PLACED).write(
            0, pa.RecordBatch.from_pydict({"key": ["k"], "value": [b"first"], "partition": [partition]})
        )
    assert topic.route.partitions == (GOOD, BAD)
    return made


def _log(sink: Sink, partition: str = BAD) -> Path:
    return Path(sink.store.uri(f"topics/orders/{partition}/_delta_log"))


def _damage(sink: Sink) -> Callable[[], None]:
    """Take a partition's log away; the result puts it back."""
    log = _log(sink)
    aside = log.parents[3] / "aside"
    shutil.move(log, aside)
    return lambda: shutil.move(aside, log) and None


def test_rely_10_rows_without_a_key_that_spark_writes_go_to_other_partitions(sink: Sink) -> None:
    repair = _damage(sink)
    for batch in range(8):
        sink.write(batch, _free(batch * 10, batch * 10 + 5), _free(batch * 10 + 5, batch * 10 + 10))
    sink.write(7, _free(70, 80))  # a repeat
    big = Sink(sink.store, name="big")
    big.write(0, _free(1_000, 9_000))
    repair()
    found = {partition: [body for _, body in rows if body != "first"] for partition, rows in sink.stored().items()}
    assert (sorted(found[GOOD]), found[BAD]) == ([*_bodies(0, 80), *_bodies(1_000, 9_000)], [])


def test_rely_10_rows_that_belong_to_a_stopped_partition_wait_for_its_repair(tmp_path: Path, sink: Sink) -> None:
    mixed = Sink(sink.store, schema=PLACED)
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["k1", "k2", "k3", None, None, None, "k4"], pa.string()),
            "value": [body.encode() for body in _bodies(0, 7)],
            "partition": pa.array([None, None, None, None, None, BAD, BAD], pa.string()),
        }
    )
    repair = _damage(sink)
    for _ in range(2):
        mixed.restart()
        with pytest.raises(Corrupt, match=f"topics/orders/{BAD} has data .* restore its _delta_log"):
            mixed.write(0, rows)
    repair()
    mixed.restart()
    mixed.write(0, rows)
    stored = mixed.stored()
    assert sorted(mixed.bodies()) == sorted([*_bodies(0, 7), "first", "first"])
    assert {(None, "m0003"), (None, "m0004")} <= set(stored[GOOD]) and (None, "m0005") in stored[BAD]
    assert ("k4", "m0006") in stored[BAD]


def test_rely_10_a_batch_with_a_manifest_stays_where_it_is_and_waits(sink: Sink) -> None:
    arm("sink.after_manifest=raise")
    try:
        for batch in range(8):
            name = Sink(sink.store, name=f"query-{batch}")
            with pytest.raises(FailpointHit):
                name.write(0, _free(batch * 10, batch * 10 + 10))
    finally:
        arm("")
    repair = _damage(sink)

    def again() -> int:
        refused = 0
        for batch in range(8):
            try:
                Sink(sink.store, name=f"query-{batch}").write(0, _free(batch * 10, batch * 10 + 10))
            except Corrupt:
                refused += 1
        return refused

    assert again() == 8, "the stopped partition may hold rows of each"
    repair()
    assert again() == 0
    stored = sink.stored()
    assert sorted(sink.bodies()) == sorted([*_bodies(0, 80), "first", "first"])
    assert all(len(rows) > 1 for rows in stored.values())


def test_rely_10_a_log_that_vanishes_under_a_driver_is_named_and_then_passed_over(sink: Sink) -> None:
    number = 0
    while len(sink.stored()[BAD]) == 1:
        Sink.write(sink, number, _free(number, number + 1))
        number += 1
    _damage(sink)
    errors = []
    for batch in range(number, number + 20):
        try:
            sink.write(batch, _free(batch, batch + 1))
        except Corrupt as error:
            errors.append(error.detail)
    (told,) = errors
    assert f"topics/orders/{BAD} has data" in told and "restore its _delta_log" in told


def test_rely_10_with_all_partitions_stopped_the_write_says_so(sink: Sink) -> None:
    for partition in (GOOD, BAD):
        shutil.rmtree(_log(sink, partition))
    with pytest.raises(Corrupt, match="restore its _delta_log"):
        sink.write(0, _free(0, 10))
