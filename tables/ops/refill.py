"""A log whose commits are missing or damaged, put together again from its data files (SPEC RELY-9).

    commits   0 1 2 3 . 5 6 7        the commit 4 is gone; the commits behind it are whole
    files     [0, 9) [9, 14) ?  [15, 21) ...    a file of the folder that no commit names holds [14, 15)

A data file says which offsets it holds, has the requests of its producers in its footer, and every page of it has a
checksum. So what a missing commit said about rows can be found again, as long as one file, and one only, fills each
gap. Nothing behind the newest commit shows how far it went: it is refilled only while its damaged file is there.

A commit that put up a fence has no rows, and no end offset. So missing commits behind the last known end offset may
have had rows: a file that begins there is taken, although it may be one that lost its race, because what was
acknowledged must not be lost. Fences are put up again by the metadata (`tables.queue.meta_fences`).

A missing commit may have widened a typed table: its columns are found again in the files (SPEC TYPE-40).

A power cut leaves such a log, too: commits at its end that were not synced may be there while their data is not. Then
nothing is put together again, so that no damaged file becomes a part of the log; the repair is a cut.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import Commit, DataFile, commit_name
from deltamq.tables.delta.checkpoint import LogCheckpoint
from deltamq.tables.delta.described_file import described_file
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import Snapshot, log_versions, read_commit
from deltamq.tables.paths import LOG_FOLDER, start_of_data_file
from deltamq.tables.store.store import FileMissing, Store
from deltamq.tables.typed_row import delta_json_of, joined, row_schema, schema_of, value_type

_FENCE: Final = b'"operation":"FENCE"'
_CACHE_BYTES: Final = 1


class Refill(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a log as a checkpoint, and the versions whose commits it stands for."""

    checkpoint: LogCheckpoint
    missing: tuple[int, ...]
    #: Files that no readable commit names.
    unnamed: tuple[DataFile, ...]
    #: The offsets below this one had files that are gone: retention removed them, or they are lost.
    begins_at: int


def find_refill(store: Store, folder: str, good: Snapshot) -> Refill | None:
    """Return the state behind the last consistent one; None if the files leave a doubt."""
    listed = log_versions(store, folder)[0]
    newest = max([good.version, *listed])
    commits = {v: commit_if_whole(store, folder, v, good.table_id) for v in range(good.version + 1, newest + 1)}
    missing = tuple(version for version, commit in commits.items() if commit is None)
    if not missing:
        return None
    readable = [commit for commit in commits.values() if commit is not None]
    if any(commit.author for commit in readable):
        return None
    if _has_torn_tail(store, folder, good, readable):
        return None
    files = _Files(store, folder, good, readable)
    ended = max([good.version, *(commit.version for commit in readable if commit.end_offset is not None)])
    behind = [version for version in missing if version > ended]
    with_rows = sum(_may_have_rows(store, folder, version) for version in behind)
    try:
        cover = files.cover(good.min_offset, _end(good, readable), least=with_rows, most=len(behind))
    except Corrupt:
        return None
    end = cover[-1].end if cover else good.end_offset
    last = commits[newest]
    unnamed = tuple(file for file in cover if file.path not in files.named)
    state = replace(
        good.checkpoint(),
        metadata=_widened(store, folder, _metadata(good, readable), unnamed),
        version=newest,
        batch_id=f"refill-{uuid.uuid4().hex}" if last is None else last.batch_id,
        end_offset=end,
        files=cover,
        fences=_fences(good, readable),
        writer_features=good.writer_features.union(*(commit.writer_features or () for commit in readable)),
    )
    return Refill(
        checkpoint=state,
        missing=missing,
        unnamed=unnamed,
        begins_at=cover[0].start if cover else end,
    )


def _metadata(good: Snapshot, commits: list[Commit]) -> Snapshot:
    """Return the last consistent state with the newest metadata that a readable commit has."""
    newest = next((commit.metadata for commit in reversed(commits) if commit.metadata is not None), good.metadata)
    return replace(good, metadata=newest)


def _widened(store: Store, folder: str, known: Snapshot, files: Sequence[DataFile]) -> dict[str, object]:
    """Return a table's metadata with room for the typed columns of files whose commits are gone."""
    kind, rendered = value_type(schema_of(known.schema_json)), known.is_rendered
    before = kind, rendered
    for file in files:
        data = pa.BufferReader(store.read(f"{folder}/{file.path}"))
        more = value_type(pq.read_schema(data))
        if more is not None:
            kind = joined(more if kind is None else kind, more)
            bodies = pq.read_table(data, columns=["body"]).column(0)
            rendered = rendered or bodies.null_count > 0
    if kind is None or (kind, rendered) == before:
        return known.metadata
    return known.with_schema(delta_json_of(row_schema(kind)), rendered=rendered)


def commit_if_whole(store: Store, folder: str, version: int, table_id: str) -> Commit | None:
    """Return a commit; None if it is gone or damaged."""
    try:
        return read_commit(store, folder, version, table_id)
    except (Corrupt, FileMissing):
        return None


