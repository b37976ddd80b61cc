"""Settings of the log, with the reason for each default."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from mq.limits import KIB, MIB

__all__ = ["Flush", "LogSettings"]


class Flush(enum.Enum):
    """What an append has done to the disk before it returns."""

    SYNC = "sync"  #: data file, commit and both folders are fsynced
    ASYNC = "async"  #: written and visible; fsynced within `flush_interval_ms`


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How one process writes, keeps and serves message tables.

    Relations are checked on construction: a setting that could let an old writer reuse a deleted commit's version
    is refused, not corrected.
    """

    #: What an append waits for when neither topic nor request says otherwise.
    flush: Flush = Flush.SYNC
    #: The longest that an `async` append may stay only in the page cache.
    flush_interval_ms: int = 200
    #: Recent rows of one partition kept in memory as Arrow.
    tail_bytes_max: int = 64 * MIB
    #: The same for all partitions of the process together; the one that was quiet longest gives way.
    tails_bytes_max: int = 512 * MIB
    #: Decoded row groups kept for readers of history, over all partitions of the process.
    cache_bytes_max: int = 256 * MIB
    #: So many adjacent files of one size class are rolled up into one.
    rollup_files: int = 32
    #: A file of this size is final for the service; larger units are the compaction job's.
    rollup_bytes_max: int = 16 * MIB
    #: A checkpoint follows at the latest after so many commits.
    checkpoint_commits: int = 256
    #: A commit file lives at least this long, so that a paused writer cannot mistake a cleaned version for a free one.
    log_keep_ms: int = 60_000
    #: A data file that a roll-up replaced lives this long for queries that started before.
    file_keep_ms: int = 600_000
    #: A data file that no commit names is swept at this age; a writer never lets one get half as old.
    orphan_keep_ms: int = 24 * 3600 * 1000
    #: Rows in one parquet row group: the unit of a random read.
    row_group_rows: int = 32_768

    def __post_init__(self) -> None:
        for name in (
            "flush_interval_ms",
            "tail_bytes_max",
            "cache_bytes_max",
            "rollup_bytes_max",
            "checkpoint_commits",
            "log_keep_ms",
            "file_keep_ms",
            "orphan_keep_ms",
            "row_group_rows",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"log.{name} must be greater than 0")
        if self.rollup_files < 2:
            raise ValueError("log.rollup_files must be at least 2")
        if self.tail_bytes_max < 64 * KIB:
            raise ValueError("log.tail_bytes_max must be at least 65536")
        if self.tails_bytes_max < self.tail_bytes_max:
            raise ValueError("log.tails_bytes_max must be at least log.tail_bytes_max")


#: An operation that lasted longer than this part of a deadline looks at the log again before it believes itself.
STALE_FRACTION: Final = 0.5
