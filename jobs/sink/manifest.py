"""The manifest of a batch: the staged rows that make up the batch, and the requests that append them.

    <warehouse>/jobs/sink/<name>/00000000000000000007.manifest      put if absent: later runs use the one that exists
    <warehouse>/jobs/sink/<name>/00000000000000000007.done          the whole batch is appended: its contents
    <warehouse>/jobs/sink/<name>/00000000000000000007-<task>-<uuid>-0.arrow   staged rows

A batch that runs again may have its rows in another order, or in other tasks, because a shuffle without an order
distributes them differently each time. Its requests must not be made of such rows: some rows of the first run may be
stored. So the first manifest of a batch is final. The same rows then make the same requests, which partitions recognize
as duplicates. `done` is kept as well, because partitions forget producers after a day. A repeat is compared with the
manifest, or with `done`, which is kept of 128 batches; other files of batches before the last one are swept.

An identity belongs to one life of a topic (SPEC SPARK-16): the name of a write to one topic ends with a part of the
topic's id, and `done` of a batch for several topics has all their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from deltamq.jobs.sink.contents import Contents, joined
from deltamq.jobs.sink.staging import STAGED_SUFFIX, Section, StagedFile, StagedRows
from deltamq.mq.errors import Corrupt, Unknown
from deltamq.mq.limits import MIB
from deltamq.mq.names import encode_path
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.store import FileMissing, Store

FOLDER: Final = "jobs/sink"
#: Bytes of one request, which a thread holds in memory; far below a commit's limit.
REQUEST_BYTES_MAX: Final = 32 * MIB
REQUEST_ROWS_MAX: Final = 500_000
#: Time after which the files of a batch write are swept, if none has changed: staged rows of a killed write, and
#: `done` of a named write, which is not repeated until then.
_FORGOTTEN_MS: Final = 30 * 24 * 3600 * 1000
_WRITES: Final = ("write-", "key-", "id-")
_FORMAT: Final = 1
#: Batches whose contents are kept: Spark itself keeps the plans of a hundred, so older backups plan their batches
#: again.
_DONE_KEPT: Final = 128
#: Hexadecimal digits of a topic's id that identify one of its lives; a producer's id has room for no more.
_LIFE_DIGITS: Final = 16


def name_in_life(name: str, topic_id: str) -> str:
    """Return the name that a query or write has in one life of its topic."""
    return f"{name}@{topic_id.replace('-', '')[:_LIFE_DIGITS]}"


class SinkRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request of the sink's producer `number`: these sections, in this order, for one partition."""

    number: int
    topic: str
    partition: str
    waits: bool
    rows: int
    sections: list[Section]

    @property
    def tokens(self) -> set[str]:
        """The placements by which the rows were routed."""
        return {section.token for section in self.sections}

    @property
    def queue(self) -> str:
        """The logical queue that the partition led when the rows were staged; empty in a plain topic."""
        return self.sections[0].queue


class Manifest(msgspec.Struct, frozen=True):
    """The content of a batch."""

    name: str
    batch: int
    created_ms: int
    files: list[StagedFile]
    requests: list[SinkRequest]
    format: int = _FORMAT

    @property
    def contents(self) -> Contents:
        """The contents of the batch."""
        return joined(section.content for request in self.requests for section in request.sections)

    def producer_id(self, request: SinkRequest) -> str:
        """Return the id of a request's producer; the sequence number is the batch."""
        return f"sink/{self.name}/{request.number}"


_decode: Final = msgspec.msgpack.Decoder(Manifest)
_decode_done: Final = msgspec.msgpack.Decoder(Contents)


def planned(name: str, batch: int, created_ms: int, staged: Sequence[StagedRows]) -> Manifest:
    """Return the manifest of staged rows: few requests for each partition, with its rows in the order of the tasks."""
    files: list[StagedFile] = []
    by_target: dict[tuple[str, str, bool], list[Section]] = {}
    for task in sorted(staged, key=lambda rows: rows.task):
        for section in task.sections:
            moved = msgspec.structs.replace(section, file=section.file + len(files))
            by_target.setdefault((moved.topic, moved.partition, moved.waits), []).append(moved)
        files += task.files
    requests: list[SinkRequest] = []
    for (topic, partition, waits), sections in sorted(by_target.items()):
        for run in _runs(sections):
            rows = sum(section.rows for section in run)
            requests.append(SinkRequest(len(requests), topic, partition, waits, rows, run))
    return Manifest(name, batch, created_ms, files, requests)


