"""The job `verify` finds what is wrong with a partition, and says which (SPEC RELY-4)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import Row, SparkSession

from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.jobs.spark.datasource import session_warehouse
from deltamq.jobs.upkeep import verify
from deltamq.jobs.upkeep.verify import tally
from deltamq.mq.errors import Corrupt
from deltamq.tables.config import Config, load
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import dead_ref, retry_ref, revive_ref
from tests.rows import batch
from tests.unit.jobs.warehouses import Filled

pytestmark = pytest.mark.spark

A, B = "orders@broker-a", "orders@broker-b"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _conf(filled: Filled) -> Config:
    return load(overrides={"warehouse.uri": filled.uri}, environ={})


def _results(spark: SparkSession, filled: Filled) -> dict[str, Row]:
    table = spark.read.format("delta").load(f"{filled.uri}/{verify.RESULTS}")
    return {row["partition"]: row for row in table.where("reader = 'tables'").collect()}


@pytest.fixture
def orders(filled: Filled) -> Filled:
    for _ in range(3):
        filled.append("orders", A, *[b"a"] * 50)
    filled.append("orders", B, b"b")
    return filled


def _by_spark(spark: SparkSession, filled: Filled) -> dict[str, Row]:
    table = spark.read.format("delta").load(f"{filled.uri}/{verify.RESULTS}")
    return {row["partition"]: row for row in table.where("reader = 'spark'").collect()}


@pytest.mark.long
def test_sound_partitions_are_said_to_be_sound_and_a_second_run_replaces_the_results(
    spark: SparkSession, orders: Filled
) -> None:
    facts = verify.run(spark, _conf(orders), NOW)
    assert (facts["partitions"], facts["messages"]) == (2, 151)
    found = _results(spark, orders)
    assert {name: (r["ok"], r["min_offset"], r["end_offset"], r["distinct_offsets"]) for name, r in found.items()} == {
        A: (True, 0, 150, 150),
        B: (True, 0, 1, 1),
    }
    assert found[A]["verified_at"].replace(tzinfo=UTC) == NOW
    counted = {name: (r["ok"], r["min_offset"], r["messages"]) for name, r in _by_spark(spark, orders).items()}
    assert counted == {A: (True, 0, 150), B: (True, 0, 1)}, "Spark's own reader counted both, too"
    orders.append("orders", B, b"more")
    verify.run(spark, _conf(orders), NOW)
    assert {name: r["messages"] for name, r in _results(spark, orders).items()} == {A: 150, B: 2}


@pytest.mark.long
def test_each_run_lets_spark_count_other_partitions_until_all_had_their_turn(
    spark: SparkSession, orders: Filled
) -> None:
    conf = load(overrides={"warehouse.uri": orders.uri, "jobs.verify_sample": 1}, environ={})
    counted = []
    for hour in (1, 2, 3):
        assert verify.run(spark, conf, NOW.replace(hour=hour))["sample"] == 1
        counted += _by_spark(spark, orders)
    assert counted[:2] != counted[1:] and set(counted) == {A, B}


def test_an_altered_byte_that_spark_reads_without_a_word_is_found(spark: SparkSession, orders: Filled) -> None:
    """It lies in another column than the one that Spark counts: our reader checks every byte that it passes."""
    victim = sorted(Path(orders.uri, "topics/orders", A).glob("*.parquet"))[1]
    raw = bytearray(victim.read_bytes())
    raw[raw.index(b"\x01\x00\x00\x00a") + 4] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(Corrupt, match="1 of 2 partitions are not sound"):
        verify.run(spark, _conf(orders), NOW)
    assert "checksum" in _results(spark, orders)[A]["finding"]


def test_an_empty_warehouse_is_sound(spark: SparkSession, filled: Filled) -> None:
    assert verify.run(spark, _conf(filled), NOW)["partitions"] == 0


@pytest.mark.long
def test_a_missing_file_is_found_and_does_not_hide_the_other_partitions(spark: SparkSession, orders: Filled) -> None:
    gone = sorted(Path(orders.uri, "topics/orders", A).glob("*.parquet"))[1]
    gone.unlink()
    with pytest.raises(Corrupt, match="1 of 2 partitions are not sound") as caught:
        verify.run(spark, _conf(orders), NOW)
    assert "orders@broker-a" in caught.value.detail
    found = _results(spark, orders)
    assert (found[A]["ok"], found[B]["ok"]) == (False, True)
    assert gone.name in found[A]["finding"]


@pytest.mark.long
def test_a_log_that_contradicts_itself_is_found(spark: SparkSession, orders: Filled) -> None:
    commit = sorted(Path(orders.uri, "topics/orders", A, "_delta_log").glob("*.json"))[-1]
    commit.write_bytes(commit.read_bytes()[:-40])
    with pytest.raises(Corrupt, match="not sound"):
        verify.run(spark, _conf(orders), NOW)
    assert [name for name, row in _results(spark, orders).items() if not row["ok"]] == [A]


@pytest.mark.long
def test_every_space_is_verified_and_what_retention_removed_is_no_damage(spark: SparkSession, filled: Filled) -> None:
    refs = [
        PartitionRef(Space.TOPICS, "orders", A),
        retry_ref("billing", 1, "orders", 0, "broker-a"),
        dead_ref("billing", 1, "broker-a"),
        revive_ref("deltamq", 0, "broker-a"),
    ]
    for removed, ref in enumerate(refs):
        log = filled.warehouse.create(ref)
        for body in (b"a", b"b", b"c"):
            log.append([batch(body)])
        log.delete_below(removed)
    facts = verify.run(spark, _conf(filled), NOW)
    assert (facts["partitions"], facts["messages"]) == (4, 3 + 2 + 1 + 0)
    table = spark.read.format("delta").load(f"{filled.uri}/{verify.RESULTS}")
    found = {
        (r["reader"], r["space"], r["min_offset"], r["end_offset"], r["messages"], r["ok"]) for r in table.collect()
    }
    assert found == {
        (reader, ref.space.value, at, 3, 3 - at, True) for at, ref in enumerate(refs) for reader in ("tables", "spark")
    }


DAMAGE = {
    "a hole": ([0, 1, 3], (3, 3, 0, 3)),
    "an offset twice": ([0, 1, 1, 2], (4, 3, 0, 2)),
    "far apart": ([0, 63, 64, 1_000_000], (4, 4, 0, 1_000_000)),
    "dense": (list(range(1_000)), (1_000, 1_000, 0, 999)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_distinct_offsets_are_counted_exactly(name: str, spark: SparkSession) -> None:
    offsets, expected = DAMAGE[name]
    rows = spark.createDataFrame([("f", offset) for offset in offsets], "folder STRING, offset BIGINT")
    (found,) = tally(rows).collect()
    assert (found["messages"], found["distinct"], found["first"], found["last"]) == expected


@pytest.mark.long
def test_the_command_runs_it_and_the_list_shows_it(spark: SparkSession, orders: Filled) -> None:
    # `spark` is active, so the command uses it and its warehouse must be put back
    default = session_warehouse(spark) or ""
    try:
        ran = CliRunner().invoke(jobs_command, ["run", "verify", "--once", "--warehouse", orders.uri])
        assert (ran.exit_code, ran.output.startswith("job=verify ok")) == (0, True), ran.output
        listed = CliRunner().invoke(jobs_command, ["list", "--json", "--warehouse", orders.uri])
        (found,) = [one for one in json.loads(listed.output) if one["name"] == "verify"]
        assert found["last_run"]["ok"] is True
        assert found["last_run"]["facts"]["messages"] == 151
    finally:
        from deltamq.jobs.spark.datasource import register

        register(spark, warehouse=default)
        # the command's sessions are of this application, and Python takes the last one made for the active one
        SparkSession._activeSession = spark
