"""Settings of the log, with their defaults."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from mq.limits import KIB, MIB

__all__ = ["Flush", "LogSettings"]


class Flush(enum.Enum):
    """When an append syncs its files to the disk."""

    SYNC = "sync"  #: data file, commit and both folders are fsynced
    ASYNC = "async"  #: written and visible; fsynced within `flush_interval_ms`


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings for writing, keeping and serving message tables.

    Values and their relations are checked on construction; wrong ones are refused, not corrected.
    """

    #: What an append waits for if neither topic nor request sets it.
    flush: Flush = Flush.SYNC
    #: Longest time that an `async` append may be only in the page cache, in milliseconds.
    flush_interval_ms: int = 200
    #: Most bytes of recent rows of one partition that are kept in memory as Arrow.
    tail_bytes_max: int = 64 * MIB
    #: The same for all partitions of the process together; the partition that was idle longest gives way.
    tails_bytes_max: int = 512 * MIB
    #: Most bytes of decoded row groups that are kept for readers of history, over all partitions of the process.
    cache_bytes_max: int = 256 * MIB
    #: Number of adjacent files of one size class that are rolled up into one.
    rollup_files: int = 32
    #: Largest size of a rolled-up file, in bytes; the compaction job makes larger ones.
    rollup_bytes_max: int = 16 * MIB
    #: Number of commits after which a log checkpoint is written.
    checkpoint_commits: int = 256
    #: Least time to keep a commit file, in milliseconds: a paused writer must not take a deleted version as free.
    log_keep_ms: int = 60_000
    #: Time for which a data file that a roll-up replaced is kept for running queries, in milliseconds.
    file_keep_ms: int = 600_000
    #: Age at which a data file that no commit names is deleted, in milliseconds; a writer's own never gets half as old.
    orphan_keep_ms: int = 24 * 3600 * 1000
    #: Number of rows in a parquet row group, the unit of a random read.
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


#: An operation that took longer than this part of a keep time checks the log again before it relies on its state.
STALE_FRACTION: Final = 0.5
