"""Which records the merge job has in which state table: its batches, and how far they reach (the watermark).

    jobs/merge/batches/pop_checkpoints/00000000000000000007.json     {"logs": [{..., "start": 120, "stop": 480}, ...]}
    state/pop_checkpoints: txn{appId: "mq.merge.pop_checkpoints", version: 7}

The plan of a batch is stored, once and for all, before its MERGE; the number of the batch is stored by the commit of
the MERGE itself. So a batch is merged whole or not at all, a batch that was planned and not merged is merged by whoever
comes next, and the table's transaction together with the plan of that number says how far every log is merged. Whoever
restores or removes a state table does the same with its plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mq.errors import Corrupt, Unavailable
from tables.paths import PartitionRef, Space
from tables.state import CONSUMER_OFFSETS, LOST_MESSAGES, POP_CHECKPOINTS, state_transactions
from tables.store import FileMissing, NotDurable, Store

__all__ = ["MERGED_TABLES", "Plan", "Span", "app_id", "forget_plans", "merged_to", "put_plan", "read_plan", "watermark"]

#: The state tables that are merged from logs.
MERGED_TABLES: Final = (CONSUMER_OFFSETS, POP_CHECKPOINTS, LOST_MESSAGES)

#: A reader that has seen the table may come for its plan so many batches later.
_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `[start, stop)` of one log."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One batch: for every log that the table is merged from, what is in the batch; perhaps nothing."""

    batch: int
    logs: Mapping[PartitionRef, Span]

    @property
    def records(self) -> int:
        """How many records the batch has."""
        return sum(span.stop - span.start for span in self.logs.values())

    @property
    def stops(self) -> dict[PartitionRef, int]:
        """For each log, the first offset that is in no batch so far."""
        return {ref: span.stop for ref, span in self.logs.items()}


class _StoredSpan(msgspec.Struct):
    topic: str
    partition: str
    start: int
    stop: int
    generation: int = 0


class _StoredPlan(msgspec.Struct):
    logs: list[_StoredSpan]


def app_id(table: str) -> str:
    """Return the application of the table's idempotent writes."""
    return f"mq.merge.{_name(table)}"


def put_plan(store: Store, table: str, plan: Plan) -> Plan:
    """Store the plan unless one of that number is there; returns the one that is there."""
    logs = [_StoredSpan(ref.topic, ref.name, span.start, span.stop, ref.generation) for ref, span in plan.logs.items()]
    key = _key(table, plan.batch)
    try:
        store.put_if_absent(key, msgspec.json.encode(_StoredPlan(logs)), durable=True)
    except NotDurable:
        store.sync([key])
    # Whoever won: what is stored counts.
    stored = read_plan(store, table, plan.batch)
    if stored is None:
        raise Unavailable(f"{key} was removed while it was planned: another driver is at work")
    return stored


def read_plan(store: Store, table: str, batch: int) -> Plan | None:
    """Return the plan of a batch; None when it was not planned.

    Raises
    ------
    Corrupt
        The file is no plan.
    """
    key = _key(table, batch)
    try:
        stored = msgspec.json.decode(store.read(key).to_pybytes(), type=_StoredPlan)
    except FileMissing:
        return None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{key}: is no plan of a batch: {error}") from error
    logs = {
        PartitionRef(Space.SYS, one.topic, one.partition, one.generation): Span(one.start, one.stop)
        for one in stored.logs
    }
    return Plan(batch=batch, logs=logs)


def forget_plans(store: Store, table: str, merged: int) -> None:
    """Remove the plans of batches long before `merged`, which is in the table."""
    for entry in store.entries(_folder(table)):
        number = entry.name.removesuffix(".json")
        if number.isdigit() and int(number) < merged - _KEPT:
            store.delete(f"{_folder(table)}/{entry.name}")


def watermark(store: Store, table: str, transactions: Mapping[str, int]) -> Plan:
    """Return the last batch that is in the table, given the table's transactions; batch -1, without logs, when none is.

    Raises
    ------
    Corrupt
        Its plan is gone: nobody can tell what the table holds.
    """
    batch = transactions.get(app_id(table), -1)
    if batch < 0:
        return Plan(batch=-1, logs={})
    plan = read_plan(store, table, batch)
    if plan is None:
        raise Corrupt(f"{_key(table, batch)} is missing, but {table} holds that batch", code="merge_plan_missing")
    return plan


def merged_to(store: Store, tables: Iterable[str] = MERGED_TABLES) -> dict[PartitionRef, int]:
    """For each log, the offset below which everything is in its state table: what retention may cut.

    A log that no batch has seen yet is not in it: nothing of that may be cut.
    """
    reached: dict[PartitionRef, int] = {}
    for table in tables:
        # The table first: the plan of a batch is there before the batch is in the table.
        transactions = state_transactions(store, table)
        if transactions is not None:
            reached |= watermark(store, table, transactions).stops
    return reached


def _name(table: str) -> str:
    return table.rpartition("/")[2]


def _folder(table: str) -> str:
    return f"jobs/merge/batches/{_name(table)}"


def _key(table: str, batch: int) -> str:
    return f"{_folder(table)}/{batch:020d}.json"
