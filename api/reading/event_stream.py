"""An event stream: a fetch that stays open, and sends every message until its client goes or the service stops.

    id: orders@broker-a:120          where to continue; the client sends it as `Last-Event-ID` after a reconnect
    id: <id>:orders@broker-a:120     in a topic that was deleted and made again, with the topic's <id>
    data: {"offset":120, ...}        the message as in a JSON fetch
                                     a comment line keeps proxies from closing a quiet stream

The stream ends when the service stops; the browser's EventSource connects again by itself. If it cannot go on for
another reason, `event: refused` says why: the topic was deleted, the caller may not read on, another cluster is away.

Streams that are at the same offset read together (SPEC LOOK-20): the first that asks reads for all, so what one more
stream costs is the bytes that it is sent.

    stream 1 at 120 ── reads, waits for messages ──> piece 120..131 ─┬─> stream 1
    stream 2 at 120 ── follows ──────────────────────────────────────┼─> stream 2
    stream 3 at 120 ── follows ──────────────────────────────────────┴─> stream 3
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.api.reading.readers import FetchQuery, later
from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.request import Client, ClientDisconnected, Send
from deltamq.mq.errors import Conflict, DeltaMQError, Unprocessable
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.meta.topics import Topic
from deltamq.tables.log.fetch import Fetched, FetchStatus

__all__ = ["EventIds", "SharedReads", "stream_events"]

KEEP_ALIVE_MS: Final = 15_000
#: Maximum number of messages in one piece of the stream, small enough for slow readers.
_PIECE_MESSAGES: Final = 500
#: Seconds between two pieces at the end of a partition: what comes meanwhile is sent together.
_GATHER_S: Final = 0.05
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

Read = Callable[[FetchQuery], Awaitable[Fetched]]


class EventIds(NamedTuple):
    """The partition that a stream reads, and what the ids of its events begin with.

    An offset says nothing in another life of the topic (SPEC MODEL-6): ids of all lives but a name's first have the
    topic's id, so an id without one is of the first.
    """

    partition: str
    prefix: str
    #: The life of the topic and the partition: queues of different topics have the same names.
    life: tuple[str, str]

    @classmethod
    def of(cls, topic: Topic, partition: str, *, typed: bool = False) -> EventIds:
        """Return the ids of a stream; those of values are shared with no stream of bodies."""
        topic_id = topic.id if topic.world is None else topic.world.id
        prefix = f"{topic_id}:{partition}" if topic.generation else partition
        return cls(partition, prefix, (topic_id, f"{partition}?typed" if typed else partition))

    def resumed(self, last_event_id: str | None) -> int | None:
        """Return the offset after the client's last event; None if it had none.

        Raises
        ------
        Conflict
            `topic_made_again`: the event is of another life of the topic.
        Unprocessable
            It is no event of this partition.
        """
        if not last_event_id:
            return None
        prefix, _, offset = last_event_id.rpartition(":")
        if prefix.rpartition(":")[2] != self.partition or not offset.isdecimal() or int(offset) >= OFFSET_MAX:
            raise Unprocessable(f"Last-Event-ID: write {self.prefix}:<offset>", field="Last-Event-ID")
        if prefix != self.prefix:
            raise Conflict(
                "Last-Event-ID: the topic was deleted and made again since this event; begin again, without it",
                code="topic_made_again",
                field="Last-Event-ID",
            )
        return int(offset) + 1


class _Piece(NamedTuple):
    """What one read gave, as it is sent."""

    body: bytes
    status: FetchStatus
    next_offset: int
    is_at_end: bool

    @classmethod
    def of(cls, ids: EventIds, fetched: Fetched) -> _Piece:
        is_at_end = fetched.status is FetchStatus.FOUND and fetched.next_offset >= fetched.max_offset
        return cls(_text(ids, fetched), fetched.status, fetched.next_offset, is_at_end)


class _Flight(msgspec.Struct):
    """A read that is under way, and the streams that wait for it; `outcome` stays None if who reads goes away."""

    followers: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    outcome: _Piece | DeltaMQError | None = None


class SharedReads:
    """The reads of event streams that are under way; used on the event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def read(self, key: Hashable, client: Client, lead: Callable[[], Awaitable[_Piece]]) -> _Piece:
        """Return the piece of the read of `key` that is under way; if there is none, `lead` reads for all.

        Raises
        ------
        ClientDisconnected
            The client went. If it was the one that read, one of the others reads in its place.
        DeltaMQError
            The partition cannot be read, by none of them.
        """
        while (flight := self._flights.get(key)) is not None:
            await _landed(flight, client)
            if isinstance(flight.outcome, DeltaMQError):
                raise flight.outcome
            if flight.outcome is not None:
                return flight.outcome
        self._flights[key] = flight = _Flight()
        try:
            flight.outcome = piece = await lead()
            return piece
        except DeltaMQError as error:
            flight.outcome = error
            raise
        finally:
            del self._flights[key]
            for follower in flight.followers:
                _wake(follower)


