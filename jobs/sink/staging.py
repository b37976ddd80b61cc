"""Staged rows: a task's share of a batch, routed and stored, before the driver decides that it is part of the batch.

    task:   rows -> routed parts -> IPC streams, one after another, in files of about 64 MiB  -> message to the driver
    driver: the messages of the tasks that count -> manifest -> appends

A few rows travel in the message itself, without a file. A retried, speculated or killed task may leave a file
that no manifest names; it is swept with the batch.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from deltamq.jobs.sink.contents import Content, content_sum
from deltamq.jobs.sink.routing import RoutedPart
from deltamq.jobs.sink.stream_run import StreamRun
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import KIB, MIB
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.store import Store

#: How the names of files of staged rows end.
STAGED_SUFFIX: Final = ".arrow"

#: Bytes that a task holds before it writes a file.
FILE_BYTES_MAX: Final = 64 * MIB
#: Up to this size, a task's rows travel in its message to the driver and are stored in the manifest.
INLINE_BYTES_MAX: Final = 64 * KIB
_ALIGNMENT: Final = 64


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """Where staged rows are: in a file of the warehouse, or in `data`."""

    key: str
    size: int
    data: bytes | None = None


class Section(msgspec.Struct, frozen=True, array_like=True):
    """One part in a staged file: an IPC stream at `[start, start + length)`, and the checksum of these bytes."""

    file: int
    start: int
    length: int
    crc: int
    rows: int
    topic: str
    partition: str
    token: str
    waits: bool
    #: The logical queue that the partition led; empty in a plain topic.
    queue: str
    #: `content_sum` of the rows; 0 in a batch without an identity, which has no repeats.
    total: int

    @property
    def content(self) -> tuple[str, Content]:
        """The topic and this section's content for it; a token begins with the topic's id."""
        return self.topic, Content(self.token.partition(":")[0], self.rows, self.total)


class StagedRows(msgspec.Struct, frozen=True):
    """Everything that one task staged; `file` of a section is an index into `files`."""

    name: str
    batch: int
    task: int
    files: list[StagedFile]
    sections: list[Section]


@dataclass
class StagedMessage(WriterCommitMessage):
    """The message that Spark carries from a task to the driver."""

    staged: bytes
    run: StreamRun | None = None


_decode: Final = msgspec.msgpack.Decoder(StagedRows)


def decoded_rows(message: StagedMessage) -> StagedRows:
    """Return what a task staged, from its message."""
    return _decode.decode(message.staged)


class Stager:
    """Collects and stages the routed parts of one task."""

    def __init__(self, store: Store, folder: str, name: str, batch: int, task: int, *, sums: bool) -> None:
        """`sums`: whether the batch may be repeated, so that its contents are compared."""
        self._sums = sums
        self._store = store
        self._prefix = f"{folder}/{batch:020d}-{task:06d}-{uuid.uuid4().hex}"
        self._name = name
        self._batch = batch
        self._task = task
        self._files: list[StagedFile] = []
        self._sections: list[Section] = []
        self._held: dict[tuple[str, str, bool, str, str], list[pa.RecordBatch]] = {}
        self._held_bytes = 0

    def add(self, parts: Iterable[RoutedPart]) -> None:
        """Collect parts; once there is enough for a file, write it durably."""
        for part in parts:
            target = (part.topic, part.partition, part.waits, part.token, part.queue)
            self._held.setdefault(target, []).append(part.rows)
            self._held_bytes += part.rows.nbytes
        if self._held_bytes >= FILE_BYTES_MAX:
            self._write(*self._streams())

    def finish(self) -> StagedMessage:
        """Return the message to the driver; everything that it names is durable."""
        streams, size = self._streams()
        if size > INLINE_BYTES_MAX or (size and self._files):
            self._write(streams, size)
        elif size:
            self._files.append(StagedFile("", size, bytes(_joined(streams, size))))
        staged = StagedRows(self._name, self._batch, self._task, self._files, self._sections)
        return StagedMessage(msgspec.msgpack.encode(staged))

    def _streams(self) -> tuple[list[pa.Buffer | bytes], int]:
        streams: list[pa.Buffer | bytes] = []
        size = 0
        for (topic, partition, waits, token, queue), batches in self._held.items():
            for _, alike in groupby(batches, key=lambda batch: batch.schema):
                rows = pa.concat_batches(alike)
                stream = _stream(rows)
                crc = zlib.crc32(stream)
                position = (len(self._files), size, stream.size, crc, rows.num_rows)
                total = content_sum(rows) if self._sums else 0
                self._sections.append(Section(*position, topic, partition, token, waits, queue, total))
                streams += [stream, bytes(-stream.size % _ALIGNMENT)]
                size += stream.size + -stream.size % _ALIGNMENT
        self._held, self._held_bytes = {}, 0
        return streams, size

    def _write(self, streams: Sequence[pa.Buffer | bytes], size: int) -> None:
        key = f"{self._prefix}-{len(self._files)}{STAGED_SUFFIX}"
        failpoint("sink.before_stage")
        self._store.put(key, _joined(streams, size), durable=True)
        failpoint("sink.after_stage")
        self._files.append(StagedFile(key, size))


def _stream(rows: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _joined(streams: Sequence[pa.Buffer | bytes], size: int) -> pa.Buffer:
    whole = pa.BufferOutputStream()
    for stream in streams:
        whole.write(stream)
    data = whole.getvalue()
    assert data.size == size, "sections give positions in the whole"
    return data


def read_sections(store: Store, files: Sequence[StagedFile], sections: Sequence[Section]) -> list[pa.RecordBatch]:
    """Return the rows of each section; raise `Corrupt` if they do not have its checksum."""
    buffers: dict[int, pa.Buffer] = {}
    for number in dict.fromkeys(section.file for section in sections):
        file = files[number]
        if file.data is not None:
            buffers[number] = pa.py_buffer(file.data)
            continue
        ranges = [(section.start, section.start + section.length) for section in sections if section.file == number]
        buffers[number] = store.read_parts(file.key, file.size, ranges)
    return [
        _rows(files[section.file], buffers[section.file].slice(section.start, section.length), section)
        for section in sections
    ]


def _rows(file: StagedFile, stream: pa.Buffer, section: Section) -> pa.RecordBatch:
    if zlib.crc32(stream) != section.crc:
        where = file.key or "the manifest"
        raise Corrupt(f"staged rows in {where} at byte {section.start} are damaged", code="staged_rows_corrupt")
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_next_batch()
