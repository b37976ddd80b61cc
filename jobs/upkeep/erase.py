"""The job `erase`: takes what messages of some keys say out of a topic and all its copies (SPEC ERASE-1).

    waiting    tasks over chunks of partitions: replace each file that holds a key              -> erased
    erased     when the old files' keep time is over, the same tasks once more. What jobs had in
               their hands in the first run, and appended since, is erased now, and the time
               begins again; if there was nothing, old files, logs and pools of files go
               when the tables of exports have kept their old files long enough, these go, too   -> gone
    gone       the receipt is stored, and the keys are deleted

The local engine runs the same functions one after another in this process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.run.registry import Facts, job, with_spark_engine
from deltamq.jobs.sql.erased_exports import ExportTables, exports_of
from deltamq.jobs.sql.latest_view import erase_latest
from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.jobs.tasks.items import chunks_of, runner_of
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.errors import Corrupt, DeltaMQError, NotFound, Unavailable
from deltamq.mq.queue.retry import RetryTopic
from deltamq.tables.config import Config
from deltamq.tables.delta.creation import check_no_data
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.warehouse import Warehouse, refs
from deltamq.tables.ops.eraser import Eraser, clean_log
from deltamq.tables.ops.erasures import (
    ErasedExport,
    Erasure,
    finish,
    open_erasures,
    read_erasure,
    replace_open,
    store_ms,
)
from deltamq.tables.ops.exports import Definition
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import DELAY, is_dead_marks
from deltamq.tables.state.latest import latest_folder
from deltamq.tables.state.upkeep import DATA_KEEP_MS
from deltamq.tables.store.file_pool import empty_pools
from deltamq.tables.store.host_lock import this_machine

#: The kinds of copies that a receipt counts, by space.
_COPIES: Final = {Space.RETRY: "retries", Space.DLQ: "dead_letters", Space.SYS: "delayed"}
#: Boot times of one machine can be compared; without its id, those of this process.
_MACHINE: Final = this_machine() or uuid.uuid4().hex
#: How much the times of a store's files may be wrong.
_STORE_CLOCK_MS: Final = 2_000
_SHOWN_MAX: Final = 5
#: Partitions that a worker process keeps open for later tasks.
_OPEN_MAX: Final = 64


class EraseItem(msgspec.Struct, frozen=True):
    """Partitions in which one task erases the keys of a request, which it reads from the warehouse."""

    conf: Config
    erasure: str
    partitions: tuple[PartitionRef, ...]
    #: Whether the process runs only tasks; then it may close partitions, since nothing else in it uses them.
    in_task: bool = True


class Done(msgspec.Struct):
    """What a task did, or what some tasks did together."""

    rows: int = 0
    copies: dict[str, int] = msgspec.field(default_factory=dict)
    #: Files that were replaced; other files that still have content to erase, which a commit removed, or perhaps none.
    replaced: list[str] = msgspec.field(default_factory=list)
    dead: list[str] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)
    #: Partitions with bounds of values in their commits, and the versions of checkpoints that were made of them.
    typed: list[PartitionRef] = msgspec.field(default_factory=list)
    logs: dict[str, int] = msgspec.field(default_factory=dict)
    #: The longest time that one of `typed` keeps commits, and that a partition keeps files that no commit names.
    log_keep_ms: int = 0
    orphan_keep_ms: int = 0
    #: Whether rows of exports were found, and perhaps deleted.
    deletes: bool = False
    errors: list[str] = msgspec.field(default_factory=list)

    def add(self, ref: PartitionRef, rows: int) -> None:
        kind = _COPIES.get(ref.space)
        if kind is None:
            self.rows += rows
        elif rows:
            self.copies[kind] = self.copies.get(kind, 0) + rows

    def keep(self, log_ms: int, orphan_ms: int) -> None:
        self.log_keep_ms = max(self.log_keep_ms, log_ms)
        self.orphan_keep_ms = max(self.orphan_keep_ms, orphan_ms)

    def join(self, other: Done) -> None:
        self.rows += other.rows
        self.copies = _summed(self.copies, other.copies)
        self.replaced += other.replaced
        self.dead += other.dead
        self.unknown += other.unknown
        self.typed += other.typed
        self.logs |= other.logs
        self.keep(other.log_keep_ms, other.orphan_keep_ms)
        self.errors += other.errors


_done: Final = msgspec.msgpack.Decoder(Done)


def _needs_spark(conf: Config) -> bool:
    """Only Spark writes the tables of exports, whatever the engine is."""
    if with_spark_engine(conf):
        return True
    try:
        store = storage(conf.warehouse.uri)
        return any(exports_of(store, erasure.topic) for erasure in open_erasures(store))
    except NotFound:
        return False  # there is no warehouse yet


@job(name="erase", every_s=lambda conf: conf.jobs.erase_every_s, needs_spark=_needs_spark)
def erase(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Erase what messages of given keys say, in a topic, its retries, dead letters and delayed messages.

    Input: the open requests below `jobs/erase/open`, and the files of the partitions that may have their keys.

    Output: files with the same offsets, in which key, headers, body and typed columns of these messages are null; one
    commit for each replaced file. Tables of the topic's exports without the rows of these messages. When the old files
    are gone, a receipt below `jobs/erase/done`.

    Idempotent: an erased row has no key, so it is not erased again.

    A kill at any line leaves each file as it was or replaced, and the request with the state of the last whole run; the
    next run does the rest. Counts of a run that was killed are not in the receipt.

    `rows` are the messages that lost their content, copies included; `open` are the requests that are not `gone`.

    Raises
    ------
    Corrupt, Unavailable
        Some partitions failed; all others were done, and the request stays open.
    """
    began = time.monotonic()
    warehouse = warehouse_of(conf)
    total, still_open = Done(), 0
    for erasure in open_erasures(warehouse.store):
        if erasure.state == "gone":  # a kill before its keys were deleted
            finish(warehouse.store, erasure)
        elif _is_due(warehouse, erasure):
            done, after = _step(spark, conf, warehouse, erasure)
            total.join(done)
            still_open += after.state != "gone"
        else:
            still_open += 1
    facts = {
        "rows": total.rows + sum(total.copies.values()),
        "files": len(total.replaced),
        "open": still_open,
        "ms": int((time.monotonic() - began) * 1000),
    }
    if total.errors:
        kind = Corrupt if any(error.startswith(Corrupt.__name__) for error in total.errors) else Unavailable
        shown = "; ".join(total.errors[:_SHOWN_MAX])
        raise kind(f"{len(total.errors)} tables failed: {shown}; the others: {facts}", code="erase_failed")
    return facts


