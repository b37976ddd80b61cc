"""Splits many messages by partition: hashes keys as a column, moves rows once, makes no object for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.mq.client.admin.topic_view import TopicView
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.wire import ROW_SCHEMA
from deltamq.mq.errors import Refused, TooLarge
from deltamq.mq.limits import KEY_BYTES_MAX, MESSAGE_ID_BYTES_MAX, TAG_BYTES_MAX
from deltamq.mq.partitioners import Slots, column_buffers, slots_of
from deltamq.mq.routing import spread

#: Number of keys from which hashing them as a column is quicker than one by one.
_COLUMN_KEYS_MIN: Final = 256

#: Bytes that a row takes besides its body: offsets, a short key, a time.
_ROW_BYTES: Final = 32

Indexes = NDArray[np.int64]


class Slice(msgspec.Struct, frozen=True):
    """Messages or rows for one partition (None: not known yet), and their positions in the batch.

    `named` says that the caller chose the partition, so that no other is allowed.
    """

    partition: str | None
    messages: Sequence[Message]
    rows: pa.RecordBatch | None
    indexes: Indexes
    named: bool = False

    @property
    def size_bytes(self) -> int:
        """Approximate bytes in memory."""
        if self.rows is not None:
            return int(self.rows.nbytes)
        return sum(message.size_bytes() for message in self.messages)

    def part(self, low: int, high: int) -> Slice:
        """Return the messages or rows `[low, high)` of this slice."""
        rows = None if self.rows is None else self.rows.slice(low, high - low)
        return replace(self, messages=self.messages[low:high], rows=rows, indexes=self.indexes[low:high])


# Messages ------------------------------------------------------------------------------------------------------


def split_messages(messages: Sequence[Message], view: TopicView | None, draw: int) -> list[Slice]:
    """Group `messages` by partition, in order; the random number `draw` places messages without a key.

    Messages that name their partition make slices of their own. Without a view the others stay in one slice.
    """
    slices = _named_slices(messages)
    free = [i for i, message in enumerate(messages) if message.partition is None] if slices else range(len(messages))
    if not free:
        return slices
    at_free = np.array(free, dtype=np.int64)
    if view is None:
        return [*slices, Slice(None, [messages[i] for i in free], None, at_free)]
    targets = _message_targets([messages[i] for i in free], view, draw)
    for index, at in _grouped(targets, len(view.partitions)):
        positions = at_free[at]
        slices.append(Slice(view.partitions[index], [messages[i] for i in positions.tolist()], None, positions))
    return slices


def _named_slices(messages: Sequence[Message]) -> list[Slice]:
    groups: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        if message.partition is not None:
            groups.setdefault(message.partition, []).append(index)
    return [
        Slice(partition, [messages[i] for i in at], None, np.array(at, dtype=np.int64), named=True)
        for partition, at in groups.items()
    ]


def _message_targets(messages: Sequence[Message], view: TopicView, draw: int) -> NDArray[np.int64]:
    targets = np.full(len(messages), -1, dtype=np.int64)
    keyed = [i for i, message in enumerate(messages) if message.key is not None]
    if len(keyed) >= _COLUMN_KEYS_MIN:
        keys = pa.array([messages[i].key for i in keyed], pa.string())
        targets[keyed] = view.slots[_slots(keys, view)]
    else:
        table, slot_of = view.table, view.slot_of
        targets[keyed] = [table[slot_of(messages[i].key or "")] for i in keyed]
    _place_keyless(targets, view, draw)
    return targets


def _place_keyless(targets: NDArray[np.int64], view: TopicView, draw: int) -> None:
    """Spread the messages without a target over the partitions, in contiguous runs."""
    keyless = np.flatnonzero(targets < 0)
    for index, low, high in spread(len(keyless), view.places, draw):
        targets[keyless[low:high]] = index


def _grouped(targets: NDArray[np.int64], partitions: int) -> Iterator[tuple[int, Indexes]]:
    """Yield for each partition that occurs the positions of its messages, ascending."""
    order = np.argsort(targets.astype(np.int16), kind="stable")
    ends = np.cumsum(np.bincount(targets, minlength=partitions))
    start = 0
    for index, end in enumerate(ends.tolist()):
        if end > start:
            yield index, order[start:end]
        start = end


# Rows ----------------------------------------------------------------------------------------------------------


def checked_rows(table: pa.Table, message_bytes_max: int) -> pa.Table:
    """Return `table` with the wire's types, after the checks of the service (SPEC SEND-6).

    Raises
    ------
    Refused
        A column is unknown, missing, of a wrong type, or holds a value over its limit; the error names the column.
    """
    fields = []
    columns = []
    for name in table.column_names:
        if name not in ROW_SCHEMA.names and name != "value":
            raise Refused(
                f"{name} is not a column of a message; the columns are {', '.join(ROW_SCHEMA.names)}",
                code="unknown_field",
                field=name,
            )
    has_values = "value" in table.column_names
    if not has_values and "body" not in table.column_names:
        raise Refused("the column body is missing", code="missing_field", field="body")
    for field in ROW_SCHEMA:
        if field.name in table.column_names and table.column(field.name).null_count < len(table):
            columns.append(_cast(field, table.column(field.name)))
            fields.append(field)
    if has_values:
        columns.append(table.column("value"))
        fields.append(table.field("value"))
    elif table.column("body").null_count:
        raise Refused("every message needs a body; the column body has nulls", code="missing_field", field="body")
    checked = pa.Table.from_arrays(columns, schema=pa.schema(fields)) if columns else ROW_SCHEMA.empty_table()
    limits = {
        "body": message_bytes_max,
        "key": KEY_BYTES_MAX,
        "tag": TAG_BYTES_MAX,
        "message_id": MESSAGE_ID_BYTES_MAX,
    }
    for name, limit in limits.items():
        if name in checked.column_names:
            _check_lengths(name, checked.column(name), limit)
    return checked


def _cast(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(f"{field.name}: {error}", code="invalid_type", field=field.name) from error


def _check_lengths(name: str, column: pa.ChunkedArray, limit: int) -> None:
    lengths = pc.binary_length(column)
    longest = pc.max(lengths).as_py() or 0
    if longest > limit:
        row = pc.index(pc.greater(lengths, limit), True).as_py()
        raise TooLarge(
            f"{name} of row {row} has {longest:,} bytes, more than {limit:,}",
            code="message_too_large",
            field=name,
            extra={"limit": limit, "row": row},
        )


def split_rows(rows: pa.RecordBatch, view: TopicView | None, draw: int) -> list[Slice]:
    """Split checked rows by partition, in order.

    Without keys the slices are contiguous and share the memory of `rows`; with keys the rows are moved once.
    """
    if view is None or len(view.partitions) == 1:
        partition = None if view is None else view.partitions[0]
        return [Slice(partition, (), rows, np.arange(rows.num_rows))]
    at = rows.schema.get_field_index("key")
    if at < 0:
        return [
            Slice(view.partitions[index], (), rows.slice(low, high - low), np.arange(low, high))
            for index, low, high in spread(rows.num_rows, view.places, draw)
        ]
    targets = _row_targets(rows.column(at), view, draw)
    return [
        Slice(view.partitions[index], (), rows.take(pa.array(at_rows)), at_rows)
        for index, at_rows in _grouped(targets, len(view.partitions))
    ]


def chunk_starts(table: pa.Table, chunk_bytes: int, chunk_rows: int) -> list[int]:
    """Return the first row of each chunk of `table`, and the end; a chunk has about `chunk_bytes` of bodies at most.

    The same table always gives the same chunks; a resumed send relies on that.
    """
    # The column's chunks are not combined: one chunk cannot have 2 GiB of bodies.
    if "body" in table.column_names:
        lengths = np.asarray(pc.binary_length(table.column("body")), dtype=np.int64)
    else:
        lengths = np.full(len(table), table.column("value").nbytes // max(1, len(table)))
    ends = np.cumsum(lengths + _ROW_BYTES)
    starts = [0]
    while starts[-1] < len(table):
        low = starts[-1]
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + chunk_bytes, side="right"))
        starts.append(min(max(high, low + 1), low + chunk_rows, len(table)))
    return starts


def chunk_of(table: pa.Table, low: int, high: int) -> pa.RecordBatch:
    """Return rows `[low, high)` of `table` as one batch, copied only if they span several of the table's chunks."""
    return table.slice(low, high - low).combine_chunks().to_batches()[0]


