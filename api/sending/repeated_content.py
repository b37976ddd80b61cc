"""Whether a repeated request brings what it brought the first time (SPEC SEND-10).

Its number says that it is stored already, and the number alone is compared in the append. Two processes that use one
producer id, such as copies of one virtual machine, send different messages under one number: who is told that its
message is stored must find it there. Repeats are rare, so they are compared with the stored rows.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.log.parts import RequestPart
from deltamq.api.wire.rows import ArrowRows, Rows, to_record_batch
from deltamq.mq.limits import FETCH_BYTES_MAX
from deltamq.tables.log.batch import Appended
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog

_COMPARED = ("key", "tag", "body")


def brings_the_same(log: PartitionLog, appended: Appended, part: RequestPart) -> bool:
    """Whether the messages of a part that is a repeat are those stored; what retention has taken counts as the same."""
    rows = part.messages
    if not isinstance(rows, (Rows, ArrowRows)):
        return True
    batch = to_record_batch([rows]) if isinstance(rows, Rows) else rows.batch
    at = 0
    while at < appended.count:
        fetched = log.read(appended.base_offset + at, max_messages=appended.count - at, max_bytes=FETCH_BYTES_MAX)
        if fetched.status is not FetchStatus.FOUND:
            return True
        stored = fetched.rows
        if not all(_same(batch.slice(at, stored.num_rows), stored, name) for name in _COMPARED):
            return False
        at += stored.num_rows
    return True


def _same(sent: pa.RecordBatch, stored: pa.Table, name: str) -> bool:
    kind = stored.schema.field(name).type
    column = stored.column(name).combine_chunks()
    if sent.schema.get_field_index(name) < 0:
        return int(column.null_count) == len(column)
    same: bool = pc.cast(sent.column(name), kind).equals(column)
    return same
