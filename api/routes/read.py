"""Reading a partition for a client: with a tag filter, and waiting for messages that are not there yet.

    offset ──> log.read ──tags──> rows? ── yes ──> answer
                  ^                 |no
                  '── commit ── wait until wait_ms

Rows in memory are read on the event loop, since a thread would cost more than the read; rows on disk on a work thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from api.log import Partition
from api.order import Gate
from api.queue import HELD_BACK_S
from api.service import Service
from api.wire import Client, ClientGone
from mq.errors import Unprocessable
from mq.limits import TAG_BYTES_MAX, TAG_FILTER_TAGS_MAX
from tables.log import Fetched, FetchStatus, PartitionLog, cut_to_bytes

__all__ = ["FetchQuery", "parse_tags", "read"]

#: With a tag filter, one step covers at least these bounds, so that rare tags are found in few steps ...
_SCAN_MESSAGES: Final = 20_000
_SCAN_BYTES: Final = 8 * 1024 * 1024
#: ... and one fetch takes at most this number of steps before it answers with the offset that it reached.
_SCAN_STEPS_MAX: Final = 16
#: Maximum age, in seconds, of the end offset that a reader far before the end is told; meanwhile it is followed.
_FOLLOWED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class FetchQuery:
    """The parameters of one fetch; `tags` None takes every message."""

    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tags: pa.Array | None


def parse_tags(text: str | None) -> pa.Array | None:
    """Return the tags of a filter `*` or `TagA || TagB` (SPEC CONS-3); None for every message."""
    if text is None or text.strip() == "*":
        return None
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or any(tag == "*" or "|" in tag for tag in tags):
        raise Unprocessable("tags: write * or TagA||TagB", code="invalid_tag_filter", field="tags")
    if len(tags) > TAG_FILTER_TAGS_MAX:
        detail = f"tags: at most {TAG_FILTER_TAGS_MAX} tags"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_FILTER_TAGS_MAX})
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        detail = f"tags: a tag has at most {TAG_BYTES_MAX} bytes"
        raise Unprocessable(detail, code="invalid_tag_filter", field="tags", extra={"limit": TAG_BYTES_MAX})
    return pa.array(tags, pa.string())


async def read(
    service: Service, partition: Partition, query: FetchQuery, client: Client, gate: Gate | None = None
) -> Fetched:
    """Read the partition from `query.offset` on, waiting up to `query.wait_ms` for the first message.

    `gate` is checked before the first read and after each one, before its messages may be sent.
    """
    if gate is not None:
        gate.check()
    log = await partition.opened()
    deadline = service.loop.time() + query.wait_ms / 1000
    offset = query.offset
    while True:
        found = await _look(service, partition, log, query, offset)
        if gate is not None:
            found = await gate.cut(found)
            gate.check()
            if found.rows.num_rows:
                gate.took()
        if found.status is not FetchStatus.NO_NEW_MESSAGE or service.stopping:
            return found
        offset = found.next_offset
        if service.loop.time() >= deadline:
            return found
        if gate is not None and gate.holds_back:
            await _later(min(HELD_BACK_S, deadline - service.loop.time()), client)
        elif not await _more(partition, log, offset, deadline - service.loop.time(), client):
            return found


async def _look(service: Service, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int) -> Fetched:
    """Read once without waiting, after `_brought_up` has refreshed the log."""
    await _brought_up(service, partition, log, query, offset)
    if query.tags is not None:
        return await service.run(partial(_filtered, log, query, offset))
    work = partial(log.read, offset, max_messages=query.max_messages, max_bytes=query.max_bytes)
    return work() if log.in_memory(offset) else await service.run(work)


async def _brought_up(
    service: Service, partition: Partition, log: PartitionLog, query: FetchQuery, offset: int
) -> None:
    """See other processes' commits before the answer says where the log ends.

    Jobs append to any partition, and so do processes that serve other brokers. A reader near the end waits for a
    refresh, so that it gets the newest messages. A reader far from the end is told a recent end without waiting.
    """
    now, end = service.loop.time(), log.end_offset
    age_s, refresh_s = now - partition.refreshed_at, service.settings.refresh_ms / 1000
    if offset >= end:
        # Beyond the end: another process that is ahead of this one must have told the client this offset.
        is_due = offset > end or not service.hosting.alone or age_s >= refresh_s
    elif query.tags is not None or offset + query.max_messages >= end:
        is_due = age_s >= refresh_s
    else:
        partition.follow(now + _FOLLOWED_S)
        is_due = age_s >= _FOLLOWED_S
    if is_due:
        await partition.refresh()


def _filtered(log: PartitionLog, query: FetchQuery, offset: int) -> Fetched:
    """Return rows with one of the tags; rows that are passed over count as consumed (SPEC CONS-3)."""
    for _ in range(_SCAN_STEPS_MAX):
        found = log.read(
            offset,
            max_messages=max(query.max_messages, _SCAN_MESSAGES),
            max_bytes=max(query.max_bytes, _SCAN_BYTES),
        )
        if found.status is not FetchStatus.FOUND:
            return found
        matching = found.rows.filter(pc.is_in(found.rows.column("tag"), value_set=query.tags))
        if matching.num_rows:
            return _cut(found, matching, query)
        offset = found.next_offset
    return Fetched(FetchStatus.FOUND, found.rows.slice(0, 0), offset, found.min_offset, found.max_offset)


def _cut(found: Fetched, matching: pa.Table, query: FetchQuery) -> Fetched:
    kept = cut_to_bytes(matching.slice(0, query.max_messages), query.max_bytes, at_least=1)
    next_offset = found.next_offset
    if kept.num_rows < matching.num_rows:
        next_offset = matching.column("offset")[kept.num_rows].as_py()
    return Fetched(FetchStatus.FOUND, kept, next_offset, found.min_offset, found.max_offset)


async def _later(wait_s: float, client: Client) -> None:
    """Wait for `wait_s`, for an event elsewhere to unblock the reader. A client that goes away ends the wait."""
    await asyncio.wait({client.gone}, timeout=wait_s)
    if client.gone.done():
        raise ClientGone


async def _more(partition: Partition, log: PartitionLog, offset: int, timeout_s: float, client: Client) -> bool:
    """Wait for a commit; return False after `timeout_s`. A client that goes away ends the wait."""
    waiter = partition.waiter()
    if log.end_offset > offset:
        partition.forget(waiter)
        return True
    try:
        await asyncio.wait({waiter, client.gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        partition.forget(waiter)
    if client.gone.done():
        raise ClientGone
    return waiter.done()