def with_headers(
    chunk: pa.RecordBatch, headers: Callable[[dict[str, str] | None], dict[str, str] | None]
) -> pa.RecordBatch:
    """Return rows with what `headers` makes of each row's headers; it is asked once if no row has any."""
    field = ROW_SCHEMA.field("headers")
    at = chunk.schema.get_field_index("headers")
    if at < 0:
        same = pa.array([list((headers(None) or {}).items())], field.type)
        return chunk.append_column(field, same.take(pa.array(np.zeros(chunk.num_rows, dtype=np.int32))))
    given = [None if pairs is None else dict(pairs) for pairs in chunk.column(at).to_pylist()]
    made = [list((headers(one) or {}).items()) for one in given]
    return chunk.set_column(at, field, pa.array(made, field.type))


def _row_targets(keys: pa.StringArray, view: TopicView, draw: int) -> NDArray[np.int64]:
    targets = view.slots[_slots(keys, view)].astype(np.int64)
    if keys.null_count:
        targets[np.asarray(keys.is_null())] = -1
        _place_keyless(targets, view, draw)
    return targets


def _slots(keys: pa.StringArray, view: TopicView) -> Slots:
    """Return the slot of each key; a null gets the slot of the empty key."""
    slots = slots_of(*column_buffers(keys), view.partitioner, len(view.table))
    assert slots.max(initial=0) < len(view.table)
    return slots
