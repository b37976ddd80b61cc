"""The deliver time of each message of a request: `deliver_time` and `delay_ms` as one column (SPEC RETRY-4).

    deliver_time 12:00, delay_ms -      -> 12:00, even if that is past: a copy of the request must be recognized
    deliver_time -,     delay_ms 5000   -> now + 5 s
    neither, or a delay of 0            -> AT_ONCE

The rule is `mq.queue.delay.deliver_time`; of a large column only the extremes are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.errors import Unprocessable
from deltamq.mq.queue.delay import deliver_time
from deltamq.tables.schema import TIME

#: Milliseconds since 1970 for each message, or AT_ONCE.
Times: TypeAlias = NDArray[np.int64]
AT_ONCE: Final = -1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def times_of_lists(
    deliver_times: Sequence[datetime | None], delays_ms: Sequence[int | None], now_ms: int, where: str
) -> Times | None:
    """Return the deliver times of messages that were sent as JSON; None if none of them has to wait.

    Raises
    ------
    Unprocessable
        See `mq.queue.delay.deliver_time`; the field is prefixed with `where`, a format string for the message's number.
    """
    times = np.full(len(delays_ms), AT_ONCE, dtype=np.int64)
    for i, (time, delay_ms) in enumerate(zip(deliver_times, delays_ms, strict=True)):
        if time is not None or delay_ms is not None:
            time_ms = None if time is None else -((_EPOCH - time) // _MS)
            try:
                at_ms = deliver_time(now_ms, deliver_time_ms=time_ms, delay_ms=delay_ms)
            except Unprocessable as error:
                raise _in_message(error, where.format(i)) from None
            if at_ms is not None:
                times[i] = at_ms
            elif time_ms is not None:
                times[i] = max(0, time_ms)
    return None if (times == AT_ONCE).all() else times


def _in_message(error: Unprocessable, where: str) -> Unprocessable:
    field = f"{where}.{error.field}"
    return Unprocessable(f"{field}: {error.detail.removeprefix(f'{error.field}: ')}", field=field, extra=error.extra)


def times_of_columns(deliver_times: pa.Array | None, delays_ms: pa.Array | None, now_ms: int) -> Times | None:
    """Return the deliver times of columns of an Arrow stream, either of which may be missing; None if none has to wait.

    Raises
    ------
    Unprocessable
        As for `times_of_lists`; the field is the column, `row` in `extra` is the message.
    """
    given = deliver_times if delays_ms is None else delays_ms
    if given is None:
        return None
    count = len(given)
    time, has_time = _milliseconds(deliver_times, count)
    delay, has_delay = _whole(delays_ms, count)
    for row in _rows_to_check(time, has_time, delay, has_delay):
        try:
            deliver_time(
                now_ms,
                deliver_time_ms=int(time[row]) if has_time[row] else None,
                delay_ms=int(delay[row]) if has_delay[row] else None,
            )
        except Unprocessable as error:
            error.extra["row"] = row
            raise
    times = np.where(has_time, np.maximum(time, 0), AT_ONCE)
    times = np.where(has_delay & (delay > 0), now_ms + delay, times)
    return None if (times == AT_ONCE).all() else times


def _rows_to_check(time: Times, has_time: NDArray[np.bool_], delay: Times, has_delay: NDArray[np.bool_]) -> list[int]:
    """Return rows of which one breaks the rule if any row does: one that gives both values, and the extremes."""
    both = np.flatnonzero(has_time & has_delay)[:1].tolist()
    return [*both, int(np.argmin(delay)), int(np.argmax(delay)), int(np.argmax(np.where(has_time, time, 0)))]


def _milliseconds(column: pa.Array | None, count: int) -> tuple[Times, NDArray[np.bool_]]:
    """Return milliseconds since 1970, rounded up (a message is never delivered early), and which rows have a time."""
    if column is None:
        return np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    try:
        times = pc.cast(column, TIME)
    except pa.ArrowInvalid as error:
        raise Unprocessable(f"deliver_time: {error}", field="deliver_time") from None
    micros, given = _whole(times.cast(pa.int64()), count)
    return -(-micros // 1000), given


def _whole(column: pa.Array | None, count: int) -> tuple[Times, NDArray[np.bool_]]:
    """Return the values, 0 for nulls, and which rows have a value."""
    if column is None:
        return np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    try:
        numbers = pc.cast(column, pa.int64())
    except pa.ArrowInvalid as error:
        raise Unprocessable(f"delay_ms: {error}", field="delay_ms") from None
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    return values, np.asarray(pc.is_valid(numbers))
