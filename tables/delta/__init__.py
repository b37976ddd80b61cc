"""The Delta format of message tables: actions, commits, snapshots, checkpoints, data files."""

from __future__ import annotations

from deltamq.tables.delta.actions import (
    ENGINE,
    Commit,
    DataFile,
    NewCommit,
    commit_name,
    encode_append,
    encode_fence,
    encode_rewrite,
)
from deltamq.tables.delta.checkpoint import (
    ForeignCheckpoint,
    LogCheckpoint,
    checkpoint_names,
    hint_key,
    hint_version,
    read_checkpoint,
    write_checkpoint,
    write_hint,
)
from deltamq.tables.delta.commit import CommitLog, LostRace
from deltamq.tables.delta.creation import check_no_data, create_table
from deltamq.tables.delta.described_file import described_file
from deltamq.tables.delta.encode import Encoded, encode_file, encode_stamped
from deltamq.tables.delta.file_stats import decoded_stats, time_ms
from deltamq.tables.delta.foreign import OUR_ENGINE, ForeignCommit, author_of, columns_of
from deltamq.tables.delta.head import can_put_back, head_key, put_back, read_head
from deltamq.tables.delta.joined_file import join_files
from deltamq.tables.delta.large_file import GROUP_BYTES_MAX, encode_large_file
from deltamq.tables.delta.protocol import MESSAGE_PROTOCOL, MESSAGE_TABLE_SETTINGS, UNGUARDED_PROTOCOL
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.small_parquet import SMALL_FILE_ROWS_MAX
from deltamq.tables.delta.snapshot import (
    LOG_KEEP,
    ORPHAN_KEEP,
    CommitLost,
    PartitionNotFound,
    Snapshot,
    check_checkpoint_file,
    load,
    log_versions,
    read_commit,
    start,
)
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, Stamped, one_batch, table_of

__all__ = [
    "ENGINE",
    "GROUP_BYTES_MAX",
    "LOG_KEEP",
    "MESSAGE_PROTOCOL",
    "MESSAGE_TABLE_SETTINGS",
    "ORPHAN_KEEP",
    "OUR_ENGINE",
    "SMALL_FILE_ROWS_MAX",
    "UNGUARDED_PROTOCOL",
    "Commit",
    "CommitLog",
    "CommitLost",
    "DataFile",
    "Encoded",
    "FileReader",
    "ForeignCheckpoint",
    "ForeignCommit",
    "LogCheckpoint",
    "LostRace",
    "NewCommit",
    "PartitionNotFound",
    "ProducerStamp",
    "RowCache",
    "RowsPart",
    "Snapshot",
    "Stamped",
    "author_of",
    "can_put_back",
    "check_checkpoint_file",
    "check_no_data",
    "checkpoint_names",
    "columns_of",
    "commit_name",
    "create_table",
    "decoded_stats",
    "described_file",
    "encode_append",
    "encode_fence",
    "encode_file",
    "encode_large_file",
    "encode_rewrite",
    "encode_stamped",
    "head_key",
    "hint_key",
    "hint_version",
    "join_files",
    "load",
    "log_versions",
    "one_batch",
    "put_back",
    "read_checkpoint",
    "read_commit",
    "read_head",
    "start",
    "table_of",
    "time_ms",
    "write_checkpoint",
    "write_hint",
]
