"""Wall clocks and instants: what a clock in a time zone reads, and when it reads that.

An instant is UTC without a zone (`datetime64[s]`). Of a reading that a clock shows twice, in the night when summer time
ends, the first is meant; one that it skips, when summer time begins, stands for the moment of the skip.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: datetime64[s]; NaT where unknown.
Times: TypeAlias = NDArray[np.datetime64]

_DAY = np.timedelta64(1, "D")


def clock_minutes(reading: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return minutes since midnight for readings such as 517 (5:17); 2400, the midnight that ends a day, is 0."""
    return (reading // 100 * 60 + reading % 100) % 1440


def to_utc(wall: Times, zone: str) -> Times:
    """Return the instants at which clocks in `zone` read `wall`."""
    first = np.ones(len(wall), dtype=bool)
    local = pd.DatetimeIndex(wall).tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
    return _seconds(local.tz_convert("UTC").tz_localize(None))


def to_wall(utc: Times, zone: str) -> Times:
    """Return what clocks in `zone` read at the instants `utc`."""
    return _seconds(pd.DatetimeIndex(utc).tz_localize("UTC").tz_convert(zone).tz_localize(None))


def at(day: Times, minutes: NDArray[np.int64]) -> Times:
    """Return the reading `minutes` after the midnight that begins `day`."""
    return _seconds(day.astype("datetime64[D]") + minutes.astype("timedelta64[m]"))


def first_reading(after: Times, minutes: NDArray[np.int64], zone: str) -> Times:
    """Return the first instant later than `after` at which clocks in `zone` are `minutes` past midnight."""
    day = to_wall(after, zone)
    same = to_utc(at(day, minutes), zone)
    return np.where(same > after, same, to_utc(at(day + _DAY, minutes), zone))


def _seconds(times: object) -> Times:
    return np.asarray(times).astype("datetime64[s]")
