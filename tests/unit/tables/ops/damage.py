"""Names and damage of a partition's files, for verification and repairs."""

from __future__ import annotations

from collections.abc import Callable

from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Finding, Gravity
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.store.store import MemoryStore
from tests.rows import REF

__all__ = ["LOG", "OTHER", "OpenWarehouse", "checkpoint_key", "commit_key", "flip", "own_checkpoint_key", "wrong"]

LOG = f"{REF.folder}/_delta_log"
OTHER = PartitionRef(Space.RETRY, "group", "orders@broker-b")
OpenWarehouse = Callable[..., Warehouse]


def commit_key(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_key(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def own_checkpoint_key(version: int) -> str:
    return f"{LOG}/.checkpoint-{version:020d}"


def flip(files: MemoryStore, key: str, at: int = 100) -> None:
    raw = bytearray(files.read(key).to_pybytes())
    raw[at] ^= 8
    files.replace(key, bytes(raw))


def wrong(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.gravity is not Gravity.NOTE]
