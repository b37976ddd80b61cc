"""Delta's statistics of one data file: the part by which due rows are found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FileStats(msgspec.Struct):
    """Row count, and bounds and null counts by column; times are texts with milliseconds, fractions exact."""

    numRecords: int = -1
    minValues: dict[str, object] = {}
    maxValues: dict[str, object] = {}
    nullCount: dict[str, object] = {}


_stats: Final = msgspec.json.Decoder(FileStats, float_hook=Decimal)


def decoded_stats(stats: str) -> FileStats:
    """Return the parsed statistics; empty ones if they cannot be parsed, so that the file itself is read."""
    try:
        return _stats.decode(stats)
    except msgspec.MsgspecError:
        return FileStats()


def time_ms(text: object) -> int | None:
    """Return a time from the statistics in milliseconds, rounded down; None if `text` is not a time."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)
