"""Delta's statistics of one data file, as far as what is due is found by them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

__all__ = ["FileStats", "decoded_stats", "time_ms"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FileStats(msgspec.Struct):
    """Counts and bounds by column; times are texts, with milliseconds."""

    numRecords: int = -1
    minValues: dict[str, object] = {}
    maxValues: dict[str, object] = {}
    nullCount: dict[str, object] = {}


_stats: Final = msgspec.json.Decoder(FileStats)


def decoded_stats(stats: str) -> FileStats:
    """Return the statistics; empty ones where they are none that we know, so that the file is looked into."""
    try:
        return _stats.decode(stats)
    except msgspec.MsgspecError:
        return FileStats()


def time_ms(text: object) -> int | None:
    """Return a time of the statistics in milliseconds, rounded down; None when it is none."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)