def _has_torn_tail(store: Store, folder: str, good: Snapshot, commits: list[Commit]) -> bool:
    """Return whether unsynced data is damaged or gone: that of all commits behind the last synced one.

    Those up to the last consistent state are among them: a cut may take the data of a commit, and a later commit.
    """
    before = range(good.version, max(good.checkpoint_version, 0), -1)
    consistent = (commit_if_whole(store, folder, version, good.table_id) for version in before)
    newest_first = itertools.chain(reversed(commits), (commit for commit in consistent if commit is not None))
    tail = list(itertools.takewhile(lambda commit: not commit.flushed, newest_first))
    removed = {path for commit in tail for path in commit.removes}
    return is_damaged(store, folder, (file for commit in tail for file in commit.adds if file.path not in removed))


def is_damaged(store: Store, folder: str, files: Iterable[DataFile]) -> bool:
    """Return whether one of these data files is gone, or not as its checksums say."""
    reader = FileReader(store, folder, RowCache(_CACHE_BYTES))
    for file in files:
        try:
            reader.verify(file)
        except Corrupt:
            return True
    return False


def _may_have_rows(store: Store, folder: str, version: int) -> bool:
    """Return whether a damaged commit is there that does not say that it only puts up a fence."""
    try:
        return _FENCE not in store.read(f"{folder}/{LOG_FOLDER}/{commit_name(version)}").to_pybytes()
    except FileMissing:
        return False


def _end(good: Snapshot, commits: list[Commit]) -> int:
    return max([good.end_offset, *(c.end_offset for c in commits if c.end_offset is not None)])


def _fences(good: Snapshot, commits: list[Commit]) -> Mapping[str, int]:
    fences = dict(good.fences)
    for name, epoch in itertools.chain.from_iterable(commit.fences for commit in commits):
        fences[name] = max(epoch, fences.get(name, 0))
    return fences


class _Files:
    """The files that may hold a part of the log, whether a commit names them or not."""

    def __init__(self, store: Store, folder: str, good: Snapshot, commits: list[Commit]) -> None:
        self._store = store
        self._folder = folder
        sizes = {entry.name: entry.size for entry in store.entries(folder)}
        known = {file.path: file for file in (*good.files, *(f for commit in commits for f in commit.adds))}
        #: Every file that a readable commit adds or removes.
        self.named = {*known, *(path for commit in commits for path in commit.removes)}
        removed = {path for commit in commits for path in commit.removes}
        kept = [file for file in known.values() if file.path not in removed]
        self._live = {file.start: file for file in kept if sizes.get(file.path) == file.size}
        self._gone = {file.start: file for file in kept if file.path not in sizes}
        self._unnamed: dict[int, list[str]] = {}
        for name in sorted(sizes.keys() - self.named):
            with_start = _start(name)
            if with_start is not None:
                self._unnamed.setdefault(with_start, []).append(name)

    def cover(self, start: int, end: int, *, least: int, most: int) -> list[DataFile]:
        """Return files that lie end to end, up to `end`, and from `least` to `most` more.

        They begin at `start`, or behind the oldest files if these are gone: their removal may be the missing commit.

        Raises
        ------
        Corrupt
            There are none, or there is a doubt.
        """
        chosen = self._leading_to(end)
        at = start if start in chosen else self._after_gone(start)
        cover: list[DataFile] = []
        while at < end:
            cover.append(self._at(chosen, at))
            at = cover[-1].end
        for number in range(most):
            if number >= least and at not in self._unnamed:
                break
            cover.append(self._at({at: self._best(at, lambda file: True)}, at))
            at = cover[-1].end
        return cover

    def _after_gone(self, offset: int) -> int:
        while (file := self._gone.get(offset)) is not None:
            offset = file.end
        return offset

    def _at(self, chosen: Mapping[int, DataFile | None], offset: int) -> DataFile:
        file = chosen.get(offset)
        if file is None:
            raise Corrupt(f"{self._folder}: no file, or none without a doubt, holds offset {offset}")
        return file

    def _leading_to(self, end: int) -> dict[int, DataFile]:
        """Return by first offset the file from which others lead to `end`: a named one, or else the longest."""
        leading: dict[int, DataFile] = {}

        def leads(file: DataFile) -> bool:
            return file.end == end or file.end in leading

        for start in sorted({*self._live, *self._unnamed}, reverse=True):
            named = self._live.get(start)
            file = named if named is not None and leads(named) else self._best(start, leads)
            if file is not None:
                leading[start] = file
        return leading

    def _best(self, start: int, leads: Callable[[DataFile], bool]) -> DataFile | None:
        """Return the longest unnamed file that begins here; None if there is none, or a doubt."""
        files = sorted(filter(leads, self._described(start)), key=lambda file: file.count)
        alike = all(self._same_rows(less, more) for less, more in itertools.pairwise(files))
        return files[-1] if files and alike else None

    def _described(self, start: int) -> Iterator[DataFile]:
        for name in self._unnamed.get(start, ()):
            try:
                yield described_file(name, self._store.read(f"{self._folder}/{name}"))
            except (Corrupt, FileMissing):
                continue

    def _same_rows(self, less: DataFile, more: DataFile) -> bool:
        ids = [self._ids(file).slice(0, less.count) for file in (less, more)]
        return bool(ids[0].equals(ids[1]))

    def _ids(self, file: DataFile) -> pa.ChunkedArray:
        data = self._store.read(f"{self._folder}/{file.path}")
        return pq.read_table(pa.BufferReader(data), columns=["message_id"]).column(0).combine_chunks()


def _start(name: str) -> int | None:
    try:
        return start_of_data_file(name)
    except ValueError:
        return None
