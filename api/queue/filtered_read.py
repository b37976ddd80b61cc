"""Reads that look for messages that pass a filter: bounded steps through a partition, and a pop's read of a lane.

Rows in memory are sliced on the event loop, without a copy and without an object for each row. Rows on disk are read,
and filtered, on a work thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from deltamq.api.queue.pop_requests import LanePopRequest
from deltamq.api.wire.route_batch import first_held_back
from deltamq.mq.meta.moved_keys import Blocked
from deltamq.mq.queue.checkpoint import Attempts
from deltamq.tables.log.fetch import Fetched, FetchStatus, cut_to_bytes
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import MESSAGE_COLUMNS
from deltamq.tables.typed_row import INVALID

#: One step covers at least these bounds, so that rare messages are found in few steps ...
_MESSAGES: Final = 20_000
_BYTES: Final = 8 * 1024 * 1024
#: ... and one scan takes at most this number of steps before it says which offset it reached.
_STEPS_MAX: Final = 16


class Scanned(NamedTuple):
    """Where a scan ended: at messages, at the end of the log, or after its last step."""

    #: The last read; None if there was nothing to read before `limit`.
    last: Fetched | None
    #: The messages found; None if there are none up to `reached`.
    kept: pa.Table | None
    #: The offset up to which all messages were looked at.
    reached: int
    #: The offset of the first message that passes and had no room among `kept`; None if all had room.
    rest: int | None = None
    #: The approximate size of `kept` in an answer, in bytes.
    weight: int = 0


def scan_filtered(
    log: PartitionLog,
    start: int,
    wanted: MessageFilter | None,
    *,
    max_messages: int,
    max_bytes: int,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
) -> Scanned:
    """Return the first messages of the offsets `[start, limit)` that pass the filter; blocking.

    With `columns`, those of every message among them, rows have only these. Messages whose bodies did not fit their
    schema pass no filter (SPEC TYPE-3). At least one message is kept if one is
    found, whatever its bytes.
    """
    at, fetched = start, None
    step, step_bytes = max(max_messages, _MESSAGES), max(max_bytes, _BYTES)
    for _ in range(_STEPS_MAX):
        room = step if limit is None else min(step, limit - at)
        if room <= 0:
            break
        judged = (*(columns or MESSAGE_COLUMNS), INVALID) if log.has_invalid(at, at + room) else columns
        fetched = log.read(at, max_messages=room, max_bytes=step_bytes, columns=judged)
        if fetched.status is not FetchStatus.FOUND:
            break
        rows = _fitting(fetched.rows)
        matching = rows if wanted is None else wanted.matching(rows)
        at = fetched.next_offset
        if matching.num_rows:
            kept, weight = cut_to_bytes(matching.slice(0, max_messages), max_bytes, at_least=1)
            rest = matching.column("offset")[kept.num_rows].as_py() if kept.num_rows < matching.num_rows else None
            return Scanned(fetched, kept, at, rest, weight)
    return Scanned(fetched, None, at)


def _fitting(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index(INVALID)
    return rows if at < 0 else rows.filter(rows.column(at).is_null()).remove_column(at)


class ReadRows(NamedTuple):
    """Rows that pass the filter, their offsets, and the offset up to which all rows were looked at."""

    rows: pa.Table
    offsets: Sequence[int]
    next_offset: int
    #: The approximate size of the rows in an answer, in bytes; None if it was not computed.
    weight: int | None = None


def look_now(request: LanePopRequest, start: int, limit: int | None, most: int) -> ReadRows | None:
    """Return at most `most` messages of the offsets `[start, limit)` from memory; None if a thread must read them."""
    if request.whole.filter is not None or not request.log.in_memory(start, most):
        return None
    if request.log.has_invalid(start, start + most):
        return None
    return _plain(request, start, limit, most)


def look(request: LanePopRequest, start: int, limit: int | None, most: int) -> ReadRows:
    """Return at most `most` messages of the offsets `[start, limit)` that pass the filter; blocking."""
    if request.whole.filter is None and not request.log.has_invalid(start, start + most):
        return _plain(request, start, limit, most)
    return _filtered(request, start, limit, most, request.whole.filter)


def _plain(request: LanePopRequest, start: int, limit: int | None, most: int) -> ReadRows:
    if limit is not None:
        most = min(most, limit - start)
    columns = request.whole.columns
    fetched = request.log.read(start, max_messages=most, max_bytes=request.max_bytes, columns=columns)
    if fetched.status is not FetchStatus.FOUND:
        return ReadRows(fetched.rows, (), start)
    return ReadRows(fetched.rows, range(start, fetched.next_offset), fetched.next_offset, fetched.weight)


def _filtered(
    request: LanePopRequest, start: int, limit: int | None, most: int, wanted: MessageFilter | None
) -> ReadRows:
    """Return messages that pass the filter; the other messages count as consumed (SPEC CONS-3, CONS-9)."""
    log = request.log
    scanned = scan_filtered(
        log,
        start,
        wanted,
        max_messages=most,
        max_bytes=request.max_bytes,
        limit=limit,
        columns=request.whole.columns,
    )
    if scanned.kept is None:
        return ReadRows(log.read(log.end_offset, max_messages=1, max_bytes=1).rows, (), scanned.reached)
    offsets: list[int] = scanned.kept.column("offset").to_pylist()
    reached = scanned.reached if scanned.rest is None else offsets[-1] + 1
    return ReadRows(scanned.kept, offsets, reached, scanned.weight)


def allowed(seen: ReadRows, blocked: Blocked | None) -> ReadRows:
    """Cut `seen` before the first message of a key that must wait (SPEC ROUTE-6)."""
    if blocked is None or not seen.offsets:
        return seen
    count = first_held_back(blocked, seen.rows)
    if count == len(seen.offsets):
        return seen
    return ReadRows(seen.rows.slice(0, count), seen.offsets[:count], seen.offsets[count])


def attempts_of(rows: pa.Table) -> Attempts:
    """Return the delivery number of each message, from 1 on; one number if it is the same for all."""
    times = [number for chunk in rows.column("reconsume_times").chunks for number in _int32s(chunk)]
    low, high = min(times), max(times)
    return low + 1 if low == high else tuple(number + 1 for number in times)


def _int32s(column: pa.Array) -> list[int]:
    """Return the numbers of a column without nulls; Arrow's conversion would wait for the interpreter's lock."""
    start = column.offset
    return memoryview(column.buffers()[1]).cast("i")[start : start + len(column)].tolist()
