"""Requests to erase keys, as files of the warehouse (SPEC ERASE-1).

<warehouse>/jobs/erase/open/<id>.json     a request under way, with its keys
<warehouse>/jobs/erase/done/<id>.json     its receipt, without them
<warehouse>/jobs/erase/places/<id>-*      offsets and times of its messages, by which exports have their rows

Only the open request has the keys. It is one file, which is replaced at each step and at last deleted, so neither the
metadata, whose events and snapshots live on, nor the audit ever has them.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, Literal

import msgspec
import pyarrow as pa

from deltamq.mq.errors import NotFound
from deltamq.tables.failpoints import failpoint
from deltamq.tables.ops.stored_json import names_in, read_stored
from deltamq.tables.store.store import Store

_OPEN: Final = "jobs/erase/open"
_DONE: Final = "jobs/erase/done"
_PLACES: Final = "jobs/erase/places"
_CLOCK: Final = "jobs/erase/clock"
_ID: Final = re.compile(r"[0-9a-f]{32}")

State = Literal["waiting", "erased", "gone"]


class ErasedExport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request has done in the tables of one export."""

    name: str
    rows: int = 0
    #: When no file of its tables has the content any more: as planned, or as it was.
    gone_ms: int | None = None
    #: Why its tables may still have the content; empty if they have not.
    failure: str = ""
    #: The last batch that may have read messages before they were erased.
    batch: int = -1
    #: How long its tables keep old files and commits.
    keep_ms: int = 0
    #: The checkpoint from which on the log of each table is free of values.
    logs: dict[str, int] = {}


class Erasure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, and how far it is.

    `waiting`: nothing is done yet. `erased`: no reader sees the content any more, and old files still have it.
    `gone`: no file of the warehouse has it.
    """

    id: str
    topic: str
    #: Messages that were appended or born until then are erased.
    asked_us: int
    #: The number of the keys, which the receipt keeps.
    count: int
    state: State = "waiting"
    #: Messages of the topic that lost their content, and those of each kind of copies.
    rows: int = 0
    copies: dict[str, int] = {}
    #: The exports of the topic, by their ids.
    exports: dict[str, ErasedExport] = {}
    #: When no file has the content any more: as planned, or as it was.
    gone_ms: int | None = None
    keys: tuple[str, ...] = ()
    #: When a run of the job last found content to erase, in milliseconds: by the boot clock of a machine, and by the
    #: clock of an object store.
    machine: str = ""
    erased_boot_ms: int = 0
    erased_store_ms: int = 0
    #: How long old files and commits are kept from then on.
    keep_ms: int = 0
    #: Files that were replaced, and the log checkpoint from which on each typed partition's log is free of values.
    removed: tuple[str, ...] = ()
    logs: dict[str, int] = {}


_erasure: Final = msgspec.json.Decoder(Erasure)


def ask(store: Store, topic: str, keys: tuple[str, ...], now_us: int) -> Erasure:
    """Store a request durably, and return it."""
    erasure = Erasure(id=uuid.uuid4().hex, topic=topic, asked_us=now_us, count=len(keys), keys=keys)
    replace_open(store, erasure)
    return erasure


def replace_open(store: Store, erasure: Erasure) -> None:
    """Store how far an open request is."""
    store.replace(f"{_OPEN}/{erasure.id}.json", msgspec.json.encode(erasure))


def finish(store: Store, erasure: Erasure) -> None:
    """Put the receipt in the place of an open request that is `gone`; a repeat after a kill finishes the same."""
    receipt = Erasure(
        id=erasure.id,
        topic=erasure.topic,
        asked_us=erasure.asked_us,
        count=erasure.count,
        state="gone",
        rows=erasure.rows,
        copies=erasure.copies,
        exports=erasure.exports,
        gone_ms=erasure.gone_ms,
    )
    # The keys first: a deleted file may be kept for a while, to be written again.
    replace_open(store, receipt)
    failpoint("erase.before_done")
    store.replace(f"{_DONE}/{erasure.id}.json", msgspec.json.encode(receipt))
    failpoint("erase.after_done")
    for key in place_files(store, erasure.id):
        store.delete(key)
    store.delete(f"{_OPEN}/{erasure.id}.json")


def note_places(store: Store, erasure_id: str, places: pa.Buffer) -> None:
    """Store places of a request's messages durably, as a file of parquet."""
    store.replace(f"{_PLACES}/{erasure_id}-{uuid.uuid4().hex}.parquet", places)


def place_files(store: Store, erasure_id: str) -> list[str]:
    """Return the files of places of a request."""
    return [f"{_PLACES}/{name}" for name in store.names(_PLACES) if name.startswith(erasure_id)]


def store_ms(store: Store) -> int:
    """Return the time by the store's own clock in milliseconds, to about a second."""
    store.replace(f"{_CLOCK}/now", b"now")
    (now,) = store.entries(_CLOCK)
    return now.modified_ms


def open_erasures(store: Store) -> list[Erasure]:
    """Return the requests under way, the oldest first."""
    read = (read_stored(store, f"{_OPEN}/{name}.json", _erasure) for name in names_in(store, _OPEN))
    return sorted((erasure for erasure in read if erasure is not None), key=lambda erasure: erasure.asked_us)


def read_erasure(store: Store, erasure_id: str) -> Erasure:
    """Return a request or its receipt; raise `NotFound` (`erasure_not_found`)."""
    folders = (_OPEN, _DONE) if _ID.fullmatch(erasure_id) else ()
    for folder in folders:  # the receipt appears before the request disappears
        erasure = read_stored(store, f"{folder}/{erasure_id}.json", _erasure)
        if erasure is not None:
            return erasure
    raise NotFound(f"there is no erasure {erasure_id!r}", code="erasure_not_found")
