"""Delta's commit files: how DeltaMQ writes, reads and verifies them.

A commit is a file of JSON lines. DeltaMQ's commits carry, in `commitInfo.tags`, the version they were written for, the
id of their batch, the producers' requests they hold, and a checksum of the whole file and the table's id: a file with a
flipped bit, a cut or empty file, or a file of another table is `Corrupt`, never an empty commit (SPEC RELY-4).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import Part, part_from_json, part_to_json
from deltamq.tables.delta.foreign import OUR_ENGINE, foreign_commit
from deltamq.tables.delta.protocol import MESSAGE_FEATURES, MESSAGE_PROTOCOL, writer_features

#: The `txn` application whose version is the partition's end offset.
OFFSET_APP_ID: Final = "mq.offset"
#: Prefix of the `txn` application of a fence; the transaction's version is its epoch (see `tables.log.fences`).
FENCE_APP_PREFIX: Final = "mq.fence."
ENGINE: Final = f"{OUR_ENGINE}0.1.0"
#: The operation of a commit that replaces files by others without the content of some rows (SPEC ERASE-1).
ERASE: Final = "ERASE"
_NO_CRC: Final = b"--------"
#: The bytes before a commit's checksum. No user's text can contain them: quotes inside JSON strings are escaped.
_CRC_MARK: Final = b'"mq.crc":"'
_UNSEALED: Final = _CRC_MARK + _NO_CRC


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One live parquet file, which holds the offsets `[start, start + count)`.

    `crc` holds one hexadecimal CRC-32 for each row group and one for the footer, joined by commas: together they cover
    every byte of the file.
    """

    path: str
    size: int
    start: int
    count: int
    modified_ms: int
    append_min_us: int
    append_max_us: int
    stats: str
    crc: str

    @property
    def end(self) -> int:
        """First offset after this file."""
        return self.start + self.count


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed commit file."""

    version: int
    batch_id: str
    adds: tuple[DataFile, ...] = ()
    removes: tuple[str, ...] = ()
    end_offset: int | None = None
    parts: tuple[Part, ...] = ()
    flushed: bool = True
    metadata: dict[str, object] | None = None
    #: Name and epoch of each fence that the commit puts up.
    fences: tuple[tuple[str, int], ...] = ()
    #: The table's writer features from this commit on; None if it does not say.
    writer_features: frozenset[str] | None = None
    #: The other engine that made the commit, with operation and time; empty if it is ours.
    author: str = ""
    #: Whether rows of the removed files lost their content: what memory has of these rows is void.
    erases: bool = False


class NewCommit(NamedTuple):
    """A commit file that is not stored yet, and what `parse_commit` would read from it."""

    data: bytes
    commit: Commit

    def check(self, version: int, end_offset: int) -> int:
        """Assert that this may be put as `version` of a log that ends at `end_offset`; return where it ends then.

        What is in the log stays there: a fault of ours must stop before that, also one that no reader would see.
        """
        commit, end = self.commit, end_offset
        assert commit.version == version, "a commit is of the version after the newest one"
        for file in commit.adds if commit.end_offset is not None else ():
            assert file.start == end, "an append begins where the log ends"
            assert file.crc.encode() in self.data, "a commit has the checksums of its files"
            end = file.end
        assert commit.end_offset in (None, end), "a commit ends where its rows do"
        assert self.data.endswith(b"\n") and _UNSEALED not in self.data, "a commit is whole, with its checksum"
        return end


class _Add(msgspec.Struct):
    path: str
    size: int
    modificationTime: int
    stats: str = ""
    tags: dict[str, str] | None = None


class _Remove(msgspec.Struct):
    path: str


class _Txn(msgspec.Struct):
    appId: str
    version: int


class _Info(msgspec.Struct):
    tags: dict[str, str] = {}
    operation: str = ""


class _Line(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Txn | None = None
    metaData: dict[str, object] | None = None
    protocol: dict[str, object] | None = None
    commitInfo: _Info | None = None


class _Stats(msgspec.Struct):
    numRecords: int
    minValues: dict[str, object]
    maxValues: dict[str, object]


_lines = msgspec.json.Decoder(_Line)
_stats = msgspec.json.Decoder(_Stats)
_encode = msgspec.json.Encoder().encode


def commit_name(version: int) -> str:
    """Return the file name of a commit in `_delta_log`."""
    return f"{version:020d}.json"


def _finish(table_id: str, info: dict[str, object], lines: Sequence[object], tags: dict[str, str]) -> bytes:
    tags["mq.crc"] = _NO_CRC.decode()
    head = {"commitInfo": {**info, "engineInfo": ENGINE, "tags": tags}}
    raw = b"\n".join(_encode(line) for line in (head, *lines)) + b"\n"
    return _with_crc(raw, _checksum(raw, table_id))


def _checksum(raw: bytes, table_id: str) -> bytes:
    return b"%08x" % zlib.crc32(raw, zlib.crc32(table_id.encode()))


def _with_crc(raw: bytes, crc: bytes) -> bytes:
    before, mark, after = raw.partition(_CRC_MARK)
    return before + mark + crc + after[len(_NO_CRC) :]


def file_action(file: DataFile, *, data_change: bool) -> dict[str, object]:
    """Return the `add` action of a file, as it is written in commits and checkpoints."""
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modified_ms,
        "dataChange": data_change,
        "stats": file.stats,
        "tags": {
            "mq.crc": file.crc,
            "mq.append_us": f"{file.append_min_us},{file.append_max_us}",
        },
    }


def encode_create(
    *,
    table_id: str,
    name: str,
    schema: str,
    configuration: Mapping[str, str],
    protocol: Mapping[str, object],
    now_ms: int,
    transactions: Mapping[str, int],
) -> bytes:
    """Return version 0 of a table, which creates it; `schema` is Delta's JSON."""
    metadata = {
        "id": table_id,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now_ms,
    }
    info = {"timestamp": now_ms, "operation": "CREATE TABLE", "operationParameters": {}}
    lines: list[dict[str, object]] = [{"protocol": protocol}, {"metaData": metadata}]
    lines += [{"txn": {"appId": app, "version": at, "lastUpdated": now_ms}} for app, at in transactions.items()]
    return _finish(table_id, info, lines, {"mq.batch": table_id, "mq.version": "0"})


