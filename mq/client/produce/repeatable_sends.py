"""Sends that the caller can repeat, since producer id and sequence are its own: one request, or a long table (SEND-5).

    caller stores (messages, producer id, seq) ──► request ──► answer ──► caller deletes what it stored
                        └──────── after a crash, the same request again: stored once ───────┘

A table is sent chunk by chunk, with progress; an interrupted send can be resumed:

    table   |   chunk 0   |   chunk 1   |   chunk 2   |  ...      each chunk is split by partition, and each
    state       stored        in flight     in flight             part is one request with a sequence of its own

Chunks, routes, producer ids and sequences follow only from the table and the `TableSendState`. A resumed send
therefore repeats the very same requests, and the service stores none of them twice. The chunks in flight stay within
the number of requests that the service remembers for each producer.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from deltamq.mq.client.admin.topic_view import TopicView
from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.messages.message import Message, SentBatch, SentRange
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.executor import Executor, Failing
from deltamq.mq.client.produce.progress_bar import row_bar
from deltamq.mq.client.produce.routers import PartFuture, Parts
from deltamq.mq.client.produce.shared import Shared
from deltamq.mq.client.produce.slices import chunk_of, chunk_starts, split_rows
from deltamq.mq.errors import DeltaMQError, Refused, Unknown
from deltamq.mq.limits import ARROW_MESSAGES_MAX, MIB, PRODUCER_REQUESTS_KEPT
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.routing import Route

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import BatchSpan, SendSpan


class FixedRequests:
    """An owner of executors that neither moves nor reroutes entries, because a repeated request must be the same."""

    def wrong_route(self, executor: Executor, entries: list[Entry], error: DeltaMQError) -> None:
        """Fail `entries`; never called, because an executor that stops on any failure keeps its route."""
        executor.fail(entries, error)

    def another_partition(self, executor: Executor, entries: list[Entry]) -> bool:
        """Return False: messages stay with their partition."""
        return False

    async def batch_sent(self, executor: Executor, *, elsewhere: bool) -> None:
        """Do nothing."""

    def attempt_failed(self, executor: Executor) -> None:
        """Do nothing: any host forwards."""

    def drained(self, executor: Executor) -> None:
        """Do nothing."""


async def send_fixed(
    shared: Shared,
    topic: str,
    messages: Sequence[Message],
    *,
    producer_id: str,
    producer_seq: int,
    deadline: float,
    span: SendSpan | None = None,
) -> PartFuture:
    """Queue all of `messages` as one request with this name; the service chooses the partitions.

    Raises
    ------
    Refused
        The messages name different partitions: they cannot share a request.
    Overloaded
        The producer's buffer is full until `deadline` (of `Shell.now`).
    """
    partition = messages[0].partition
    if any(message.partition != partition for message in messages):
        raise Refused("messages for different partitions cannot share a request", field="partition")
    future: PartFuture = shared.shell.future()
    # Every copy of the request must have the same bytes: a message without a time of its own would get a new one.
    assert all(message.born_time is not None for message in messages), "the caller stores the time with the message"
    size = shared.buffer.fitted(sum(message.size_bytes() for message in messages))
    entry = Entry(
        list(messages), len(messages), size, deadline, [future], named=partition is not None, alone=True, span=span
    )
    executor = Executor(
        topic,
        partition,
        shared,
        FixedRequests(),
        failing=Failing.STOP,
        producer_id=producer_id,
        producer_seq=producer_seq,
    )
    await shared.buffer.take(size, entry.count, deadline=deadline, wait=True)
    executor.put(entry)
    return future


Indexes = NDArray[np.int64]

_CHUNK_BYTES: Final = 16 * MIB
_CHUNKS_IN_FLIGHT_MAX: Final = 3

assert _CHUNKS_IN_FLIGHT_MAX < PRODUCER_REQUESTS_KEPT, "a repeated chunk must still be remembered by the service"


class TableSendState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a table's send: its first `rows_stored` rows are stored. All values are plain, see `to_json`."""

    topic: str
    rows: int
    body_bytes: int
    rows_stored: int
    route: dict[str, object]
    strict: bool
    producer_ids: list[str]
    producer_seqs: list[int]
    chunk: int
    chunk_bytes: int
    draw: int
    partitioner: Partitioner = "lp"

    def to_json(self) -> bytes:
        """Return this state as JSON, for storing it in a file."""
        return msgspec.json.encode(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> TableSendState:
        """Read a state that `to_json` wrote."""
        try:
            return decode_as(raw, cls)
        except msgspec.MsgspecError as error:
            raise Refused(f"not the state of a table's send: {error}", field="state") from error


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Rows stored so far, and the state from which the send can be resumed."""

    rows_stored: int
    rows: int
    state: TableSendState


Progress = Callable[[TableProgress], None]


class TableSendInterrupted(Unknown):
    """A table's send ended early; `state` resumes it."""

    code = "table_send_interrupted"

    def __init__(self, state: TableSendState, cause: DeltaMQError) -> None:
        super().__init__(
            f"{state.rows_stored:,} of {state.rows:,} rows are stored, then: {cause.detail}; "
            "send_table(..., state=error.state) goes on from there"
        )
        self.state = state


class _Chunk(msgspec.Struct):
    """A chunk in flight, and the state after it is stored."""

    parts: Parts
    after: TableSendState


class TableSend(FixedRequests):
    """One run of sending checked `rows` to `topic`."""

    def __init__(
        self,
        shared: Shared,
        topic: str,
        rows: pa.Table,
        *,
        view: TopicView | None,
        state: TableSendState | None,
        span: BatchSpan | None = None,
    ) -> None:
        self._shared = shared
        self._span = span
        self._rows = rows
        self._state = state if state is not None else _first_state(shared, topic, rows, view)
        _check_same(self._state, topic, rows)
        # Only from the state, so that a resumed send splits the rows in the same way.
        self._view = TopicView(
            Route.from_json(self._state.route), strict=self._state.strict, partitioner=self._state.partitioner
        )
        self._starts = chunk_starts(rows, self._state.chunk_bytes, ARROW_MESSAGES_MAX)
        self._executors = [
            Executor(
                topic,
                partition,
                shared,
                self,
                broker=(view or self._view).broker(partition),
                failing=Failing.STOP,
                producer_id=id_,
                producer_seq=seq,
            )
            for partition, id_, seq in zip(
                self._view.partitions, self._state.producer_ids, self._state.producer_seqs, strict=True
            )
        ]
        self._ranges: list[SentRange] = []

    async def run(self, progress: bool | Progress) -> SentBatch:
        """Send the rows that are not stored yet, and wait for them; the result covers only the rows of this run."""
        in_flight: deque[_Chunk] = deque()
        with _reporting(progress, self._state) as report:
            try:
                await self._send_all(in_flight, report)
            except DeltaMQError as error:
                # A resumed send must not overlap with requests of this run: wait for them.
                for chunk in in_flight:
                    await chunk.parts.wait(self._deadline())
                raise TableSendInterrupted(self._state, error) from error
        return SentBatch(tuple(self._ranges))

    async def _send_all(self, in_flight: deque[_Chunk], report: Progress) -> None:
        queued = self._state
        for low, high in pairwise(self._starts[self._state.chunk :]):
            if len(in_flight) >= _CHUNKS_IN_FLIGHT_MAX:
                await self._settle(in_flight.popleft(), report)
            chunk = await self._queue(queued, low, high)
            queued = chunk.after
            in_flight.append(chunk)
        while in_flight:
            await self._settle(in_flight.popleft(), report)

    def _deadline(self) -> float:
        return self._shared.shell.now() + self._shared.settings.patience.timeout_s

    async def _queue(self, before: TableSendState, low: int, high: int) -> _Chunk:
        deadline = self._deadline()
        parts = Parts(self._shared.shell, len(self._rows), self._span)
        seqs = list(before.producer_seqs)
        for piece in split_rows(chunk_of(self._rows, low, high), self._view, before.draw + before.chunk):
            assert piece.partition is not None and piece.rows is not None
            index = self._view.index_of[piece.partition]
            await self._put(parts, self._executors[index], piece.rows, piece.indexes + low, deadline)
            seqs[index] += 1
        after = replace(before, rows_stored=high, producer_seqs=seqs, chunk=before.chunk + 1)
        return _Chunk(parts, after)

    async def _put(
        self, parts: Parts, executor: Executor, rows: pa.RecordBatch, indexes: Indexes, deadline: float
    ) -> None:
        future: PartFuture = self._shared.shell.future()
        size = self._shared.buffer.fitted(int(rows.nbytes))
        entry = Entry([], rows.num_rows, size, deadline, [future], rows=rows, alone=True, span=parts.span)
        try:
            await self._shared.buffer.take(size, entry.count, deadline=deadline, wait=True)
        except DeltaMQError as error:
            parts.failed(indexes, error)
            return
        try:
            executor.put(entry)
        except DeltaMQError as error:
            self._shared.buffer.give_back(size, entry.count)
            parts.failed(indexes, error)
        else:
            parts.add(executor, entry, future, indexes)

    async def _settle(self, chunk: _Chunk, report: Progress) -> None:
        sent = await chunk.parts.result(self._deadline())
        self._ranges += sent.ranges
        self._state = chunk.after
        report(TableProgress(rows_stored=self._state.rows_stored, rows=self._state.rows, state=self._state))


def _first_state(shared: Shared, topic: str, rows: pa.Table, view: TopicView | None) -> TableSendState:
    assert view is not None, "a new send begins with the route of the moment"
    return TableSendState(
        topic=topic,
        rows=len(rows),
        body_bytes=_body_bytes(rows),
        rows_stored=0,
        route=view.route.to_json(),
        strict=view.strict,
        producer_ids=[shared.new_id() for _ in view.partitions],
        producer_seqs=[0] * len(view.partitions),
        chunk=0,
        chunk_bytes=min(_CHUNK_BYTES, shared.settings.buffer_bytes_max),
        draw=random.getrandbits(30),
        partitioner=view.partitioner,
    )


def _check_same(state: TableSendState, topic: str, rows: pa.Table) -> None:
    """Refuse a state of another table, whose sequences stand for other messages."""
    if (state.topic, state.rows, state.body_bytes) != (topic, len(rows), _body_bytes(rows)):
        raise Refused(
            f"the state is of a table of {state.rows:,} rows with {state.body_bytes:,} bytes for {state.topic}",
            code="state_of_another_table",
            field="state",
        )


def _body_bytes(rows: pa.Table) -> int:
    if "body" not in rows.column_names:
        return int(rows.column("value").nbytes)
    return int(pc.sum(pc.binary_length(rows.column("body"))).as_py() or 0)


@contextmanager
def _reporting(progress: bool | Progress, state: TableSendState) -> Iterator[Progress]:
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda _: None
        return
    with row_bar(f"sending to {state.topic}", state.rows, state.rows_stored) as advance:
        yield lambda done: advance(done.rows_stored)
