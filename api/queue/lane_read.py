"""A pop's read of one partition: rows from an offset on that pass the filter, and where the next pop goes on.

Rows in memory are sliced on the event loop, without a copy and without an object for each row. Rows on disk are read,
and tags searched, on a work thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from api.queue.pop_requests import LanePopRequest
from api.wire import first_held_back
from mq.meta import Blocked
from mq.queue import Attempts
from tables.log import FetchStatus, cut_to_bytes

__all__ = ["Seen", "allowed", "attempts_of", "look", "look_now"]

#: With a tag filter, one step covers at least these bounds, so that rare tags are found in few steps ...
_SCAN_MESSAGES: Final = 20_000
_SCAN_BYTES: Final = 8 * 1024 * 1024
#: ... and one pop takes at most this number of steps before it goes on to the next lane.
_SCAN_STEPS_MAX: Final = 16


class Seen(NamedTuple):
    """Rows that pass the filter, their offsets, and the offset up to which all rows were looked at."""

    rows: pa.Table
    offsets: Sequence[int]
    next_offset: int


def look_now(request: LanePopRequest, start: int, limit: int | None, most: int) -> Seen | None:
    """Return at most `most` messages of the offsets `[start, limit)` from memory; None if a thread must read them."""
    if request.whole.tags is not None or not request.log.in_memory(start):
        return None
    return _plain(request, start, limit, most)


def look(request: LanePopRequest, start: int, limit: int | None, most: int) -> Seen:
    """Return at most `most` messages of the offsets `[start, limit)` that pass the filter; blocking."""
    if request.whole.tags is None:
        return _plain(request, start, limit, most)
    return _tagged(request, start, limit, most, request.whole.tags)


def _plain(request: LanePopRequest, start: int, limit: int | None, most: int) -> Seen:
    if limit is not None:
        most = min(most, limit - start)
    found = request.log.read(start, max_messages=most, max_bytes=request.max_bytes)
    if found.status is not FetchStatus.FOUND:
        return Seen(found.rows, (), start)
    return Seen(found.rows, range(start, found.next_offset), found.next_offset)


def _tagged(request: LanePopRequest, start: int, limit: int | None, most: int, tags: pa.Array) -> Seen:
    """Return messages with one of the tags; messages that are passed over count as consumed."""
    log, at, max_bytes = request.log, start, request.max_bytes
    for _ in range(_SCAN_STEPS_MAX):
        room = _SCAN_MESSAGES if limit is None else min(_SCAN_MESSAGES, limit - at)
        if room <= 0:
            break
        found = log.read(at, max_messages=room, max_bytes=max(max_bytes, _SCAN_BYTES))
        if found.status is not FetchStatus.FOUND:
            break
        matching = found.rows.filter(pc.is_in(found.rows.column("tag"), value_set=tags))
        if matching.num_rows:
            kept = cut_to_bytes(matching.slice(0, most), max_bytes, at_least=1)
            offsets: list[int] = kept.column("offset").to_pylist()
            end = offsets[-1] + 1 if kept.num_rows < matching.num_rows else found.next_offset
            return Seen(kept, offsets, end)
        at = found.next_offset
    return Seen(log.read(log.end_offset, max_messages=1, max_bytes=1).rows, (), at)


def allowed(seen: Seen, blocked: Blocked | None) -> Seen:
    """Cut `seen` before the first message of a key that must wait (SPEC ROUTE-6)."""
    if blocked is None or not seen.offsets:
        return seen
    count = first_held_back(blocked, seen.rows)
    if count == len(seen.offsets):
        return seen
    return Seen(seen.rows.slice(0, count), seen.offsets[:count], seen.offsets[count])


def attempts_of(rows: pa.Table) -> Attempts:
    """Return the delivery number of each message, from 1 on; one number if it is the same for all."""
    times = [number for chunk in rows.column("reconsume_times").chunks for number in _int32s(chunk)]
    low, high = min(times), max(times)
    return low + 1 if low == high else tuple(number + 1 for number in times)


def _int32s(column: pa.Array) -> list[int]:
    """Return the numbers of a column without nulls; Arrow's conversion would wait for the interpreter's lock."""
    start = column.offset
    return memoryview(column.buffers()[1]).cast("i")[start : start + len(column)].tolist()
