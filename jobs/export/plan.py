"""The batches of an export: each is planned in a file before anything is written, as in merge (I13).

    <warehouse>/jobs/export/<id>/00000000000000000007.plan     put if absent: the offsets and schema of batch 7
    <warehouse>/jobs/export/<id>/state.json                    the last batch that is in both tables, and its ends

A batch writes to two tables; each commit carries the batch's number as Delta's `txn`. A kill between them leaves a plan
that is not in the state. It is carried out again, and a table that has its number stays unchanged. A plan that no
table has any of is made again by the current definition: the plan may have failed for its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.mq.static.reading import StoredOffsets
from deltamq.tables.failpoints import failpoint
from deltamq.tables.ops.exports import (
    ExportFailure,
    ExportState,
    export_folder,
    failure_key,
    plan_key,
    read_export_state,
    read_failure,
    state_key,
)
from deltamq.tables.ops.stored_json import read_stored
from deltamq.tables.store.store import Store


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: offsets of the topic, or the quarantine table at a version."""

    batch: int
    schema: str
    #: The offsets `[start, stop)` of each partition; a key is the partition's name, a colon, and its generation.
    ranges: dict[str, tuple[int, int]] = {}
    quarantine_version: int | None = None


#: Characters of a failure that are kept.
_DETAIL_MAX: Final = 2_000

_decode_plan: Final = msgspec.json.Decoder(ExportPlan)


class Plans:
    """The plans of one export; for one driver at a time."""

    def __init__(self, store: Store, export_id: str) -> None:
        self._store = store
        self._id = export_id
        self._folder = export_folder(export_id)

    def state(self) -> ExportState:
        """Return the export's progress."""
        return read_export_state(self._store, self._id)

    def unfinished(self, state: ExportState) -> ExportPlan | None:
        """Return the plan that was begun and may be carried out in part; None if there is none."""
        return read_stored(self._store, self._key(state.batch + 1), _decode_plan)

    def put(self, plan: ExportPlan) -> ExportPlan:
        """Store a plan; refuse it if another driver has stored the same batch."""
        failpoint("export.before_plan")
        if not self._store.put_if_absent(self._key(plan.batch), msgspec.json.encode(plan), durable=True):
            raise Conflict(f"batch {plan.batch} of this export was planned by another driver", code="driver_busy")
        failpoint("export.after_plan")
        return plan

    def put_again(self, plan: ExportPlan) -> ExportPlan:
        """Replace the plan of a batch of which no table has anything."""
        self._store.replace(self._key(plan.batch), msgspec.json.encode(plan))
        failpoint("export.after_plan")
        return plan

    def finish(self, plan: ExportPlan, before: ExportState, *, rows: int, quarantined: int) -> ExportState:
        """Record that a batch is in both tables, and delete its plan and older ones."""
        ends = before.ends | {name: stop for name, (_, stop) in plan.ranges.items()}
        replayed = plan.quarantine_version is not None
        after = ExportState(
            batch=plan.batch,
            ends=ends,
            rows=before.rows + rows,
            quarantined=quarantined if replayed else before.quarantined + quarantined,
        )
        failpoint("export.before_state")
        self._store.replace(state_key(self._id), msgspec.json.encode(after))
        failpoint("export.after_state")
        for name in self._store.names(self._folder):
            if name.endswith(".plan") and int(name[:20]) <= plan.batch:
                self._store.delete(f"{self._folder}/{name}")
        return after

    def failed(self, at_ms: int, detail: str) -> None:
        """Record why a run has failed."""
        failure = ExportFailure(at_ms=at_ms, detail=detail[:_DETAIL_MAX])
        self._store.replace(failure_key(self._id), msgspec.json.encode(failure))

    def succeeded(self) -> None:
        """Forget the failure of an earlier run."""
        if read_failure(self._store, self._id) is not None:
            self._store.delete(failure_key(self._id))

    def _key(self, batch: int) -> str:
        return plan_key(self._id, batch)


def next_ranges(
    ends: Mapping[str, int], stored: Mapping[str, StoredOffsets], rows_max: int
) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the ranges of a batch, and the number of rows that retention removed before they were read.

    The limit is shared in proportion to the waiting rows, with at least one row for each partition that has any, as
    Spark's Kafka source does. The holes in the offsets of a logical queue have no rows.
    """
    waiting: dict[str, tuple[int, int]] = {}
    lost = 0
    for name, offsets in stored.items():
        at = ends.get(name, offsets.first)
        lost += offsets.lost(at)
        rows = offsets.count(at, offsets.end)
        if rows:
            waiting[name] = (offsets.forward(at), rows)
    total = sum(rows for _, rows in waiting.values())
    if total > rows_max:
        share = rows_max / total
        waiting = {name: (at, max(1, int(rows * share))) for name, (at, rows) in waiting.items()}
    return {name: (at, stored[name].after(at, rows)) for name, (at, rows) in waiting.items()}, lost