def _is_due(warehouse: Warehouse, erasure: Erasure) -> bool:
    if erasure.state == "waiting":
        return True
    since_ms = _since_ms(warehouse, erasure)
    if since_ms is None:
        replace_open(warehouse.store, _marked(warehouse, erasure, erasure.keep_ms))
        return False
    return since_ms >= erasure.keep_ms


def _since_ms(warehouse: Warehouse, erasure: Erasure) -> int | None:
    """Return the time since a request was last erased; None if nobody knows, then the time begins again.

    No wall clock of a machine counts: one that jumps would delete what is in use (ARCHITECTURE I6).
    """
    if erasure.machine == _MACHINE:
        return warehouse.clock.boot_ms() - erasure.erased_boot_ms
    if warehouse.is_far:  # where each run may have another machine
        return store_ms(warehouse.store) - erasure.erased_store_ms - _STORE_CLOCK_MS
    return None


def _marked(warehouse: Warehouse, erasure: Erasure, keep_ms: int) -> Erasure:
    """Return the request as erased now, and gone after a time: queries read old files, and writers may sleep."""
    clock = warehouse.clock
    now_ms = clock.wall_us() // 1000
    exports = {key: replace(export, gone_ms=now_ms + export.keep_ms) for key, export in erasure.exports.items()}
    return replace(
        erasure,
        state="erased",
        machine=_MACHINE,
        erased_boot_ms=clock.boot_ms(),
        erased_store_ms=store_ms(warehouse.store) if warehouse.is_far else 0,
        keep_ms=keep_ms,
        exports=exports,
        gone_ms=now_ms + max([keep_ms, *(export.keep_ms for export in exports.values())]),
    )


def _step(spark: Any, conf: Config, warehouse: Warehouse, erasure: Erasure) -> tuple[Done, Erasure]:
    """Take one step of a request; return what was done, and the request after it."""

    def run(work: Callable[[EraseItem], Done], partitions: Sequence[PartitionRef]) -> Done:
        items = [EraseItem(conf, erasure.id, chunk, spark is not None) for chunk in chunks_of(partitions)]
        joined = Done()
        for part in runner_of(spark)(items, work, _done):
            joined.join(part)
        return joined

    done = run(erase_partitions, _places(warehouse, erasure.topic, conf.warehouse.cluster))
    _erase_latest(spark, warehouse, erasure, done)
    exports = _erase_exports(spark, conf, warehouse, erasure, done)
    failpoint("erase.before_state")
    after = replace(
        erasure,
        rows=erasure.rows + done.rows,
        copies=_summed(erasure.copies, done.copies),
        exports=exports,
        removed=tuple(dict.fromkeys((*erasure.removed, *done.replaced, *done.dead))),
    )
    if erasure.state == "erased":
        if done.replaced or done.deletes:
            after = _marked(warehouse, after, after.keep_ms)
        elif not done.errors:
            return done, _ended(spark, conf, warehouse, after, done)
    # The removed files first: behind a checkpoint, no process that starts knows that they were removed.
    replace_open(warehouse.store, after)
    checked = run(checkpoint_partitions, done.typed)
    failpoint("erase.after_checkpoints")
    done.errors += checked.errors
    if done.errors:
        return done, after
    settings = warehouse.settings
    keep_ms = max(settings.file_keep_ms, settings.log_keep_ms, done.log_keep_ms, erasure.keep_ms)
    after = _marked(warehouse, replace(after, logs=after.logs | checked.logs), keep_ms)
    replace_open(warehouse.store, after)
    return done, after


