"""`GET /v1/topics/{topic}/search`: messages by key, id, tag, header, text and time (SPEC LOOK-1 to LOOK-3).

    partitions    a  [looked at ......|            ]        the one that lags in time is read next, in columns,
                  b  [looked at ....|              ]   ──>  so all messages up to `through_time` were looked at
                  c  [looked at .....|             ]
    cursor        the topic's id, and an offset for each partition

A call looks at `_BYTES_MAX` bytes or for `_LOOK_S` seconds, whichever comes first, and says how far it came. The next
call goes on at the cursor, so a search of any length holds no request, and is given up by asking no more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial, reduce
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.log.partition import Partitions
from deltamq.api.reading.readers import FetchQuery, PartitionReader, QueueReader
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import is_offset, json_answer, moment_us, parse_time
from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.openapi_parts import answers
from deltamq.api.wire.request import Client
from deltamq.mq.errors import Conflict, Refused, Unprocessable
from deltamq.mq.limits import MIB
from deltamq.mq.meta.topics import no_partition
from deltamq.mq.wire.stored import FoundMessage, LookedAt, SearchAnswer
from deltamq.tables.log.fetch import FetchStatus

router = APIRouter(prefix="/v1/topics", tags=["messages"])

LIMIT_MAX: Final = 1_000
#: What one call looks at, at most: bytes of messages, and seconds.
_BYTES_MAX: Final = 64 * MIB
_LOOK_S: Final = 2.0
#: What is read at once.
_PIECE_MESSAGES: Final = 20_000
_PIECE_BYTES: Final = 4 * MIB
_TEXT_MAX: Final = 1_024

_Text = Annotated[str | None, Query(max_length=_TEXT_MAX)]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a message must have: each part that is not None."""

    key: str | None = None
    message_id: str | None = None
    tag: str | None = None
    #: Name and value; an empty value stands for any.
    header: tuple[str, str] | None = None
    #: Bytes that are anywhere in the body.
    text: str | None = None
    from_us: int | None = None
    to_us: int | None = None

    def matching(self, rows: pa.Table) -> pa.Table:
        """Return the rows of messages that have it all, without a Python object for each message."""
        masks = [
            pc.equal(rows.column(name), value)
            for name, value in (("key", self.key), ("message_id", self.message_id), ("tag", self.tag))
            if value is not None
        ]
        if self.header is not None:
            name, value = self.header
            found = pc.map_lookup(rows.column("headers"), pa.scalar(name), "last")
            masks.append(pc.equal(found, value) if value else pc.is_valid(found))
        if self.text is not None:
            masks.append(pc.match_substring(rows.column("body"), self.text.encode()))
        times = rows.column("append_time")
        if self.from_us is not None:
            masks.append(pc.greater_equal(times, _time(self.from_us, times.type)))
        if self.to_us is not None:
            masks.append(pc.less(times, _time(self.to_us, times.type)))
        if not masks:
            return rows
        return rows.filter(reduce(pc.and_, masks), null_selection_behavior="drop")