def _runs(sections: Sequence[Section]) -> list[list[Section]]:
    runs: list[list[Section]] = []
    nbytes = rows = 0
    for section in sections:
        if not runs or nbytes + section.length > REQUEST_BYTES_MAX or rows + section.rows > REQUEST_ROWS_MAX:
            runs.append([])
            nbytes = rows = 0
        runs[-1].append(section)
        nbytes += section.length
        rows += section.rows
    return runs


class Manifests:
    """The manifests of one query or batch write."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.folder = f"{FOLDER}/{encode_path(name)}"

    def last_done(self) -> int:
        """Return the number of the last completely appended batch, -1 if there is none."""
        done = [name for name in self._store.names(self.folder) if name.endswith(".done")]
        return max((int(name[:20]) for name in done), default=-1)

    def done(self, batch: int) -> Contents | None:
        """Return the contents of a completely appended batch; None if it is not done, or forgotten."""
        key = self._key(batch, "done")
        try:
            return _decode_done.decode(bytes(self._store.read(key)))
        except FileMissing:
            return None
        except msgspec.DecodeError as error:
            raise Corrupt(f"{key} is damaged: {error}", code="manifest_corrupt") from error

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch; None if it has none.

        Raises
        ------
        Corrupt
            The manifest is damaged, or was written by a later version of DeltaMQ.
        """
        key = self._key(batch, "manifest")
        try:
            data = bytes(self._store.read(key))
        except FileMissing:
            return None
        try:
            manifest = _decode.decode(data)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{key} is damaged: {error}", code="manifest_corrupt") from error
        if manifest.format > _FORMAT:
            raise Corrupt(f"{key} was written by a later version (format {manifest.format})", code="manifest_format")
        return manifest

    def put(self, manifest: Manifest) -> tuple[Manifest, bool]:
        """Store the manifest unless its batch has one; return the final one, and whether this call stored it.

        Raises
        ------
        Unknown
            Which manifest is stored is not known; a repeated call is safe.
        """
        data = msgspec.msgpack.encode(manifest)
        failpoint("sink.before_manifest")
        try:
            created = self._store.put_if_absent(self._key(manifest.batch, "manifest"), data, durable=True)
        except Unknown:
            created = False  # the read below shows the outcome
        failpoint("sink.after_manifest")
        if created:
            return manifest, True
        stored = self.read(manifest.batch)
        if stored is None:
            raise Unknown(f"the manifest of batch {manifest.batch} may or may not be stored: run the query again")
        return stored, False

    def finish(self, batch: int, contents: Contents) -> None:
        """Mark the batch as appended, and sweep files that are no longer needed."""
        failpoint("sink.before_done")
        mine = f"{batch:020d}."
        names = [name for name in self._store.names(self.folder) if name[:20].isdigit() and int(name[:20]) <= batch]
        kept = {f"{number:020d}.done" for number in range(max(0, batch - _DONE_KEPT + 1), batch)}
        unneeded = [name for name in names if not name.startswith(mine) and name not in kept]
        # A power cut may take the mark: then the partitions' memory of producers, later their rows, show the same. But
        # it must not take the mark and leave staged rows deleted: appends in `async` mode may be lost with it.
        has_staged = any(name.endswith(STAGED_SUFFIX) for name in unneeded)
        self._store.put(self._key(batch, "done"), msgspec.msgpack.encode(contents), durable=has_staged)
        failpoint("sink.after_done")
        for name in unneeded:
            self._store.delete(f"{self.folder}/{name}")

    def _key(self, batch: int, kind: str) -> str:
        return f"{self.folder}/{batch:020d}.{kind}"


def sweep_writes(store: Store, now_ms: int) -> None:
    """Sweep old files of batch writes; files of queries are kept, since a query may be stopped for months."""
    for folder in store.folders(FOLDER):
        if folder.startswith(_WRITES):
            changed_ms = max((entry.modified_ms for entry in store.entries(f"{FOLDER}/{folder}")), default=now_ms)
            if now_ms - changed_ms > _FORGOTTEN_MS:
                store.delete_tree(f"{FOLDER}/{folder}")
