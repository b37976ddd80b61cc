"""The decoded and checked body of a produce request, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Meta

from api.wire.rows import ArrowRows, Rows
from mq.limits import PRODUCER_ID_LENGTH_MAX, PRODUCER_SEQ_MAX
from tables.queue import Times

__all__ = ["Column", "Decoded", "Named", "Producer"]

#: Visible ASCII, so that the same id fits into a header.
PRODUCER_ID_PATTERN: Final = rf"^[!-~]{{1,{PRODUCER_ID_LENGTH_MAX}}}$"
#: The partitions that messages name: one for all, or a column.
Column: TypeAlias = Sequence[str | None] | pa.StringArray
Named: TypeAlias = str | Column | None


class Producer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An idempotent producer and the number of this request, from 0 (SPEC SEND-5)."""

    id: Annotated[str, Meta(pattern=PRODUCER_ID_PATTERN)]
    seq: Annotated[int, Meta(ge=0, le=PRODUCER_SEQ_MAX)]


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
