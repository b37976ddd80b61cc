"""The plans of the merge job's batches, and how far each state table has the records of the logs (the watermark).

    jobs/merge/batches/pop_checkpoints/00000000000000000007.json     {"logs": [{..., "start": 120, "stop": 480}, ...]}
    state/pop_checkpoints: txn{appId: "mq.merge.pop_checkpoints", version: 7}

The plan of a batch is stored before its MERGE and never changed; the commit of the MERGE itself stores the number of
the batch. So a batch is merged as a whole or not at all, the next driver merges a batch that was planned but not
merged, and the table's transaction and the plan of that number together say how far every log is merged. An operator
who restores a state table must do the same with its plans.

A table that is gone has plans, too: then the logs are read from the lowest offset that they have (SPEC TABLE-6), and
the merge job makes the table again with a batch of its own, which begins there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.state.schema import CONSUMER_OFFSETS, GROUP_STATISTICS, LOST_MESSAGES, POP_CHECKPOINTS
from deltamq.tables.state.table import state_transactions
from deltamq.tables.store.store import FileMissing, NotDurable, Store

log = logging.getLogger("deltamq.tables")

#: The state tables that are merged from logs.
MERGED_TABLES: Final = (CONSUMER_OFFSETS, POP_CHECKPOINTS, LOST_MESSAGES, GROUP_STATISTICS)

#: Number of latest plans that are kept, for a reader that has read the table and reads its plan later.
_KEPT: Final = 100


class PlannedRange(msgspec.Struct, frozen=True):
    """Offsets `[start, stop)` of one log."""

    start: int
    stop: int


#: Where a log is read from if its table is gone: the lowest offset that it has.
_LOWEST: Final = -1


class Stops(msgspec.Struct, frozen=True):
    """For each log, the offset below which a state table has all its records."""

    stops: Mapping[PartitionRef, int]
    #: The table was there, and is gone.
    gone: bool = False

    def of(self, ref: PartitionRef) -> int:
        """Return where a reader of the log goes on behind the table, as `LogCursor` takes it."""
        return self.stops.get(ref, _LOWEST if self.gone else 0)


class MergePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: the range of offsets, perhaps empty, of every log that the table is merged from."""

    batch: int
    logs: Mapping[PartitionRef, PlannedRange]

    @property
    def records(self) -> int:
        """The number of records in the batch."""
        return sum(span.stop - span.start for span in self.logs.values())

    @property
    def stops(self) -> dict[PartitionRef, int]:
        """The first offset of each log that is in no batch so far."""
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
    """Return the application id of the table's idempotent writes."""
    return f"mq.merge.{_name(table)}"


def put_plan(store: Store, table: str, plan: MergePlan) -> MergePlan:
    """Store the plan, unless there is one with its number; return the stored one."""
    assert all(0 <= span.start <= span.stop for span in plan.logs.values()), "a batch goes forward"
    logs = [_StoredSpan(ref.topic, ref.name, span.start, span.stop, ref.generation) for ref, span in plan.logs.items()]
    key = _key(table, plan.batch)
    try:
        store.put_if_absent(key, msgspec.json.encode(_StoredPlan(logs)), durable=True)
    except NotDurable:
        store.sync([key])
    # Whichever driver was first, the stored plan counts.
    stored = read_plan(store, table, plan.batch)
    if stored is None:
        raise Unavailable(f"{key} was removed while its batch was planned: another driver is running")
    return stored


def read_plan(store: Store, table: str, batch: int) -> MergePlan | None:
    """Return the plan of a batch; None if it was not planned.

    Raises
    ------
    Corrupt
        The file is not a plan.
    """
    key = _key(table, batch)
    try:
        stored = msgspec.json.decode(store.read(key).to_pybytes(), type=_StoredPlan)
    except FileMissing:
        return None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{key}: is not the plan of a batch: {error}") from error
    logs = {
        PartitionRef(Space.SYS, span.topic, span.partition, span.generation): PlannedRange(span.start, span.stop)
        for span in stored.logs
    }
    return MergePlan(batch=batch, logs=logs)


def plan_keys(store: Store, table: str, batch: int) -> list[str]:
    """Return the keys of the plans of `batch` and of later ones."""
    names = [name for name in store.names(_folder(table)) if name.removesuffix(".json").isdigit()]
    return [f"{_folder(table)}/{name}" for name in names if int(name.removesuffix(".json")) >= batch]


def forget_plans(store: Store, table: str, merged: int) -> None:
    """Remove the plans of batches long before `merged`, the number of a batch that is in the table."""
    for entry in store.entries(_folder(table)):
        number = entry.name.removesuffix(".json")
        if number.isdigit() and int(number) < merged - _KEPT:
            store.delete(f"{_folder(table)}/{entry.name}")


def watermark(store: Store, table: str, transactions: Mapping[str, int]) -> MergePlan:
    """Return the plan of the last batch in the table, by the table's transactions; if none, batch -1 without logs.

    Raises
    ------
    Corrupt
        The plan is missing, so what the table holds is not known.
    """
    batch = transactions.get(app_id(table), -1)
    if batch < 0:
        return MergePlan(batch=-1, logs={})
    plan = read_plan(store, table, batch)
    if plan is None:
        raise Corrupt(f"{_key(table, batch)} is missing, but {table} holds its batch", code="merge_plan_missing")
    return plan


def last_planned(store: Store, table: str) -> int:
    """Return the number of the last batch that was planned for the table, -1 if there was none."""
    numbers = [name.removesuffix(".json") for name in store.names(_folder(table))]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def merged_stops(store: Store, table: str, transactions: Mapping[str, int] | None) -> Stops:
    """Return how far the logs are in the table, by its transactions; None if there is no table.

    If a table is gone, an error in the program's log says what may be lost.

    Raises
    ------
    Corrupt
        A plan is missing, so what the table holds is not known.
    """
    if transactions is not None:
        return Stops(watermark(store, table, transactions).stops)
    gone = last_planned(store, table) >= 0
    if gone:
        log.error("event=state_table_gone table=%s loss=%r", table, "records that the logs do not have any more")
    return Stops({}, gone)


def merged_to(store: Store, tables: Iterable[str] = MERGED_TABLES) -> dict[PartitionRef, int]:
    """Return for each log the offset below which everything is in its state table, so that retention may remove it.

    A log that is in no batch yet is missing from the result: nothing of it may be removed.
    """
    reached: dict[PartitionRef, int] = {}
    for table in tables:
        # The table is read first: the plan of a batch is stored before the batch is in the table.
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
