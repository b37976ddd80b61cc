"""The messages of one request for one partition, which wait for a commit, and the callback for their outcome.

Parts of several requests become one commit (`Window`): one bad part fails no other, and each gets its own offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from deltamq.api.wire.rows import ArrowRows, Indexes, Misfits, Rows, to_record_batch
from deltamq.api.wire.steps import PARTITION_FACT, Step, Steps
from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unknown
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, one_batch
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.appender import LONG_BYTES, Ahead, Coming, OnComing
from deltamq.tables.log.batch import Appended
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.settings import Flush
from deltamq.tables.store.calls import StoreCall, Work, on_a_thread
from deltamq.tables.typed.codec import Codec
from deltamq.tables.typed_row import INVALID, INVALID_TYPE

Record = TypeVar("Record")
#: Approximate bytes of a record, for the bounds of a commit.
_RECORD_BYTES: Final = 512


class RecordRows(Generic[Record]):
    """Records that become rows in the commit: of the queue's own logs, or messages as another protocol frames them.

    The commit encodes all waiting records in one call, which costs less than a call for each request. Only records that
    cannot be encoded are refused.
    """

    __slots__ = ("count", "encode", "nbytes", "records")

    def __init__(
        self,
        records: Sequence[Record],
        encode: Callable[[Sequence[Record]], pa.RecordBatch],
        *,
        count: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """`count` is the number of rows, one for each record unless given, and `nbytes` about their size."""
        self.records = records
        self.encode = encode
        self.count = len(records) if count is None else count
        self.nbytes = self.count * _RECORD_BYTES if nbytes is None else nbytes


class PartWaiter(Protocol):
    """The request that waits for the outcome of a part."""

    def part_done(self) -> None:
        """Note that the part has its outcome; called on the event loop, in the order of the parts."""


class PendingRequest:
    """One request that waits for the commits of its parts; used on the event loop only."""

    __slots__ = ("_done", "_left")

    def __init__(self, parts: int, loop: asyncio.AbstractEventLoop) -> None:
        self._left = parts
        self._done: asyncio.Future[None] = loop.create_future()

    def part_done(self) -> None:
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Return when every part has its outcome; parts are committed also if the waiter is cancelled."""
        await self._done


class RequestPart:
    """The messages of one request for one partition, and, once committed, their outcome: `appended` or `error`."""

    __slots__ = (
        "appended",
        "due_s",
        "error",
        "expected_offset",
        "fence_epochs",
        "flush",
        "indexes",
        "messages",
        "misfits",
        "pending",
        "put_s",
        "stamp",
        "steps",
        "window_s",
    )

    def __init__(
        self,
        messages: Rows | ArrowRows | RecordRows[Any],
        pending: PartWaiter,
        flush: Flush,
        *,
        indexes: Indexes | None = None,
        stamp: ProducerStamp | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
        steps: Steps | None = None,
        window_s: float = 0.0,
    ) -> None:
        """Make a part that waits for `window_s` seconds at most for others that share its commit (SPEC SEND-14).

        `fence_epochs` are the epochs of the log's fences that this append knows (see `tables.log.fences`).

        `steps` are those of its request, if that is measured.
        """
        self.messages = messages
        self.pending = pending
        self.flush = flush
        self.indexes = indexes
        self.stamp = stamp
        self.expected_offset = expected_offset
        self.fence_epochs = fence_epochs
        self.steps = steps
        self.window_s = window_s
        #: When it is to be committed at the latest, by the event loop's clock; its queue sets it.
        self.due_s = 0.0
        #: When the part of a measured request was made, by `time.perf_counter`.
        self.put_s = 0.0 if steps is None else time.perf_counter()
        self.appended: Appended | None = None
        self.error: DeltaMQError | None = None
        #: Number of its messages that were stored and did not fit their schema.
        self.misfits = 0


log = logging.getLogger("deltamq.api")


#: All rows of some parts as one batch, and the numbers of rows that belong to each stamp.
_Joined: TypeAlias = "tuple[pa.RecordBatch, list[RowsPart]]"


