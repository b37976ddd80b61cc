"""Delta checkpoints of message tables: one small parquet file that replaces all commits so far.

A checkpoint is written from the state in memory: no commit is read again, so its cost depends on the number of live
files, not on the number of commits. Tombstones are left out: upkeep keeps and deletes the files that a roll-up
replaced, and other readers see these files as unreferenced. The footer holds a checksum of every byte of the file.

Each checkpoint is stored twice: under Delta's name for other readers, and under a name that no other engine knows. An
engine that checkpoints the table writes over the former, whatever the table's protocol says; by then the commits that
it stands for may be gone. A checkpoint without our checksum is never trusted (SPEC TABLE-3).
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import FENCE_APP_PREFIX, OFFSET_APP_ID, DataFile, data_file, fence_of, file_action
from deltamq.tables.delta.protocol import (
    MESSAGE_FEATURES,
    MESSAGE_PROTOCOL,
    UNGUARDED_PROTOCOL,
    check_may_write,
    is_guarded,
    writer_features,
)
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.store import FileMissing, Store

_CRC_KEY: Final = "mq/crc"
_NO_CRC: Final = b"--------"
#: The checksum's key and, in Thrift, the length of its value; no name in a table holds a slash.
_CRC_MARK: Final = _CRC_KEY.encode() + b"\x18\x08"
_PARQUET: Final = b"PAR1"
_MAP: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final[dict[str, pa.DataType]] = {
    "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", _MAP),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
            ("tags", _MAP),
        ]
    ),
    "remove": pa.struct(
        [
            ("path", pa.string()),
            ("deletionTimestamp", pa.int64()),
            ("dataChange", pa.bool_()),
            ("extendedFileMetadata", pa.bool_()),
            ("partitionValues", _MAP),
            ("size", pa.int64()),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _MAP),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
}


class LogCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a table at `version`."""

    version: int
    batch_id: str
    end_offset: int
    files: Sequence[DataFile]
    metadata: dict[str, object]
    fences: Mapping[str, int] = msgspec.field(default_factory=dict)
    writer_features: frozenset[str] = MESSAGE_FEATURES


class ForeignCheckpoint(Corrupt):
    """A log checkpoint of another engine."""


def checkpoint_name(version: int) -> str:
    """Return the file name of a checkpoint in `_delta_log`, as every Delta reader knows it."""
    return f"{version:020d}.checkpoint.parquet"


def checkpoint_names(version: int) -> tuple[str, str]:
    """Return both file names of a checkpoint in `_delta_log`: our own, then `checkpoint_name`."""
    return f".checkpoint-{version:020d}", checkpoint_name(version)


def _crc_at(data: bytes) -> int:
    """Return the position of the checksum in a checkpoint file, searched from the end; -1 if there is none."""
    at = data.rfind(_CRC_MARK)
    return at + len(_CRC_MARK) if at >= 0 else -1


def _checksum(data: bytes, at: int) -> bytes:
    """Return the checksum of the file, computed with the placeholder at `at`."""
    crc = zlib.crc32(_NO_CRC, zlib.crc32(data[:at]))
    return b"%08x" % zlib.crc32(data[at + len(_NO_CRC) :], crc)


def write_checkpoint(store: Store, folder: str, checkpoint: LogCheckpoint, *, now_ms: int) -> None:
    """Store the checkpoint twice, then the hint that names it; without the hint, a listing finds the checkpoint.

    Raises
    ------
    Unavailable
        `table_newer`: the checkpoint would not say all that the table's protocol does.
    """
    check_may_write(checkpoint.writer_features, folder)
    ends = {OFFSET_APP_ID: checkpoint.end_offset}
    ends |= {f"{FENCE_APP_PREFIX}{name}": epoch for name, epoch in checkpoint.fences.items()}
    txns: list[dict[str, object]] = [
        {"appId": app_id, "version": version, "lastUpdated": now_ms} for app_id, version in ends.items()
    ]
    adds = [file_action(f, data_change=False) for f in checkpoint.files]
    protocol = dict(MESSAGE_PROTOCOL if is_guarded(checkpoint.writer_features) else UNGUARDED_PROTOCOL)
    table = _table({"protocol": [protocol], "metaData": [checkpoint.metadata], "txn": txns, "add": adds})
    facts = {"mq.batch": checkpoint.batch_id, "mq.version": str(checkpoint.version), _CRC_KEY: _NO_CRC.decode()}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(facts),
        sink,
        compression="snappy",
        write_page_checksum=True,
        store_schema=True,
    )
    data = sink.getvalue().to_pybytes()
    at = _crc_at(data)
    data = data[:at] + _checksum(data, at) + data[at + len(_NO_CRC) :]
    for name in checkpoint_names(checkpoint.version):
        store.replace(f"{folder}/{LOG_FOLDER}/{name}", data)
    write_hint(store, folder, checkpoint)


def hint_key(folder: str) -> str:
    """Return the key of the hint that names a recent checkpoint to other readers; DeltaMQ itself lists the log."""
    return f"{folder}/{LOG_FOLDER}/_last_checkpoint"


def write_hint(store: Store, folder: str, checkpoint: LogCheckpoint) -> None:
    """Store the hint that names this checkpoint."""
    store.replace(hint_key(folder), _hint(checkpoint))


