"""The search for messages that pass a filter: bounded steps through a partition, for fetches and pops alike."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from deltamq.tables.log.fetch import Fetched, FetchStatus, cut_to_bytes
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter

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
    #: The offset of the first message that passes and had no room among `kept`; None if all had.
    rest: int | None = None
    #: The approximate size of `kept` in an answer, in bytes.
    weight: int = 0


def scan_filtered(
    log: PartitionLog,
    start: int,
    wanted: MessageFilter,
    *,
    max_messages: int,
    max_bytes: int,
    limit: int | None = None,
) -> Scanned:
    """Return the first messages of the offsets `[start, limit)` that pass the filter; blocking.

    At least one message is kept if one is found, whatever its bytes.
    """
    at, found = start, None
    step, step_bytes = max(max_messages, _MESSAGES), max(max_bytes, _BYTES)
    for _ in range(_STEPS_MAX):
        room = step if limit is None else min(step, limit - at)
        if room <= 0:
            break
        found = log.read(at, max_messages=room, max_bytes=step_bytes)
        if found.status is not FetchStatus.FOUND:
            break
        matching = wanted.matching(found.rows)
        at = found.next_offset
        if matching.num_rows:
            kept, weight = cut_to_bytes(matching.slice(0, max_messages), max_bytes, at_least=1)
            rest = matching.column("offset")[kept.num_rows].as_py() if kept.num_rows < matching.num_rows else None
            return Scanned(found, kept, at, rest, weight)
    return Scanned(found, None, at)