def encode_guard(
    *, table_id: str, version: int, batch_id: str, metadata: dict[str, object], flushed: bool, now_ms: int
) -> NewCommit:
    """Return the commit that upgrades an older table to the present protocol, with this metadata."""
    info = {"timestamp": now_ms, "operation": "UPGRADE PROTOCOL", "operationParameters": {}, "isBlindAppend": False}
    lines = [{"protocol": MESSAGE_PROTOCOL}, {"metaData": metadata}]
    tags = {"mq.batch": batch_id, "mq.version": str(version)} | ({} if flushed else {"mq.flush": "async"})
    return NewCommit(
        _finish(table_id, info, lines, tags),
        Commit(
            version=version,
            batch_id=batch_id,
            metadata=metadata,
            writer_features=MESSAGE_FEATURES,
            flushed=flushed,
        ),
    )


def encode_append(
    *,
    table_id: str,
    version: int,
    batch_id: str,
    file: DataFile,
    parts: Sequence[Part],
    flushed: bool,
    now_ms: int,
    metadata: dict[str, object] | None = None,
) -> NewCommit:
    """Return the commit that appends `file` and moves the end offset to its end.

    `metadata` replaces the table's, if the file has columns that it lacks (SPEC TYPE-1).
    """
    tags = {"mq.batch": batch_id, "mq.version": str(version)}
    if parts:
        tags["mq.parts"] = _encode([part_to_json(p) for p in parts]).decode()
    if not flushed:
        tags["mq.flush"] = "async"
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
    }
    txn = {"appId": OFFSET_APP_ID, "version": file.end, "lastUpdated": now_ms}
    lines: list[object] = [{"txn": txn}, {"add": file_action(file, data_change=True)}]
    if metadata is not None:
        lines.append({"metaData": metadata})
    return NewCommit(
        _finish(table_id, info, lines, tags),
        Commit(
            version=version,
            batch_id=batch_id,
            adds=(file,),
            end_offset=file.end,
            parts=tuple(parts),
            flushed=flushed,
            metadata=metadata,
        ),
    )


def encode_rewrite(
    *,
    table_id: str,
    version: int,
    batch_id: str,
    operation: str,
    adds: Sequence[DataFile],
    removes: Sequence[DataFile],
    data_change: bool,
    now_ms: int,
) -> NewCommit:
    """Return a commit that rearranges files (`data_change=False`), erases, or removes old ones; the end stays."""
    info = {"timestamp": now_ms, "operation": operation, "operationParameters": {}, "isBlindAppend": False}
    lines: list[object] = [
        {
            "remove": {
                "path": file.path,
                "deletionTimestamp": now_ms,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.size,
            }
        }
        for file in removes
    ]
    lines += [{"add": file_action(file, data_change=data_change)} for file in adds]
    return NewCommit(
        _finish(table_id, info, lines, {"mq.batch": batch_id, "mq.version": str(version)}),
        Commit(
            version=version,
            batch_id=batch_id,
            adds=tuple(adds),
            removes=tuple(file.path for file in removes),
            erases=operation == ERASE,
        ),
    )


def encode_fence(*, table_id: str, version: int, batch_id: str, name: str, epoch: int, now_ms: int) -> NewCommit:
    """Return a commit that only puts up a fence: neither rows nor the end offset change."""
    info = {
        "timestamp": now_ms,
        "operation": "FENCE",
        "operationParameters": {"name": name, "epoch": str(epoch)},
        "isBlindAppend": False,
    }
    txn = {"appId": f"{FENCE_APP_PREFIX}{name}", "version": epoch, "lastUpdated": now_ms}
    return NewCommit(
        _finish(table_id, info, [{"txn": txn}], {"mq.batch": batch_id, "mq.version": str(version)}),
        Commit(version=version, batch_id=batch_id, fences=((name, epoch),)),
    )


