"""Settings of the log, with their defaults and bounds."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from deltamq.mq.errors import Refused
from deltamq.mq.limits import KIB, MIB, RETENTION_MS_MAX


class SettingsDisagree(ValueError):
    """A setting breaks a rule about its text, or about other settings of its section."""

    def __init__(self, rule: str, key: str, *others: str) -> None:
        """Take what must hold for `key`, and the other settings that the rule is about."""
        super().__init__(f"{key} {rule}")
        self.keys = (key, *others)


def extra_missing(key: str, extra: str, cause: ImportError) -> Refused:
    """Return the error for a setting that needs packages which are not installed."""
    detail = f"{key} needs a package that is not installed ({cause}): pip install 'deltamq[{extra}]'"
    return Refused(detail, code="extra_missing", field=key)


class Flush(enum.Enum):
    """When an append syncs its files to the disk."""

    SYNC = "sync"  #: data file, commit and both folders are fsynced
    ASYNC = "async"  #: written and visible; fsynced within `flush_interval_ms`


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for writing, keeping and serving message tables.

    `tables.config.load` checks the bounds, and construction the relations; wrong values are refused, not corrected.
    """

    #: What an append waits for if neither topic nor request sets it.
    flush: Flush = Flush.SYNC
    #: Longest time that an `async` append may be only in the page cache, in milliseconds.
    flush_interval_ms: Annotated[int, Meta(ge=1, le=60_000)] = 200
    #: Most bytes of recent rows of one partition that are kept in memory as Arrow.
    tail_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=1024 * 1024 * MIB)] = 64 * MIB
    #: The same for all partitions of the process together; the partition that was idle longest gives way.
    tails_bytes_max: Annotated[int, Meta(ge=64 * KIB, le=1024 * 1024 * MIB)] = 512 * MIB
    #: Most bytes of decoded row groups that are kept for readers of history, over all partitions of the process.
    cache_bytes_max: Annotated[int, Meta(ge=1, le=1024 * 1024 * MIB)] = 256 * MIB
    #: Number of adjacent files of one size class that are rolled up into one.
    rollup_files: Annotated[int, Meta(ge=2)] = 32
    #: Largest size of a rolled-up file, in bytes; the compaction job makes larger ones.
    rollup_bytes_max: Annotated[int, Meta(ge=1, le=256 * MIB)] = 16 * MIB
    #: Number of commits after which a log checkpoint is written.
    checkpoint_commits: Annotated[int, Meta(ge=1, le=10_000)] = 256
    #: Least time to keep a commit file, in milliseconds: a paused writer must not take a deleted version as free.
    log_keep_ms: Annotated[int, Meta(ge=1_000, le=RETENTION_MS_MAX)] = 60_000
    #: Time for which a data file that a roll-up replaced is kept for running queries, in milliseconds.
    file_keep_ms: Annotated[int, Meta(ge=1, le=RETENTION_MS_MAX)] = 600_000
    #: Age at which a data file that no commit names is deleted, in milliseconds; a writer's own never gets half as old.
    orphan_keep_ms: Annotated[int, Meta(ge=60_000, le=RETENTION_MS_MAX)] = 24 * 3600 * 1000
    #: Number of rows in a parquet row group, the unit of a random read.
    row_group_rows: Annotated[int, Meta(ge=1_024, le=1_048_576)] = 32_768

    def __post_init__(self) -> None:
        if self.tails_bytes_max < self.tail_bytes_max:
            raise SettingsDisagree("must be at least log.tail_bytes_max", "log.tails_bytes_max", "log.tail_bytes_max")


#: An operation that took longer than this part of a keep time checks the log again before it relies on its state.
STALE_FRACTION: Final = 0.5