def _erase_latest(spark: Any, warehouse: Warehouse, erasure: Erasure, done: Done) -> None:
    """Erase the keys in the table of the topic's newest values, after its partitions: it is merged from these."""
    topic_id = Catalog(warehouse.store).topic_id(erasure.topic)
    folder, keys = latest_folder(topic_id), pa.array(erasure.keys, pa.string())
    now_ms = warehouse.clock.wall_us() // 1000
    try:
        erased = erase_latest(spark, warehouse.store, topic_id, keys, until_us=erasure.asked_us, now_ms=now_ms)
    except (DeltaMQError, PySparkException, OSError) as error:
        done.errors.append(f"{type(error).__name__}: {folder}: {sentence_of(str(error))}")
        return
    if erased.rows:
        done.copies["latest"] = erased.rows
        done.keep(DATA_KEEP_MS, 0)
    done.replaced += [f"{folder}/{path}" for path in erased.replaced]
    done.dead += [f"{folder}/{path}" for path in erased.dead]
    done.unknown += [f"{folder}/{path}" for path in erased.unknown]


def _erase_exports(
    spark: Any, conf: Config, warehouse: Warehouse, erasure: Erasure, done: Done
) -> dict[str, ErasedExport]:
    """Erase the rows of the topic's exports, after its partitions: their tasks note where the messages are."""

    def begin_again() -> None:
        done.deletes = True
        # Before the first row: a run that is killed leaves old files, whose time begins now.
        if erasure.state == "erased":
            exports = {key: replace(export, logs={}) for key, export in erasure.exports.items()}
            replace_open(warehouse.store, _marked(warehouse, replace(erasure, exports=exports), erasure.keep_ms))

    def work(tables: ExportTables, before: ErasedExport) -> ErasedExport:
        return tables.erase(before, begin_again, first=erasure.state == "waiting")

    exports = _in_each_export(spark, conf, warehouse, erasure, done, work)
    rows = sum(export.rows for export in exports.values()) - sum(export.rows for export in erasure.exports.values())
    if rows:
        done.copies["exports"] = rows
    return exports


def _in_each_export(
    spark: Any,
    conf: Config,
    warehouse: Warehouse,
    erasure: Erasure,
    done: Done,
    work: Callable[[ExportTables, ErasedExport], ErasedExport],
) -> dict[str, ErasedExport]:
    """Do the work in the tables of each export; one that fails spoils no other, and its failure is in the status."""

    def worked(definition: Definition, before: ErasedExport, *, removed: bool) -> ErasedExport:
        if spark is None:
            raise Unavailable("its rows are erased by Spark only", code="engine_needed")
        tables = ExportTables(spark, conf.warehouse.uri, definition, erasure)
        tables.check(removed=removed)
        # Nobody finishes a batch of a removed export.
        return work(tables, replace(before, batch=-1) if removed else before)

    # What an export that is forgotten meanwhile had is in the receipt.
    exports = {key: replace(export, keep_ms=0, failure="") for key, export in erasure.exports.items()}
    for definition, removed in exports_of(warehouse.store, erasure.topic):
        before = erasure.exports.get(definition.id) or ErasedExport(name=definition.name)
        try:
            exports[definition.id] = worked(definition, before, removed=removed)
        except (DeltaMQError, PySparkException, Py4JJavaError, OSError) as error:
            kind, said = type(error).__name__, sentence_of(str(error))
            exports[definition.id] = replace(before, failure=f"{kind}: {said}")
            done.errors.append(f"{kind}: export {definition.name}: {said}")
    return exports