class Window:
    """Parts that are committed together. Its coroutines await store calls only."""

    __slots__ = ("_ahead", "_codec", "_joined", "is_stored", "parts")

    def __init__(self, parts: list[RequestPart], codec: Callable[[], Codec | None]) -> None:
        """`codec` returns the codec of the partition's rows, or raises why there is none now."""
        self.parts = parts
        self._codec = codec
        self._joined: _Joined | None = None
        self._ahead: Ahead | None = None
        #: Whether `put_ahead` has ended.
        self.is_stored = False

    @property
    def producers(self) -> frozenset[str]:
        """The idempotent producers of the parts."""
        return frozenset(part.stamp.id for part in self.parts if part.stamp is not None)

    async def put_ahead(self, opened: PartitionLog, coming: Coming, on_coming: OnComing) -> None:
        """Store the rows while commits before are under way, if that is possible; `commit` uses them, or does not."""
        if len(_runs(self.parts)) == 1 and self.parts[0].expected_offset is None:
            # an error shows again in `commit`, which knows whom it concerns
            with contextlib.suppress(Exception):
                self._joined = await _joined(self.parts, self._codec)
                self._ahead = await opened.put_ahead(*self._joined, coming, on_coming)
        self.is_stored = True

    def commit(self, opened: PartitionLog, on_coming: OnComing | None = None) -> Work[None]:
        """Commit the parts to a log whose turn the caller has; each part then has its outcome."""
        measured = [part for part in self.parts if part.steps is not None]
        work = self._commit_runs(opened, on_coming)
        return _measured(work, opened, self.parts, measured) if measured else work

    async def _commit_runs(self, opened: PartitionLog, on_coming: OnComing | None) -> None:
        failpoint("batch.before_close")
        *firsts, last = _runs(self.parts)
        for run in firsts:
            await self._commit(opened, run, None)
        await self._commit(opened, last, on_coming)

    async def _commit(self, opened: PartitionLog, parts: list[RequestPart], on_coming: OnComing | None) -> None:
        """Commit all of `parts` at once; if that is refused, each by itself, so that none fails because of another.

        Do the same if their rows cannot be read, whatever the error is: nothing is stored by then.
        """
        joined, ahead = self._joined, self._ahead
        self._joined = self._ahead = None
        try:
            rows, spans = joined or await _joined(parts, self._codec)
        except _SomeMisfit as refused:
            for part, why in refused.errors:
                fail([part], why)
            left = [part for part in parts if part.error is None]
            if left:
                await self._commit(opened, left, on_coming)
            return
        except Exception as error:
            await self._commit_each(opened, parts, error)
            return
        first = parts[0]
        try:
            appended = await opened.append_in_turn(
                rows,
                spans,
                flush=flush_of(parts),
                expected_offset=first.expected_offset,
                fence_epochs=first.fence_epochs,
                ahead=ahead,
                on_coming=on_coming,
            )
        except (Refused, Conflict) as error:
            await self._commit_each(opened, parts, error)
        except Exception as error:
            fail(parts, error)
        else:
            _note(parts, appended)
            _note_misfits(parts, rows)

    async def _commit_each(self, opened: PartitionLog, parts: list[RequestPart], error: Exception) -> None:
        if len(parts) == 1:
            fail(parts, error)
            return
        for part in parts:
            await self._commit(opened, [part], None)


async def _measured(
    work: Work[None], opened: PartitionLog, parts: Sequence[RequestPart], measured: Sequence[RequestPart]
) -> None:
    """Run a commit, and note it with its steps for each request of it that is measured."""
    steps: list[Step] = []
    began_s = time.perf_counter()
    try:
        await _stepwise(work, steps)
    finally:
        facts: dict[str, str | int] = {
            PARTITION_FACT: opened.ref.name,
            "deltamq.commit.version": opened.version,
            "deltamq.commit.requests": len(parts),
            "deltamq.commit.messages": sum(part.messages.count for part in parts),
        }
        for part in measured:
            assert part.steps is not None, "these are the measured ones"
            waited = Step("queue", part.put_s, began_s)
            part.steps.add(Step("commit", part.put_s, time.perf_counter(), [waited, *steps], facts))


@types.coroutine
def _stepwise(work: Work[None], steps: list[Step]) -> Generator[StoreCall[Any], Any, None]:
    """Run a commit, and note when it computed, and when its calls of the store were made."""
    name = "encode"
    go_on = partial(work.send, None)
    while True:
        began_s = time.perf_counter()
        try:
            call = go_on()
        except StopIteration:
            call = None
        finally:
            now_s = time.perf_counter()
            steps.append(Step(name, began_s, now_s))
        if call is None:
            return
        try:
            go_on = partial(work.send, (yield call))
        except Exception as error:
            go_on = partial(work.throw, error)
        steps.append(Step("publish", now_s, time.perf_counter()))
        name = "apply"


def _note(parts: Sequence[RequestPart], appended: Sequence[Appended]) -> None:
    results = iter(appended)
    for stamped, group in groupby(parts, key=lambda p: p.stamp is not None):
        if stamped:
            for part in group:
                part.appended = next(results)
        else:
            _divide(next(results), list(group))


