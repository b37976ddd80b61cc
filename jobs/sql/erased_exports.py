"""Erasing messages in the tables of exports, by Spark (SPEC ERASE-6).

    rows        a MERGE deletes those at the places that the eraser noted before it blanked the messages; and, where the
                table has the columns, those of the keys, whose messages retention may have removed
    old files   a VACUUM, when the time is over that the table itself keeps them
    old commits have bounds of values: those before a checkpoint go with the old files. Delta makes it behind the MERGE,
                as a property of the table tells it to for one commit

An export's next batch goes by its own progress, so it does not miss the rows. A batch under way may have read messages
before they were erased, so its rows are looked for once more when it is done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import SparkSession

from deltamq.jobs.merge.state_tables import frame_of, writing_session
from deltamq.jobs.read.identifiers import literal
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.sql.typed_table import columns_of, named
from deltamq.jobs.tasks.items import chunks_of
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import files_at, storage
from deltamq.mq.errors import NotFound, Unavailable
from deltamq.tables.failpoints import failpoint
from deltamq.tables.ops.eraser import PLACES
from deltamq.tables.ops.erasures import ErasedExport, Erasure, place_files
from deltamq.tables.ops.exports import Definition, begun_batch, definitions, read_export_state, removed_definitions
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.schema import TIME
from deltamq.tables.store.store import Store

_SHOWN: Final = pa.schema([("partition", pa.string()), ("offset", pa.int64()), ("append_time", TIME)])
_FILES_KEPT: Final = "delta.deletedFileRetentionDuration"
_CHECKPOINTS: Final = "delta.checkpointInterval"
_VECTORS: Final = "delta.enableDeletionVectors"
#: A table's own properties while others are in their place; after a kill, the next run restores them.
_OWN: Final = "deltamq.erase.own"
#: Longer than a run takes, behind the time that a table keeps files.
_DAY_MS: Final = timedelta(days=1) // timedelta(milliseconds=1)
#: Columns of a row of quarantine that say something; a message that was erased before it was exported has none.
_SAYING: Final = "(t.body IS NOT NULL OR t._key IS NOT NULL OR t._headers IS NOT NULL)"

#: Commits, checkpoints, and checksums of both, which Hadoop hides on a disk.
_LOG_FILE: Final = re.compile(r"\.?(\d{20})\.")
_own: Final = msgspec.json.Decoder(dict[str, str])


class ExportTables:
    """The tables of one export, and what a request has to do there."""

    def __init__(self, spark: SparkSession, warehouse: str, definition: Definition, erasure: Erasure) -> None:
        """Look for the tables, which may be in places that need not be reachable."""
        self._session = writing_session(spark)
        # A row must leave its file.
        self._session.conf.set("spark.databricks.delta.merge.deletionVectors.persistent", "false")
        self._warehouse = warehouse
        self._store = storage(warehouse)
        self._definition = definition
        self._erasure = erasure
        columns = {to: columns_of(self._session, to) for to in (definition.to, definition.quarantine)}
        self._columns = {to: present.names for to, present in columns.items() if present is not None}

    def check(self, *, removed: bool) -> None:
        """Raise an error that names a table that is gone: it may come back with what it had.

        The tables of a removed export are the user's, who may have dropped them.
        """
        state = read_export_state(self._store, self._definition.id)
        if removed or not (state.rows or state.quarantined):
            return
        for to in (self._definition.to, self._definition.quarantine):
            if to not in self._columns:
                name = self._definition.name
                detail = f"its table {to} is gone: restore it, or run 'deltamq jobs export remove {name}'"
                raise NotFound(detail, code="table_not_found", field="to")

    def erase(self, before: ErasedExport, found: Callable[[], None], *, first: bool) -> ErasedExport:
        """Delete the rows; `found` is called before the first one is deleted.

        Raises
        ------
        Unavailable
            `batch_open`: a batch that may have read messages before they were erased is not done.
        """
        state = read_export_state(self._store, self._definition.id)
        if state.batch < before.batch:
            detail = f"batch {before.batch} may have read messages before they were erased, and is not done"
            raise Unavailable(detail, code="batch_open")
        batch = begun_batch(self._store, self._definition.id)
        rows = sum(self._delete(to, found) for to in self._columns)
        keep_ms, logs = 0, dict(before.logs)
        for to in self._columns:
            properties = self._restored(to)
            keep_ms = max(keep_ms, self._kept_ms(properties))
            # Rows that somebody deleted with a deletion vector are in their files yet.
            if properties.get(_VECTORS) == "true" and (first or rows):
                self._session.sql(f"REORG TABLE {named(to)} APPLY (PURGE)")
            if first or rows or to not in logs:
                logs[to] = self._checkpointed(to, properties)
        keep_ms += _DAY_MS if self._columns else 0
        return replace(before, rows=before.rows + rows, batch=batch, keep_ms=keep_ms, logs=logs, failure="")

    def _delete(self, to: str, found: Callable[[], None]) -> int:
        deleted, columns = 0, self._columns[to]
        for source, due in self._conditions(to, columns):
            source.createOrReplaceTempView("erased")
            with errors_of_tasks():
                counted = f"SELECT count(*) AS n FROM {named(to)} t LEFT SEMI JOIN erased s ON {due}"
                rows = int(self._session.sql(counted).collect()[0].n)
                if rows:
                    found()
                    self._session.sql(f"MERGE INTO {named(to)} t USING erased s ON {due} WHEN MATCHED THEN DELETE")
                    failpoint("erase.after_export")
            deleted += rows
        return deleted

    def _conditions(self, to: str, columns: list[str]) -> Iterator[tuple[Any, str]]:
        """Yield frames of what is to be erased, each with the condition of the rows to delete."""
        if not {"_partition", "_offset"} <= set(columns):
            return  # not a table of an export any more
        saying = f" AND {_SAYING}" if to == self._definition.quarantine else ""
        if (places := self._places()) is not None:
            same = " AND t._append_time = s.append_time" if "_append_time" in columns else ""
            yield places, f"t._partition = s.partition AND t._offset = s.offset{same}{saying}"
        times = [name for name in ("_append_time", "_born_time") if name in columns]
        if "_key" in columns and times:
            keys = frame_of(self._session, pa.table({"key": pa.array(self._erasure.keys, pa.string())}), partitions=1)
            until = " OR ".join(f"t.{name} <= timestamp_micros({self._erasure.asked_us})" for name in times)
            yield keys, f"t._key = s.key AND ({until}) AND {self._of_topic(columns)}"

    def _of_topic(self, columns: list[str]) -> str:
        """An earlier export of another topic may have written to the same table."""
        if "_topic" in columns:
            return f"t._topic = {literal(self._definition.topic)}"
        names = {literal(name) for name, _ in _partitions(self._store, self._definition.topic).values()}
        return f"t._partition IN ({', '.join(sorted(names)) or 'NULL'})"

    def _places(self) -> Any:
        """Return the noted places as the export has them, from tasks; None if there are none."""
        files = place_files(self._store, self._erasure.id)
        if not files:
            return None
        partitions = _partitions(self._store, self._definition.topic)
        work = partial(_read_places, self._warehouse, partitions)
        return frame_of_tasks(self._session, chunks_of(files), work, _SHOWN).distinct()

    # Old files and commits.

    def purge(self, erased: ErasedExport) -> None:
        """Delete the old files and commits of the tables, whose keep time is over."""
        for to in self._columns:
            self._session.sql(f"VACUUM {named(to)}")
            folder, _, name = str(self._detail(to).location).rstrip("/").rpartition("/")
            _clean_log(files_at(folder.replace("s3a://", "s3://", 1)), f"{name}/{LOG_FOLDER}", erased.logs[to])

    def _checkpointed(self, to: str, own: Mapping[str, str]) -> int:
        """Make Delta store a checkpoint of a table; return its version."""
        kept = {_CHECKPOINTS: own[_CHECKPOINTS]} if _CHECKPOINTS in own else {}
        self._set(to, {_OWN: json.dumps(kept), _CHECKPOINTS: "1"})
        failpoint("erase.before_restored")
        version = int(self._session.sql(f"DESCRIBE HISTORY {named(to)} LIMIT 1").collect()[0].version)
        self._restored(to)
        return version

    def _restored(self, to: str) -> Mapping[str, str]:
        """Give a table its own properties again, if a run has changed them; return them."""
        properties: dict[str, str] = self._detail(to).properties
        if _OWN not in properties:
            return properties
        own = _own.decode(properties[_OWN])
        if own:
            self._set(to, own)
        others = [name for name in (_CHECKPOINTS, _OWN) if name not in own]
        names = ", ".join(map(literal, others))
        self._session.sql(f"ALTER TABLE {named(to)} UNSET TBLPROPERTIES ({names})")
        rest = {name: value for name, value in properties.items() if name not in others}
        return {**rest, **own}

    def _detail(self, to: str) -> Any:
        return self._session.sql(f"DESCRIBE DETAIL {named(to)}").collect()[0]

    def _set(self, to: str, properties: Mapping[str, str]) -> None:
        pairs = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
        self._session.sql(f"ALTER TABLE {named(to)} SET TBLPROPERTIES ({pairs})")

    def _kept_ms(self, properties: Mapping[str, str]) -> int:
        kept = properties.get(_FILES_KEPT, "interval 1 week").strip().lower().removeprefix("interval ")
        spent = f"timestamp_millis(0) + INTERVAL {literal(kept)}"
        return int(self._session.sql(f"SELECT unix_millis({spent}) AS ms").collect()[0].ms)


def exports_of(store: Store, topic: str) -> list[tuple[Definition, bool]]:
    """Return the exports of a topic, and for each whether it is removed; its tables stay then."""
    present = definitions(store)
    ids = {definition.id for definition in present}
    removed = [definition for definition in removed_definitions(store) if definition.id not in ids]
    both = [*((definition, False) for definition in present), *((definition, True) for definition in removed)]
    return [(definition, is_removed) for definition, is_removed in both if definition.topic == topic]


def _partitions(store: Store, topic: str) -> dict[str, tuple[str, int]]:
    """Return by folder the name of each partition that readers see, and their offsets less the table's."""
    try:
        partitions = Catalog(store).partitions(topic)
    except NotFound:
        return {}  # the topic was deleted
    return {partition.ref.folder: (partition.name, partition.delta) for partition in partitions}


def _clean_log(store: Store, log: str, version: int) -> None:
    """Delete what a log has from before a version, the oldest first, if a checkpoint stands for it."""
    numbered = sorted((int(found[1]), name) for name in store.names(log) if (found := _LOG_FILE.match(name)))
    if any(at >= version and ".checkpoint." in name for at, name in numbered):
        for at, name in numbered:
            if at < version:
                store.delete(f"{log}/{name}")


# In tasks.


def _read_places(
    warehouse: str, partitions: Mapping[str, tuple[str, int]], files: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    store = storage(warehouse)
    for file in files:
        places = pq.read_table(pa.BufferReader(store.read(file))).cast(PLACES)
        folder = places.column("folder")[0].as_py()  # the same in all rows
        if folder not in partitions:
            continue  # retention has removed its segment
        name, delta = partitions[folder]
        offsets = pa.compute.add(places.column("offset"), delta)
        shown = pa.table([pa.repeat(name, len(places)), offsets, places.column("append_time")], schema=_SHOWN)
        yield from shown.to_batches()