def _ended(spark: Any, conf: Config, warehouse: Warehouse, erasure: Erasure, done: Done) -> Erasure:
    """Delete the old files of a request of which no live file has anything; return it as it is then."""
    orphan_keep_ms = max(warehouse.settings.orphan_keep_ms, done.orphan_keep_ms)
    waits_ms = orphan_keep_ms - (_since_ms(warehouse, erasure) or 0)
    if waits_ms > 0 and not set(done.unknown) <= set(erasure.removed):
        # Files that no commit names: their writers were killed, or commit them yet.
        waiting = replace(erasure, gone_ms=warehouse.clock.wall_us() // 1000 + waits_ms)
        replace_open(warehouse.store, waiting)
        return waiting
    for key in dict.fromkeys((*erasure.removed, *done.unknown)):
        warehouse.store.delete(key)
    for folder, version in erasure.logs.items():
        clean_log(warehouse.store, folder, version)
    if warehouse.folder is not None:
        empty_pools(str(warehouse.folder))
    exports_keep_ms = max((export.keep_ms for export in erasure.exports.values()), default=0)
    waits_ms = exports_keep_ms - (_since_ms(warehouse, erasure) or 0)
    if waits_ms > 0:
        gone_ms = warehouse.clock.wall_us() // 1000 + waits_ms
        waiting = replace(erasure, removed=(), logs={}, keep_ms=max(exports_keep_ms, erasure.keep_ms), gone_ms=gone_ms)
        replace_open(warehouse.store, waiting)
        return waiting
    purged = _in_each_export(spark, conf, warehouse, erasure, done, partial(_purged, warehouse))
    erasure = replace(erasure, exports=purged)
    replace_open(warehouse.store, erasure)
    if done.errors:
        return erasure
    failpoint("erase.before_gone")
    gone = replace(erasure, state="gone", gone_ms=warehouse.clock.wall_us() // 1000)
    finish(warehouse.store, gone)
    return gone


def _purged(warehouse: Warehouse, tables: ExportTables, before: ErasedExport) -> ErasedExport:
    tables.purge(before)
    return replace(before, gone_ms=warehouse.clock.wall_us() // 1000)


def _places(warehouse: Warehouse, topic: str, cluster: str) -> list[PartitionRef]:
    """Return the partitions that may have messages of a topic, or copies of them."""
    store = warehouse.store
    retries = (ref for ref in refs(store, Space.RETRY) if RetryTopic.of_storage_name(ref.topic).topic == topic)
    letters = (ref for ref in refs(store, Space.DLQ) if not is_dead_marks(ref))
    delayed = warehouse.refs_of(Space.SYS, f"{DELAY}_{cluster}")
    return [*warehouse.refs_of(Space.TOPICS, topic), *retries, *letters, *delayed]


def _summed(some: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {kind: some.get(kind, 0) + more.get(kind, 0) for kind in sorted({*some, *more})}


# In tasks.


def erase_partitions(item: EraseItem) -> Done:
    """Erase a request's keys in an item's partitions."""

    def work(eraser: Eraser, ref: PartitionRef, done: Done) -> None:
        rows, replaced = eraser.erase()
        done.add(ref, rows)
        done.keep(eraser.log_keep_ms if eraser.is_typed else 0, eraser.orphan_keep_ms)
        done.replaced += [f"{ref.folder}/{path}" for path in replaced]
        done.typed += [ref] if eraser.is_typed else []
        left = eraser.left()
        done.dead += [f"{ref.folder}/{path}" for path in left.dead]
        done.unknown += [f"{ref.folder}/{path}" for path in left.unknown]

    return _in_each(item, work)


def checkpoint_partitions(item: EraseItem) -> Done:
    """Store a log checkpoint of each of an item's partitions, after the last commit that erased."""

    def work(eraser: Eraser, ref: PartitionRef, done: Done) -> None:
        done.logs[ref.folder] = eraser.checkpoint()

    return _in_each(item, work)


def _in_each(item: EraseItem, work: Callable[[Eraser, PartitionRef, Done], None]) -> Done:
    """Do the work in each partition; one that fails spoils no other."""
    warehouse = warehouse_of(item.conf)
    erasure = read_erasure(warehouse.store, item.erasure)
    done = Done()
    for ref in item.partitions:
        try:
            try:
                work(Eraser(warehouse, ref, erasure), ref, done)
            except PartitionNotFound:
                # Its topic or group was deleted, unless there is data: then that is not erased.
                check_no_data(warehouse.store, ref.folder)
        except (DeltaMQError, OSError) as error:
            kind = Corrupt if isinstance(error, Corrupt) else type(error)
            done.errors.append(f"{kind.__name__}: {ref.folder}: {error}")
        if item.in_task and len(warehouse.open_logs) > _OPEN_MAX:
            warehouse.close_partition(ref)
    return done
