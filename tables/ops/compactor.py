"""Compaction of one partition: adjacent files become one large file, in one commit (SPEC SPARK-8).

    plan       from the live files (tables.ops.compaction_plan)
    encode     row group by row group, every byte checked; the producers' requests are carried on. Rows of a typed topic
               get all columns of the table, whatever version of its schema they have (SPEC TYPE-40)
    put        the file, durably                     a kill: a file that no commit names, swept later
    commit     one file in the place of many         a kill: the commit is there or not
    later      the old files are deleted by the processes that see the commit (tables.log.dead_files)

Appends, roll-ups, retention, other compactions and readers continue in the meantime. The first commit wins: if one of
the old files is no longer live, the new file is deleted, and the partition is unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import Part
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import Encoded
from deltamq.tables.delta.joined_file import join_files
from deltamq.tables.delta.large_file import encode_large_file
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.ops.compaction_plan import TAIL_FILES_MAX
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import Store
from deltamq.tables.typed_row import conformed_rows

#: Size of the cache: each row group is read once, so nothing is kept.
_CACHE_BYTES: Final = 1
_BATCH_PREFIX: Final = "c"


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of compacting one group of files."""

    #: Paths of the files that the commit removed; none if another process was faster.
    removed: Sequence[str] = msgspec.field(default_factory=tuple)
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class Compactor:
    """Compacts one open partition. Blocking; several may work on different groups of its files at once."""

    def __init__(self, log: PartitionLog, store: Store, *, settings: LogSettings, clock: Clock) -> None:
        self._log = log
        self._store = store
        self._settings = settings
        self._clock = clock
        self._files = FileReader(store, log.ref.folder, RowCache(_CACHE_BYTES))

    def roll_up(self) -> None:
        """Do the upkeep of a neglected partition: no service maintains tables to which only tasks append.

        If a service maintains the partition, there is nothing to do here, or the service is faster.
        """
        while _is_neglected(self._log, self._settings) and self._log.maintain():
            pass

    def compact(self, start: int, end: int) -> Compacted:
        """Replace the files that hold `[start, end)` by one file; do nothing if no files have exactly these bounds.

        Raises
        ------
        Corrupt
            A file does not hold what the log says; nothing is changed.
        Unknown
            The files may be replaced; calling again is safe.
        """
        self._log.refresh()
        files = [file for file in self._log.files if start <= file.start and file.end <= end]
        if len(files) < 2 or (files[0].start, files[-1].end) != (start, end):
            return Compacted()
        parts = [part for file in files for part in self._log.parts_of(file)]
        try:
            encoded = self._compacted(files, parts)
        except Corrupt:
            self._log.refresh()
            if self._log.are_live(files):
                raise
            return Compacted()
        failpoint("compact.before_put")
        if not self._log.rewrite([encoded], files, operation="OPTIMIZE"):
            # No commit names the new file, and none ever will, so it is deleted now instead of by the sweep.
            self._store.delete(f"{self._log.ref.folder}/{encoded.file.path}")
            return Compacted()
        failpoint("compact.after_commit")
        return Compacted(
            removed=[file.path for file in files],
            rows=encoded.file.count,
            bytes_before=sum(file.size for file in files),
            bytes_after=encoded.file.size,
        )

    def _compacted(self, files: Sequence[DataFile], parts: Sequence[Part]) -> Encoded:
        batch_id = _BATCH_PREFIX + uuid.uuid4().hex[1:]
        now_ms, row_group_rows = self._clock.wall_us() // 1000, self._settings.row_group_rows

        def encode(some: Sequence[DataFile], parts: Sequence[Part] = ()) -> Encoded:
            rows = self._rows(some)
            return encode_large_file(rows, parts, batch_id=batch_id, now_ms=now_ms, row_group_rows=row_group_rows)

        joined = join_files(
            files, self._files.whole, encode, parts, batch_id=batch_id, now_ms=now_ms, row_group_rows=row_group_rows
        )
        return joined or encode(files, parts)

    def _rows(self, files: Sequence[DataFile]) -> Iterator[pa.Table]:
        schema = self._log.state.row_schema
        for file in files:
            for rows in self._files.groups(file, file.start, file.end, schema.names):
                yield conformed_rows(rows, schema)


def _is_neglected(log: PartitionLog, settings: LogSettings) -> bool:
    """Return whether so much upkeep is due that no process can be doing it."""
    small = sum(file.size < settings.rollup_bytes_max // 2 for file in log.files[-2 * TAIL_FILES_MAX :])
    commits = log.version - log.checkpoint_version
    return small > TAIL_FILES_MAX or commits > 2 * settings.checkpoint_commits
