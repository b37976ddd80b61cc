"""The tasks of `verify`, called directly: what they find, skip and survive (SPEC MODEL-3, RELY-4)."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from deltamq.jobs.upkeep.verify import VerifyItem, verify_partitions
from deltamq.tables.paths import PartitionRef, Space
from tests.unit.jobs.warehouses import Filled

A, B = "orders@broker-a", "orders@broker-b"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _verdicts(filled: Filled, *names: str) -> list[dict[str, object]]:
    refs = tuple(PartitionRef(Space.TOPICS, "orders", name) for name in names)
    return list(pa.Table.from_batches(verify_partitions(VerifyItem(filled.uri, refs, NOW))).to_pylist())


def test_rely_4_one_damaged_partition_spoils_no_other_and_one_that_is_gone_is_left_out(filled: Filled) -> None:
    for name in (A, B):
        for _ in range(3):
            filled.append("orders", name, *[b"body"] * 20)
    gone = sorted(Path(filled.uri, "topics/orders", A).glob("*.parquet"))[1]
    gone.unlink()
    damaged, sound = _verdicts(filled, A, "orders@deleted", B)
    assert (damaged["partition"], damaged["ok"], damaged["messages"]) == (A, False, None)
    assert gone.name in str(damaged["finding"])
    assert (sound["partition"], sound["ok"], sound["messages"], sound["distinct_offsets"]) == (B, True, 60, 60)


def test_rely_4_a_partition_that_lost_its_log_is_not_called_sound(filled: Filled) -> None:
    for name in (A, B):
        filled.append("orders", name, b"body")
    shutil.rmtree(Path(filled.uri, "topics/orders", A, "_delta_log"))
    lost, sound = _verdicts(filled, A, B)
    assert (lost["partition"], lost["ok"]) == (A, False)
    assert "no log" in str(lost["finding"])
    assert sound["ok"]


def test_rely_4_an_altered_byte_of_any_column_is_found(filled: Filled) -> None:
    filled.append("orders", A, *[f"body-{i}".encode() for i in range(40)])
    (victim,) = Path(filled.uri, "topics/orders", A).glob("*.parquet")
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 3] ^= 1
    victim.write_bytes(raw)
    (found,) = _verdicts(filled, A)
    assert not found["ok"] and "checksum" in str(found["finding"])
