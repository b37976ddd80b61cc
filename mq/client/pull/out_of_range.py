"""The error of a pull consumer whose position is not, or no longer, in the partition."""

from __future__ import annotations

from deltamq.mq.client.pull.fetch import Fetched
from deltamq.mq.client.pull.partition_reader import PartitionReader
from deltamq.mq.errors import Refused


class OffsetOutOfRange(Refused):
    """The offset is not, or no longer, in the partition."""

    code = "offset_out_of_range"


def out_of_range(reader: PartitionReader, fetched: Fetched) -> OffsetOutOfRange:
    """Return the error for an answer that says that the offset is out of range."""
    return OffsetOutOfRange(
        f"offset {reader.fetch_offset} of {reader.partition} is not stored: it has [{fetched.min_offset}, "
        f"{fetched.max_offset}); seek to one of those, or set on_data_loss='skip'",
        code=fetched.status,
        field="offset",
        extra={
            "partition": reader.partition,
            "min_offset": fetched.min_offset,
            "max_offset": fetched.max_offset,
        },
    )
