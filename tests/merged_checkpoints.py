"""The output of the merge job for the revive logs, made without Spark: the state table and the plan of its batch."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import CheckpointKey
from deltamq.mq.queue.revive_log import CheckpointState, fold
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.merge_plan import MergePlan, PlannedRange, app_id, put_plan
from deltamq.tables.queue.records import records_of
from deltamq.tables.queue.recovery import LogCursor
from deltamq.tables.queue.refs import revive_refs
from deltamq.tables.schema import delta_schema
from deltamq.tables.state.schema import POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA
from tests.checkpoint_rows import rows_of_states

__all__ = ["MergedCheckpoints"]


class MergedCheckpoints:
    """The state table of a warehouse; each run replaces all of it."""

    def __init__(self, warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> None:
        self._warehouse = warehouse
        self._refs = [ref for broker in brokers for ref in revive_refs(cluster, broker)]
        self._version = -1
        self._files: list[str] = []

    def run(self, *, files: int = 2, statistics: bool = True) -> dict[CheckpointKey, CheckpointState]:
        """Merge everything in the logs now.

        Parameters
        ----------
        statistics
            Whether the table has statistics for each file.
        """
        states: dict[CheckpointKey, CheckpointState] = {}
        spans = {}
        for ref in self._refs:
            cursor = LogCursor(self._warehouse, ref)
            for rows in cursor.new_rows():
                states = fold(states, records_of(rows))
            spans[ref] = PlannedRange(0, cursor.offset)
        self._version += 1
        store = self._warehouse.store
        put_plan(store, POP_CHECKPOINTS, MergePlan(batch=self._version, logs=spans))
        table = _table(states)
        lines: list[object] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {"id": "t", "schemaString": delta_schema(table.schema)}},
            {"txn": {"appId": app_id(POP_CHECKPOINTS), "version": self._version}},
            *({"remove": {"path": path}} for path in self._files),
        ]
        self._files = []
        for number in range(files):
            part = table.take(pa.array(range(number, table.num_rows, files), pa.int64()))
            path = f"part-{self._version}-{number}.parquet"
            sink = pa.BufferOutputStream()
            pq.write_table(part, sink, row_group_size=3, write_page_checksum=True)
            store.put_if_absent(f"{POP_CHECKPOINTS}/{path}", sink.getvalue().to_pybytes(), durable=True)
            add = {"path": path, "size": 1, "modificationTime": 0}
            lines.append({"add": add | ({"stats": json.dumps(_stats(part))} if statistics else {})})
            self._files.append(path)
        commit = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"
        store.put_if_absent(f"{POP_CHECKPOINTS}/_delta_log/{self._version:020d}.json", commit, durable=True)
        return states


def _table(states: dict[CheckpointKey, CheckpointState]) -> pa.Table:
    rows = rows_of_states(states)
    opened = [one.open for one in states.values()]
    due = [one.revive_time_ms * 1_000 if one.open else None for one in states.values()]
    derived = {
        "broker": pa.array([broker_of(key.partition) for key in states], pa.string()),
        "in_flight": pa.array([bits.bit_count() for bits in opened], pa.int32()),
        "merged_at": pa.array([0] * len(states), pa.int64()),
        "due_time": pa.array(due, pa.int64()),
    }
    schema = pa.schema([field.with_nullable(True) for field in POP_CHECKPOINTS_SCHEMA])
    columns = [derived[name] if name in derived else rows.column(name) for name in schema.names]
    return pa.table([column.cast(schema.field(at).type) for at, column in enumerate(columns)], schema=schema)


def _stats(rows: pa.Table) -> dict[str, object]:
    """Return statistics as Delta writes them, with times in milliseconds."""
    bounds: dict[str, dict[str, object]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in {"pop_time", "due_time"} & set(rows.column_names):
        found = pc.min_max(rows.column(name)).as_py()
        bounds["nullCount"][name] = rows.column(name).null_count
        for end, kind in (("min", "minValues"), ("max", "maxValues")):
            if found[end] is not None:
                bounds[kind][name] = found[end].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"numRecords": rows.num_rows, **bounds}
