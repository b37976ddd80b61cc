"""One batch of the sink: the part of each task, which stages rows, and the part of the driver, which commits them."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from deltamq.jobs.sink.append import append_manifest
from deltamq.jobs.sink.columns import SinkColumns, pieces
from deltamq.jobs.sink.contents import check_done, check_lives, check_same, in_lives_of, topics_made_again
from deltamq.jobs.sink.detour import around_stopped
from deltamq.jobs.sink.manifest import Manifests, name_in_life, planned
from deltamq.jobs.sink.open_sink import OpenSink
from deltamq.jobs.sink.routing import route_rows
from deltamq.jobs.sink.staging import StagedMessage, StagedRows, Stager, decoded_rows
from deltamq.jobs.tasks.worker import keep_imports
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import MIB
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.settings import Flush

_log: Final = logging.getLogger("deltamq.jobs")
#: Bytes of rows that a task converts and routes at once: Spark's batches are small, and splitting each costs time.
_PIECE_BYTES_MAX: Final = 8 * MIB
#: From this number of rows on, each piece starts to spread its rows without a key at another partition.
_SMALL_ROWS: Final = 4_096
_tending: Final = threading.Lock()


def stage_rows(
    sink: OpenSink,
    columns: SinkColumns,
    topic: str | None,
    batches: Iterator[pa.RecordBatch],
    *,
    name: str,
    batch: int,
    task: int,
    named: bool = True,
    piece_bytes_max: int = _PIECE_BYTES_MAX,
) -> StagedMessage:
    """Stage the rows of one task; nothing is appended to a topic.

    Parameters
    ----------
    topic
        The topic of all rows; None if a column names it.
    name, batch, task
        The name of the query or write, the number of the batch, and the number of the task.
    named
        Whether the name may be used again. Then each life of the topic has its own name (SPEC SPARK-16), if all rows
        go to one topic, and the batch's contents are summed up.
    piece_bytes_max
        Bytes of rows that are staged at a time.

    Raises
    ------
    Refused
        A row cannot be a message; the message names the column.
    """
    keep_imports()
    sink.refresh()
    store = sink.warehouse.store
    rows = pieces(batches, piece_bytes_max)
    first = next(rows, None)
    if first is not None and topic is not None and named:
        name = name_in_life(name, sink.topic(topic).id)
    stager = Stager(store, Manifests(store, name).folder, name, batch, task, sums=named)
    now_ms = sink.now_ms()
    # all tasks of a small batch put rows without a key into the same partition, so that one commit is enough
    draw = zlib.crc32(f"{name}#{batch}".encode())
    for number, piece in enumerate(() if first is None else chain((first,), rows)):
        at = draw if piece.num_rows < _SMALL_ROWS else zlib.crc32(f"{draw}#{task}#{number}".encode())
        given = columns.rows(piece, now_ms)
        stager.add(route_rows(given, topic, sink.routed, sink.codecs.of, draw=at, now_ms=now_ms))
    return stager.finish()


def name_of(staged: Sequence[StagedRows], sink: OpenSink, topic: str | None) -> str:
    """Return the name by which the tasks have staged rows; without rows, the name in the topic's present life."""
    name = next((task.name for task in staged if task.sections), None)
    if name is not None:
        return name
    present = None if topic is None else sink.refresh().topics.topics.get(topic)
    return staged[0].name if present is None else name_in_life(staged[0].name, present.id)


def decoded(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the staged rows of the tasks, from their messages."""
    return [decoded_rows(message) for message in messages if isinstance(message, StagedMessage)]


def commit_staged(
    sink: OpenSink,
    name: str,
    batch: int,
    staged: Sequence[StagedRows],
    *,
    flush: Flush | None = None,
    ignores_repeats: bool = False,
) -> None:
    """Append a batch once: the staged rows, or the rows of the manifest that an earlier run of the batch has put.

    Parameters
    ----------
    name
        The name of the query or write, in the life of its topic if all rows go to one.
    ignores_repeats
        Whether rows that differ from an earlier run's are ignored; otherwise they are refused.

    Raises
    ------
    Conflict
        `producer_sequence_reused`: an earlier run of the batch brought other rows (SPEC SPARK-17).
    Unavailable
        A partition is being taken over, a topic was made again since its rows were staged, or the disk is full: the
        same call continues where this one stopped.
    """
    manifests = Manifests(sink.warehouse.store, name)
    what = f"batch {batch} of {name}"
    plan = planned(name, batch, sink.now_ms(), staged)
    contents = plan.contents
    last = manifests.last_done()
    if last >= batch:
        done = manifests.done(batch)
        if not ignores_repeats:
            check_done(what, last, done, contents)
        for topic in topics_made_again(done or {}, contents):
            _commit_new_life(sink, name, batch, staged, topic, flush)
        return
    if not plan.requests and manifests.read(batch) is None:
        return  # a batch without rows
    topics = sink.refresh().topics.topics
    check_lives(contents, {topic: topics[topic].id for topic in contents if topic in topics})
    around = around_stopped(sink, manifests.folder, staged)
    if around is not staged:
        plan = planned(name, batch, plan.created_ms, around)
    manifest, is_new = manifests.put(plan)
    if not (is_new or ignores_repeats):
        check_same(what, manifest.contents, contents)
    touched = append_manifest(sink, manifest, flush=flush, again=not is_new)
    manifests.finish(batch, in_lives_of(manifest.contents, contents))
    _tend(touched)


def _commit_new_life(
    sink: OpenSink, name: str, batch: int, staged: Sequence[StagedRows], topic: str, flush: Flush | None
) -> None:
    """Append the rows of a topic that was made again after the batch was done: its new life does not have them."""
    of_topic = [
        msgspec.structs.replace(task, sections=[section for section in task.sections if section.topic == topic])
        for task in staged
    ]
    (_, content), *_ = (section.content for task in of_topic for section in task.sections)
    commit_staged(sink, name_in_life(name, content.life), batch, of_topic, flush=flush)


def _tend(logs: list[PartitionLog]) -> None:
    """Start the upkeep in the background; skipped upkeep is due again after the next batch."""
    if logs and _tending.acquire(blocking=False):
        threading.Thread(target=_tend_all, args=(logs,), name="mq-sink-upkeep", daemon=True).start()


def _tend_all(logs: list[PartitionLog]) -> None:
    try:
        for log in logs:
            log.maintain()
    except (DeltaMQError, OSError) as error:
        # upkeep is due again after the next batch, and a damaged log makes that append fail
        _log.warning("event=upkeep_failed detail=%r", str(error))
    finally:
        _tending.release()