def _note_misfits(parts: Sequence[RequestPart], rows: pa.RecordBatch) -> None:
    column = rows.schema.get_field_index(INVALID)
    if column < 0:
        return
    invalid, at = rows.column(column), 0
    for part in parts:
        count = part.messages.count
        if part.appended is not None and not part.appended.duplicate:
            part.misfits = count - invalid.slice(at, count).null_count
        at += count


def _runs(parts: list[RequestPart]) -> list[list[RequestPart]]:
    """Split parts into runs that are committed together. A part with `expected_offset` is a run of its own.

    Parts with different fence epochs are in different runs, too, since one of them may be refused.
    """
    runs: list[list[RequestPart]] = []
    for part in parts:
        if runs and _go_together(runs[-1][-1], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _go_together(before: RequestPart, after: RequestPart) -> bool:
    same = before.fence_epochs is after.fence_epochs or before.fence_epochs == after.fence_epochs
    return same and before.expected_offset is None and after.expected_offset is None


def flush_of(parts: Sequence[RequestPart]) -> Flush:
    """Return how durable a commit of these parts must be."""
    return Flush.SYNC if any(part.flush is Flush.SYNC for part in parts) else Flush.ASYNC


async def _joined(parts: list[RequestPart], codec: Callable[[], Codec | None]) -> _Joined:
    """Return all rows as one batch, and the numbers of rows that belong to each stamp."""
    is_long = sum(part.messages.nbytes for part in parts) > LONG_BYTES
    join = partial(_join, parts, codec())
    return await on_a_thread(join) if is_long else join()


def _join(parts: list[RequestPart], codec: Codec | None) -> _Joined:
    batches: list[pa.RecordBatch] = []
    for _, group in groupby((p.messages for p in parts), key=_kind):
        batches += _batches(list(group))
    if codec is not None:
        batches = [codec.typed(batch) for batch in batches]
        if codec.rejects:
            _check_fit(parts, batches)
    spans = []
    for stamped, among in groupby(parts, key=lambda p: p.stamp is not None):
        if stamped:
            spans += [RowsPart(p.messages.count, p.stamp) for p in among]
        else:
            spans.append(RowsPart(sum(p.messages.count for p in among)))
    return one_batch(batches), spans


def _kind(messages: Any) -> tuple[type, bool]:
    """What becomes one batch: columns that were made when a request came are kept."""
    return type(messages), isinstance(messages, Rows) and messages.typed is not None


class _SomeMisfit(Exception):
    """Messages do not fit a schema whose topic refuses them."""

    def __init__(self, errors: Sequence[tuple[RequestPart, DeltaMQError]]) -> None:
        super().__init__()
        #: The requests that have some, each with its refusal.
        self.errors = errors


def _check_fit(parts: Sequence[RequestPart], typed: Sequence[pa.RecordBatch]) -> None:
    """Raise `_SomeMisfit` if records do not fit. What other doors bring was checked there, or accepted before."""
    if all(rows.schema.get_field_index(INVALID) < 0 for rows in typed):
        return
    columns = [
        pa.nulls(rows.num_rows, INVALID_TYPE) if (at := rows.schema.get_field_index(INVALID)) < 0 else rows.column(at)
        for rows in typed
    ]
    invalid, start, errors = pa.chunked_array(columns, INVALID_TYPE), 0, []
    for part in parts:
        count = part.messages.count
        of_part = invalid.slice(start, count)
        start += count
        if isinstance(part.messages, RecordRows) and of_part.null_count < count:
            errors.append((part, Misfits(of_part.combine_chunks())))
    if errors:
        raise _SomeMisfit(errors)


def _batches(messages: list[Any]) -> list[pa.RecordBatch]:
    first = messages[0]
    if isinstance(first, ArrowRows):
        return [m.batch for m in messages]
    if isinstance(first, RecordRows):
        return [first.encode([record for m in messages for record in m.records])]
    return [to_record_batch(messages)]


def _divide(whole: Appended, parts: list[RequestPart]) -> None:
    """Give each of several requests without a producer its share of the rows that were appended together."""
    if len(parts) == 1:
        parts[0].appended = whole
        return
    at = 0
    for part in parts:
        count = part.messages.count
        part.appended = Appended(
            base_offset=whole.base_offset + at,
            count=count,
            duplicate=whole.duplicate,
            durable=whole.durable,
            version=whole.version,
            message_ids=whole.message_ids.slice(at, count),
        )
        at += count
    assert at == whole.count, "every row belongs to one request"


def fail(parts: Sequence[RequestPart], error: Exception) -> None:
    """Set `error` on parts without an outcome; an unexpected error becomes `Unknown`: they may have been stored."""
    if not isinstance(error, DeltaMQError):
        log.error("event=commit_failed kind=%s", type(error).__name__, exc_info=error)
        error = Unknown()
    for part in parts:
        if part.appended is None and part.error is None:
            part.error = error