def _hint(checkpoint: LogCheckpoint) -> bytes:
    # One row for each live file and each fence, and one each for protocol, metadata and end offset.
    size = len(checkpoint.files) + len(checkpoint.fences) + 3
    return json.dumps({"version": checkpoint.version, "size": size}).encode()


def hint_version(store: Store, folder: str) -> int | None:
    """Return the version of the checkpoint that the hint names; None without a hint.

    Raises
    ------
    Corrupt
        The hint names no existing checkpoint, or differs from what was written for the one that it names.
    """
    key = hint_key(folder)
    try:
        raw = store.read(key).to_pybytes()
    except FileMissing:
        return None
    try:
        version = int(json.loads(raw)["version"])
        right = _hint(read_checkpoint_file(store, f"{folder}/{LOG_FOLDER}/{checkpoint_name(version)}", version))
    except (ValueError, TypeError, KeyError, FileMissing) as error:
        raise Corrupt(f"{key}: does not name an existing checkpoint") from error
    except ForeignCheckpoint as error:
        raise Corrupt(f"{key}: names a checkpoint of another engine") from error
    if raw != right:
        raise Corrupt(f"{key}: differs from what was written for the checkpoint of version {version}")
    return version


def _table(actions: dict[str, list[dict[str, object]]]) -> pa.Table:
    """Return a table with one row for each action and one column for each kind, as the Delta protocol prescribes."""
    count = sum(len(rows) for rows in actions.values())
    columns: dict[str, pa.ChunkedArray] = {}
    before = 0
    for kind, rows in actions.items():
        type_ = _TYPES[kind]
        chunks = [
            pa.nulls(before, type_),
            pa.array([_typed(row) for row in rows], type_),
            pa.nulls(count - before - len(rows), type_),
        ]
        columns[kind] = pa.chunked_array(chunks, type_)
        before += len(rows)
    columns["remove"] = pa.chunked_array([pa.nulls(count, _TYPES["remove"])])
    return pa.table(columns)


def _typed(value: object) -> object:
    """Turn dictionaries of strings into pyarrow's map entries; structs stay dictionaries."""
    if not isinstance(value, dict):
        return value
    maps = ("partitionValues", "tags", "options", "configuration")
    return {k: list(v.items()) if k in maps else _typed(v) for k, v in value.items()}


def read_checkpoint(store: Store, folder: str, version: int) -> LogCheckpoint:
    """Read and verify a checkpoint: our own copy, or the one for other readers if that is missing or damaged.

    Raises
    ------
    ForeignCheckpoint
        Only a checkpoint of another engine exists.
    Corrupt
        The file cannot be parsed, or its content differs from what was written.
    Unavailable
        `table_newer`: the table has a reader feature that this release does not know.
    """
    own, shared = (f"{folder}/{LOG_FOLDER}/{name}" for name in checkpoint_names(version))
    with contextlib.suppress(FileMissing, Corrupt):
        return read_checkpoint_file(store, own, version)
    return read_checkpoint_file(store, shared, version)


def read_checkpoint_file(store: Store, key: str, version: int) -> LogCheckpoint:
    """Read and verify one file of a checkpoint; raises as `read_checkpoint` does."""
    data = store.read(key).to_pybytes()
    at = _crc_at(data)
    if at < 0 and data[:4] == data[-4:] == _PARQUET:
        raise ForeignCheckpoint(f"{key}: was written by another engine, and is not trusted")
    if at < 0 or data[at : at + len(_NO_CRC)] != _checksum(data, at):
        raise Corrupt(f"{key}: checksum does not match; the file was altered, or not written by DeltaMQ")
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
            facts = {k.decode(): v.decode() for k, v in (file.schema_arrow.metadata or {}).items()}
        if facts["mq.version"] != str(version):
            raise Corrupt(f"{key}: is the checkpoint of version {facts['mq.version']}; the file was moved")
        return _checkpoint(table, version, facts["mq.batch"], key)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{key}: the checkpoint cannot be read: {error}") from error


def _checkpoint(table: pa.Table, version: int, batch_id: str, source: str) -> LogCheckpoint:
    adds = [dict(a) for a in table.column("add").drop_null().to_pylist()]
    files = [data_file(a["path"], a["size"], a["modificationTime"], a["stats"], dict(a["tags"])) for a in adds]
    txns = [(t["appId"], t["version"]) for t in table.column("txn").drop_null().to_pylist()]
    ends = [value for app_id, value in txns if app_id == OFFSET_APP_ID]
    fences = [fence for fence in map(fence_of, *zip(*txns, strict=True)) if fence is not None]
    metadata = table.column("metaData").drop_null().to_pylist()[0]
    metadata["configuration"] = dict(metadata["configuration"])
    metadata["format"]["options"] = dict(metadata["format"]["options"] or [])
    if metadata["description"] is None:
        del metadata["description"]
    return LogCheckpoint(
        version=version,
        batch_id=batch_id,
        end_offset=ends[0],
        files=files,
        metadata=metadata,
        fences=dict(fences),
        writer_features=writer_features(table.column("protocol").drop_null().to_pylist()[0], source),
    )
