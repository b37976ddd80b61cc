"""Server-sent events: a fetch that stays open.

    id: orders@broker-a:120          where to continue; the client sends it as `Last-Event-ID` after a reconnect
    id: <id>:orders@broker-a:120     so in a topic that was deleted and made again; <id> is its own
    data: {"offset":120, ...}        the message as in a JSON fetch
                                     a comment line keeps proxies from closing a quiet stream

The stream ends when the service stops; the browser's EventSource connects again by itself. If it cannot go on for
another reason, `event: refused` says why: the topic was deleted, the caller may not read on, another cluster is away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from deltamq.api.reading.readers import FetchQuery
from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.request import Client, ClientDisconnected, Send
from deltamq.mq.errors import Conflict, DeltaMQError, Unprocessable
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.meta.topics import Topic
from deltamq.tables.log.fetch import Fetched, FetchStatus

EVENTS_TYPE: Final = "text/event-stream"
KEEP_ALIVE_MS: Final = 15_000
#: Maximum number of messages in one piece of the stream, small enough for slow readers.
_PIECE_MESSAGES: Final = 500
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventPlace(NamedTuple):
    """The partition that a stream reads, and what the ids of its events begin with.

    An offset says nothing in another life of the topic (SPEC MODEL-6): ids of all lives but a name's first have the
    topic's id, so an id without one is of the first.
    """

    partition: str
    prefix: str

    @classmethod
    def of(cls, topic: Topic, partition: str) -> EventPlace:
        topic_id = topic.id if topic.world is None else topic.world.id
        return cls(partition, f"{topic_id}:{partition}" if topic.generation else partition)

    def resumed(self, last_event_id: str | None) -> int | None:
        """Return the offset after that of the client's last event; None if it had none.

        Raises
        ------
        Conflict
            `topic_made_again`: the event is of another life of the topic.
        Unprocessable
            It is no event of this partition.
        """
        if not last_event_id:
            return None
        place, _, offset = last_event_id.rpartition(":")
        if place.rpartition(":")[2] != self.partition or not offset.isdecimal() or int(offset) >= OFFSET_MAX:
            raise Unprocessable(f"Last-Event-ID: write {self.prefix}:<offset>", field="Last-Event-ID")
        if place != self.prefix:
            raise Conflict(
                "Last-Event-ID: the topic was deleted and made again since this event; begin anew, without it",
                code="topic_made_again",
                field="Last-Event-ID",
            )
        return int(offset) + 1


async def stream_events(
    read: Callable[[FetchQuery], Awaitable[Fetched]],
    place: EventPlace,
    query: FetchQuery,
    last_event_id: str | None,
    client: Client,
    send: Send,
    is_stopping: Callable[[], bool],
) -> None:
    """Send every message from `query.offset`, or after `Last-Event-ID`, until the client goes or the service stops.

    `read` reads the partition, or the logical queue, of this place for the client.

    If the client may not read any more, or nobody can, the last event says why.
    """
    offset = place.resumed(last_event_id)
    query = replace(query, max_messages=_PIECE_MESSAGES, offset=query.offset if offset is None else offset)
    # The first read comes before the headers, so that a refusal still has its own status.
    found = await read(replace(query, wait_ms=0))
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    query = replace(query, wait_ms=KEEP_ALIVE_MS)
    while not client.gone.done():
        await _piece(send, _text(place.prefix, found), last=False)
        if is_stopping() or found.status is FetchStatus.OFFSET_TOO_LARGE:
            break
        query = replace(query, offset=found.next_offset)
        try:
            found = await read(query)
        except ClientDisconnected:
            break
        except DeltaMQError as error:
            if not is_stopping():  # what waited in another cluster ends as what waited here
                await _refuse(send, error)
            break
    if client.refusal is not None:
        await _refuse(send, client.refusal)
    elif client.gone.done():
        return
    await _piece(send, b"", last=True)


async def _refuse(send: Send, error: DeltaMQError) -> None:
    """Send the event that says why there are no more."""
    why = msgspec.json.encode({"code": error.code, "detail": error.detail, **error.extra})
    await _piece(send, b"event: refused\ndata: %s\n\n" % why, last=False)


async def _piece(send: Send, body: bytes, *, last: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _text(prefix: str, found: Fetched) -> bytes:
    """Return the events of one read; a comment if there are none."""
    if found.status is FetchStatus.NO_NEW_MESSAGE:
        return b": waiting\n\n"
    if found.status is not FetchStatus.FOUND:
        place = {"next_offset": found.next_offset, "min_offset": found.min_offset, "max_offset": found.max_offset}
        return b"event: %s\ndata: %s\n\n" % (found.status.value.encode(), msgspec.json.encode(place))
    name = prefix.encode()
    return b"".join(
        b"id: %s:%d\ndata: %s\n\n" % (name, message.offset, msgspec.json.encode(message))
        for message in stored_messages(found.rows)
    )