def _time(time_us: int, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(time_us, pa.int64()).cast(pa.timestamp("us")).cast(kind)


class _Place(msgspec.Struct):
    """How far one partition, or logical queue, was looked at."""

    name: str
    offset: int
    #: The append time of the last message looked at; -1 before the first.
    through_us: int = -1
    is_over: bool = False


class _Looked(msgspec.Struct):
    """What one call has looked at and found."""

    messages: int = 0
    bytes: int = 0
    found: list[FoundMessage] = msgspec.field(default_factory=list)


@router.get(
    "/{topic}/search",
    summary="Messages by key, id, tag, header, text or time, page by page",
    responses=answers(SearchAnswer, 400, 404, 409, 422, 429, 500, 503),
)
async def search(
    topic: TopicName,
    service: Running,
    request: Request,
    key: _Text = None,
    id: Annotated[str | None, Query(description="The message's id.", max_length=_TEXT_MAX)] = None,
    tag: _Text = None,
    header: Annotated[
        str | None, Query(description="`name:value`, or `name` for any value.", max_length=_TEXT_MAX)
    ] = None,
    text: Annotated[str | None, Query(description="Text that is in the body.", max_length=_TEXT_MAX)] = None,
    from_time: Annotated[str | None, Query(description="RFC 3339: only messages stored then or later.")] = None,
    to_time: Annotated[str | None, Query(description="RFC 3339: only messages stored before.")] = None,
    partition: Annotated[str | None, Query(description="Only this partition, or logical queue.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="How many to find at most.")] = 100,
    cursor: Annotated[str | None, Query(description="The `cursor` of the answer before.")] = None,
) -> Response:
    wanted = Wanted(
        key=key,
        message_id=id,
        tag=tag,
        header=None if header is None else _header(header),
        text=text or None,
        from_us=None if from_time is None else parse_time(from_time, "from_time"),
        to_us=None if to_time is None else parse_time(to_time, "to_time"),
    )
    hosted = await service.topics.require(topic)
    refuse_global(hosted.topic, "a search")
    names = hosted.topic.client_partitions
    if partition is not None:
        if partition not in names:
            raise no_partition(topic, partition)
        names = (partition,)
    if cursor is not None:
        places = _places(hosted, names, cursor)
    elif wanted.from_us is not None:
        begins = {one.partition: one.offset for one in await service.times.offsets_at(hosted, wanted.from_us)}
        places = [_Place(name, begins[name]) for name in names]
    else:
        places = [_Place(name, 0) for name in names]
    reading = _Reading(service.topics, service.partitions, service.reader, service.queue_reader)
    client = Client(request.scope, request.receive)
    try:
        with service.answers.enter() as ticket:
            looked = await _look(reading, hosted, wanted, places, limit, client, ticket.grow)
    finally:
        client.close()
    return json_answer(_answer(hosted, places, looked))


class _Reading(NamedTuple):
    """What reads partitions and logical queues."""

    topics: Topics
    partitions: Partitions
    reader: PartitionReader
    queue_reader: QueueReader


async def _look(
    reading: _Reading,
    hosted: HostedTopic,
    wanted: Wanted,
    places: Sequence[_Place],
    limit: int,
    client: Client,
    reserve: Callable[[int], Any],
) -> _Looked:
    """Look at the partition that lags in time, piece by piece, until enough is found, or enough was looked at."""
    looked, loop = _Looked(), asyncio.get_running_loop()
    until = loop.time() + _LOOK_S
    while (left := [place for place in places if not place.is_over]) and not client.has_left():
        if len(looked.found) >= limit or looked.bytes >= _BYTES_MAX or loop.time() >= until:
            break
        place = min(left, key=lambda one: one.through_us)
        rows = await _piece(reading, hosted, place, client)
        if not rows.num_rows:
            continue
        found = await reading.partitions.run(partial(wanted.matching, rows))
        room = limit - len(looked.found)
        if found.num_rows > room:
            # The rest of the piece is looked at by the next call.
            rows = rows.slice(0, _position(rows, found.column("offset")[room - 1].as_py()) + 1)
            found = found.slice(0, room)
        reserve(found.nbytes)
        looked.messages += rows.num_rows
        looked.bytes += rows.nbytes
        looked.found += [_found(place.name, one) for one in stored_messages(found)]
        _advance(place, rows, wanted.to_us)
    return looked


async def _piece(reading: _Reading, hosted: HostedTopic, place: _Place, client: Client) -> pa.Table:
    """Return the next rows of a partition; none, and the place is over or has moved, if there are none there."""
    query = FetchQuery(place.offset, _PIECE_MESSAGES, _PIECE_BYTES, 0, None)
    if hosted.topic.static is not None:
        read = await reading.queue_reader.read(hosted, place.name, query, client)
    else:
        check = partial(reading.topics.check_readable, hosted, place.name)
        read = await reading.reader.read(hosted.partition(place.name), query, client, check=check)
    if read.status is FetchStatus.OFFSET_TOO_SMALL:  # retention took the messages before
        place.offset = read.min_offset
    elif not read.rows.num_rows:
        place.is_over = read.next_offset <= place.offset
        place.offset = max(place.offset, read.next_offset)
    return read.rows


def _position(rows: pa.Table, offset: int) -> int:
    """Return the index of an offset in rows that are ascending."""
    at: int = pc.index(rows.column("offset"), offset).as_py()
    assert at >= 0, "a row that was found is among those looked at"
    return at


def _advance(place: _Place, rows: pa.Table, to_us: int | None) -> None:
    last = rows.slice(rows.num_rows - 1)
    place.offset = last.column("offset")[0].as_py() + 1
    place.through_us = last.column("append_time").cast(pa.int64())[0].as_py()
    place.is_over = to_us is not None and place.through_us >= to_us


def _found(partition: str, message: Any) -> FoundMessage:
    return FoundMessage(**{name: getattr(message, name) for name in message.__struct_fields__}, partition=partition)


def _answer(hosted: HostedTopic, places: Sequence[_Place], looked: _Looked) -> SearchAnswer:
    left = [place for place in places if not place.is_over]
    through_us = min((place.through_us for place in left), default=None)
    if through_us is None:
        through_us = max((place.through_us for place in places), default=-1)
    through: datetime | None = moment_us(through_us) if through_us >= 0 else None
    looked.found.sort(key=lambda one: one.append_time)
    return SearchAnswer(
        messages=looked.found,
        cursor=_cursor(hosted, places) if left else None,
        looked_at=LookedAt(messages=looked.messages, bytes=looked.bytes, through_time=through),
    )


# Cursors: the life of the topic, then offset and time of each partition; `-` for one that is over.

_CURSOR: Final = re.compile(r"[0-9a-f-]{36}(\.(-|[0-9]+_-?[0-9]+))+")


def _cursor(hosted: HostedTopic, places: Sequence[_Place]) -> str:
    return ".".join([hosted.topic.id, *("-" if one.is_over else f"{one.offset}_{one.through_us}" for one in places)])


def _places(hosted: HostedTopic, names: Sequence[str], cursor: str) -> list[_Place]:
    """Return the places of a cursor; partitions that were added since begin at their first message."""
    if _CURSOR.fullmatch(cursor) is None:
        raise _changed()
    topic_id, *texts = cursor.split(".")
    if topic_id != hosted.topic.id:
        raise Conflict(
            "cursor: the topic was deleted and made again since; search from the beginning",
            code="topic_made_again",
            field="cursor",
        )
    if len(texts) > len(names):
        raise Refused("cursor: send the cursor of the answer before as it is, with the same partition", field="cursor")
    places = [_Place(name, 0) for name in names]
    for place, text in zip(places, texts, strict=False):
        offset, _, through = text.partition("_")
        if text == "-":
            place.is_over = True
        elif not is_offset(offset) or not is_offset(through.removeprefix("-")):
            raise _changed()
        else:
            place.offset, place.through_us = int(offset), int(through)
    return places


def _changed() -> Refused:
    return Refused("cursor: send the cursor of the answer before as it is", field="cursor")


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    if not name:
        raise Unprocessable("header: write name:value, or name", field="header")
    return name, value