async def _landed(flight: _Flight, client: Client) -> None:
    """Wait for the end of another stream's read; a client that goes ends the wait."""
    landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = partial(_wake, landed)
    flight.followers.append(landed)
    client.gone.add_done_callback(left)
    try:
        await landed
    finally:
        client.gone.remove_done_callback(left)
    if client.gone.done():
        raise ClientDisconnected


def _wake(waiter: asyncio.Future[None], _done: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def stream_events(
    read: Read,
    ids: EventIds,
    query: FetchQuery,
    last_event_id: str | None,
    client: Client,
    send: Send,
    is_stopping: Callable[[], bool],
    shared: SharedReads | None,
) -> None:
    """Send every message from `query.offset`, or after `Last-Event-ID`, until the client goes or the service stops.

    `read` reads the partition, or the logical queue, for the client. `shared` is None if it may give what other streams
    do not get. If the client may not read any more, or no client can, the last event says why.
    """
    offset = ids.resumed(last_event_id)
    query = replace(query, max_messages=_PIECE_MESSAGES, offset=query.offset if offset is None else offset)
    # The first read comes before the headers, so that a refusal still has its own status.
    piece = _Piece.of(ids, await read(replace(query, wait_ms=0)))
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    query = replace(query, wait_ms=KEEP_ALIVE_MS)

    async def lead() -> _Piece:
        if piece.is_at_end:
            await later(_GATHER_S, client)
        return _Piece.of(ids, await read(query))

    while not client.gone.done():
        await _send(send, piece.body, last=False)
        if is_stopping() or piece.status is FetchStatus.OFFSET_TOO_LARGE:
            break
        query = replace(query, offset=piece.next_offset)
        try:
            if shared is None:
                piece = await lead()
            else:
                piece = await shared.read((ids.life, query.offset, query.max_bytes), client, lead)
        except ClientDisconnected:
            break
        except DeltaMQError as error:
            if not is_stopping():  # a read that waited in another cluster ends as one that waited here
                await _refuse(send, error)
            break
    if client.refusal is not None:
        await _refuse(send, client.refusal)
    elif client.gone.done():
        return
    await _send(send, b"", last=True)


async def _refuse(send: Send, error: DeltaMQError) -> None:
    why = msgspec.json.encode({"code": error.code, "detail": error.detail, **error.extra})
    await _send(send, b"event: refused\ndata: %s\n\n" % why, last=False)


async def _send(send: Send, body: bytes, *, last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _text(ids: EventIds, fetched: Fetched) -> bytes:
    """Return the events of one read; a comment if there are none."""
    if fetched.status is FetchStatus.NO_NEW_MESSAGE:
        return b": waiting\n\n"
    if fetched.status is not FetchStatus.FOUND:
        state = {"next_offset": fetched.next_offset, "min_offset": fetched.min_offset, "max_offset": fetched.max_offset}
        return b"event: %s\ndata: %s\n\n" % (fetched.status.value.encode(), msgspec.json.encode(state))
    name = ids.prefix.encode()
    return b"".join(
        b"id: %s:%d\ndata: %s\n\n" % (name, message.offset, msgspec.json.encode(message))
        for message in stored_messages(fetched.rows)
    )
