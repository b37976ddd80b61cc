"""The detour of rows that may go to any partition: around those that have stopped (SPEC RELY-10).

The driver opens the partitions of a batch to append to them, so it knows which have stopped. It moves rows only before
the batch has a manifest, which is final: a batch that runs again waits for the repair, because a stopped partition may
hold its rows. Rows with a key, rows that name their partition, and delayed rows stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from deltamq.jobs.sink.append import THREADS_MAX
from deltamq.jobs.sink.open_sink import OpenSink
from deltamq.jobs.sink.routing import RoutedPart, are_free
from deltamq.jobs.sink.staging import Section, StagedRows, Stager, decoded_rows, read_sections
from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.topics import Topic
from deltamq.mq.routing import spread
from deltamq.tables.queue.placement import Placement


def around_stopped(sink: OpenSink, folder: str, staged: Sequence[StagedRows]) -> Sequence[StagedRows]:
    """Return staged rows, those that may go to any partition in others than stopped ones; `folder` gets their files.

    If all partitions of a topic have stopped, its rows stay. Where none has, `staged` itself is returned.
    """
    moved = staged
    for name in sorted({section.topic for task in staged for section in task.sections if not section.waits}):
        topic, placement = sink.routed(name)
        used = {section.partition for task in staged for section in task.sections if section.topic == name}
        if not _stopped(sink, topic, used.intersection(placement.partitions)):
            continue
        stopped = _stopped(sink, topic, placement.partitions)
        around = placement.avoiding(frozenset(map(placement.partitions.index, stopped)))
        if around is not placement:
            detour = _Detour(sink, folder, name, around, stopped)
            moved = [detour.moved(task) for task in moved]
    return moved


def _stopped(sink: OpenSink, topic: Topic, partitions: Collection[str]) -> frozenset[str]:
    """Return the partitions that refuse all calls, or cannot be opened."""
    names = sorted(partitions)
    with ThreadPoolExecutor(min(THREADS_MAX, max(1, len(names))), "mq-sink") as pool:
        found = list(pool.map(partial(_is_stopped, sink, topic), names))
    return frozenset(name for name, is_stopped in zip(names, found, strict=True) if is_stopped)


def _is_stopped(sink: OpenSink, topic: Topic, partition: str) -> bool:
    try:
        return sink.log(topic, partition).stopped is not None
    except Corrupt:
        return True


class _Detour(msgspec.Struct, frozen=True):
    """The way of one topic's rows `around` its stopped partitions."""

    sink: OpenSink
    folder: str
    topic: str
    around: Placement
    stopped: frozenset[str]

    def moved(self, task: StagedRows) -> StagedRows:
        """Return a task's rows with those that leave staged again; the others stay where they are staged."""
        store = self.sink.warehouse.store
        leaving = [one for one in task.sections if self._leaves(one)]
        if not leaving:
            return task
        # A batch without an identity has no sums.
        sums = any(section.total for section in leaving)
        stager = Stager(store, self.folder, task.name, task.batch, task.task, sums=sums)
        for section in leaving:
            (rows,) = read_sections(store, task.files, [section])
            stager.add(self._parts(section, rows, zlib.crc32(f"{task.name}#{task.batch}".encode())))
        again = decoded_rows(stager.finish())
        kept = [section for section in task.sections if not self._leaves(section)]
        kept += [msgspec.structs.replace(one, file=one.file + len(task.files)) for one in again.sections]
        return msgspec.structs.replace(task, files=[*task.files, *again.files], sections=kept)

    def _leaves(self, section: Section) -> bool:
        return section.topic == self.topic and section.partition in self.stopped and not section.waits

    def _parts(self, section: Section, rows: pa.RecordBatch, draw: int) -> Iterator[RoutedPart]:
        free = are_free(rows, self.around)
        if not free.all():
            bound = rows.filter(pa.array(~free))
            yield RoutedPart(section.topic, section.partition, section.token, False, bound, section.queue)
        moving = rows.filter(pa.array(free))
        queues = {number: name for name, number in self.around.names.items()} if self.around.queues is not None else {}
        for number, low, high in spread(int(np.count_nonzero(free)), self.around, draw):
            part = moving.slice(low, high - low)
            target = self.around.partitions[number]
            yield RoutedPart(section.topic, target, section.token, False, part, queues.get(number, ""))
