"""The decoded and checked body of a produce request, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from deltamq.api.wire.rows import ArrowRows, Rows
from deltamq.mq.wire.produce import Producer
from deltamq.tables.queue.deliver_times import Times

#: The partitions that messages name: one for all, or a column.
Column: TypeAlias = Sequence[str | None] | pa.StringArray
Named: TypeAlias = str | Column | None


@dataclass(slots=True)
class Decoded:
    """The messages of one request, and the other fields of its body."""

    rows: Rows | ArrowRows
    #: The partition that each message names; None if no message names one.
    partitions: Column | None
    #: When each message is delivered; None if no message is delayed.
    times: Times | None = None
    producer: Producer | None = None
    expected_offset: int | None = None