def fence_of(app_id: str, version: int) -> tuple[str, int] | None:
    """Return the name and epoch of the fence that this `txn` puts up; None if it puts up none."""
    name = app_id.removeprefix(FENCE_APP_PREFIX)
    return (name, version) if name != app_id else None


def data_file(path: str, size: int, modified_ms: int, stats: str, tags: dict[str, str]) -> DataFile:
    """Return the live file that an `add` action describes; raise `Corrupt` if its facts disagree (SPEC RELY-4)."""
    try:
        facts = _stats.decode(stats)
        low, high = facts.minValues["offset"], facts.maxValues["offset"]
        append_min, append_max = (int(t) for t in tags["mq.append_us"].split(","))
        crc = tags["mq.crc"]
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise Corrupt(f"{path}: the add action has no usable statistics: {error}") from error
    if not isinstance(low, int) or not isinstance(high, int) or high - low + 1 != facts.numRecords or low < 0:
        raise Corrupt(f"{path}: offsets {low}..{high} do not hold {facts.numRecords} records")
    return DataFile(
        path=path,
        size=size,
        start=low,
        count=facts.numRecords,
        modified_ms=modified_ms,
        append_min_us=append_min,
        append_max_us=append_max,
        stats=stats,
        crc=crc,
    )


def parse_commit(raw: pa.Buffer | bytes, *, table_id: str | None, version: int, source: str) -> Commit:
    """Parse a commit file and check that it is complete and this table's; `table_id` is None for version 0.

    Raises
    ------
    Corrupt
        The file is empty, cut, altered, or written for another version or table; the message names `source`.
    ForeignCommit
        Another engine wrote it, and it changes more than readers may ignore (`tables.delta.foreign`).
    Unavailable
        `table_newer`: from here on the table has a reader feature that this release does not know.
    """
    text = bytes(raw)
    try:
        return _parse_ours(text, table_id=table_id, version=version, source=source)
    except Corrupt:
        foreign = foreign_commit(text, source)
        if foreign is None:
            raise
    return Commit(version=version, batch_id=foreign.batch_id, metadata=foreign.metadata, author=foreign.author)


def _parse_ours(text: bytes, *, table_id: str | None, version: int, source: str) -> Commit:
    if not text.endswith(b"\n"):
        raise Corrupt(f"{source}: the commit file is empty or cut off ({len(text)} bytes)")
    try:
        lines = _lines.decode_lines(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{source}: the commit file is not a commit of DeltaMQ: {error}") from error
    tags = lines[0].commitInfo.tags if lines and lines[0].commitInfo else {}
    if table_id is None:
        table_id = next((str(line.metaData.get("id")) for line in lines if line.metaData), "")
    _check_whole(text, tags, table_id=table_id, version=version, source=source)
    try:
        return _commit(lines, tags, version=version, source=source)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AssertionError) as error:
        raise Corrupt(f"{source}: the commit file cannot be parsed: {error!r}") from error


def _check_whole(text: bytes, tags: dict[str, str], *, table_id: str, version: int, source: str) -> None:
    crc = tags.get("mq.crc", "").encode()
    if len(crc) != len(_NO_CRC):
        raise Corrupt(f"{source}: the checksum is missing; the file was altered, or not written by DeltaMQ")
    if _checksum(_with_crc(text, _NO_CRC), table_id) != crc:
        raise Corrupt(f"{source}: checksum does not match; the file was altered, or belongs to another table")
    if tags.get("mq.version") != str(version):
        raise Corrupt(f"{source}: holds version {tags.get('mq.version')}; the file was moved")


def _commit(lines: Sequence[_Line], tags: dict[str, str], *, version: int, source: str) -> Commit:
    adds = [line.add for line in lines if line.add]
    txns = [line.txn for line in lines if line.txn]
    ends = [txn.version for txn in txns if txn.appId == OFFSET_APP_ID]
    fences = [fence_of(txn.appId, txn.version) for txn in txns if txn.appId != OFFSET_APP_ID]
    return Commit(
        version=version,
        batch_id=tags["mq.batch"],
        adds=tuple(data_file(a.path, a.size, a.modificationTime, a.stats, a.tags or {}) for a in adds),
        removes=tuple(line.remove.path for line in lines if line.remove),
        end_offset=ends[-1] if ends else None,
        parts=tuple(part_from_json(p) for p in msgspec.json.decode(tags.get("mq.parts", "[]"))),
        flushed=tags.get("mq.flush") != "async",
        metadata=next((line.metaData for line in lines if line.metaData), None),
        fences=tuple(fence for fence in fences if fence is not None),
        writer_features=next((writer_features(line.protocol, source) for line in lines if line.protocol), None),
        erases=lines[0].commitInfo is not None and lines[0].commitInfo.operation == ERASE,
    )
