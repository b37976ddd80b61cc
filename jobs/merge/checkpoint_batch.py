"""Folds many records of the revive log to one row for each checkpoint.

    decode    rows of the log          -->  the additions of each record to checkpoints
    fold      such parts, of any logs  -->  one row for each checkpoint

It is the fold of `mq.queue` in columns: a property test checks that both agree. The result is the source of the MERGE
into `state/pop_checkpoints`, which joins it with the table in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.merge.record_columns import Damaged, checked, columns_of, lists_of, required
from deltamq.mq.limits import CHECKPOINT_MESSAGES_MAX
from deltamq.tables.queue.records import records_of
from deltamq.tables.schema import TIME
from deltamq.tables.state.schema import CHECKPOINT_KEY, POP_CHECKPOINTS_SCHEMA

#: A row of `state/pop_checkpoints` without the columns that the MERGE derives.
BATCH_SCHEMA: Final = pa.schema(
    [column for column in POP_CHECKPOINTS_SCHEMA if column.name not in ("in_flight", "due_time", "merged_at", "broker")]
)
#: Columns of the checkpoint itself; of a checkpoint that was stored twice, the first record wins, as in `mq`.
OF_CHECKPOINT: Final = (
    "topic",
    "num",
    "diffs",
    "attempts",
    "invisible_ms",
    "dead_reason",
    "given_back",
    "revive_queue",
    "revive_offset",
)
_BITS_MAX: Final = (1 << CHECKPOINT_MESSAGES_MAX) - 1
_TAGS: Final = pa.array(["ck", "ack", "bAck", "done"])
#: No text in a stored record can contain this, since its quotes would be escaped.
_ATTEMPT_LIST: Final = b'"a":['

_KEY: Final = [
    ("ti", pa.string()),
    ("c", pa.string()),
    ("e", pa.int64()),
    ("r", pa.bool_()),
    ("q", pa.string()),
    ("bn", pa.string()),
    ("so", pa.int64()),
    ("pt", pa.int64()),
]
_KEY_NAMES: Final = tuple(name for name, _ in _KEY)
_CHECKPOINT: Final = [
    ("t", pa.string()),
    ("it", pa.int64()),
    ("rq", pa.int64()),
    ("n", pa.int64()),
    ("bm", pa.int64()),
    ("d", pa.list_(pa.int64())),
    ("rp", pa.struct([*_KEY, ("b", pa.int64())])),
    ("dr", pa.string()),
    ("gb", pa.bool_()),
]
_OTHERS: Final = [("b", pa.int64()), ("rt", pa.int64())]

Ints = NDArray[np.int64]
Column: TypeAlias = pa.Array | pa.ChunkedArray


def decode(rows: pa.Table) -> pa.Table:
    """Return the additions of the records of `rows(tag, body, offset)` to checkpoints, in the columns of
    `BATCH_SCHEMA`.

    Raises
    ------
    Corrupt
        A row is not a valid record; the detail names its offset.
    """
    return checked(rows, _decode, records_of)


def _decode(rows: pa.Table) -> pa.Table:
    if not pc.all(pc.is_in(rows.column("tag"), value_set=_TAGS), min_count=0).as_py():
        raise Damaged("a record of unknown kind")
    # `a` is one attempt for all messages or a list of attempts, but Arrow reads a field as one type.
    listed = pc.match_substring(rows.column("body"), _ATTEMPT_LIST)
    parts = [
        part
        for mask, attempts in ((pc.invert(listed), pa.int64()), (listed, pa.list_(pa.int64())))
        for part in _parts(rows.filter(mask), attempts)
    ]
    return pa.concat_tables(parts)


def _parts(rows: pa.Table, attempts: pa.DataType) -> list[pa.Table]:
    schema = pa.schema([*_KEY, *_CHECKPOINT, ("a", attempts), *_OTHERS])
    fields = columns_of(rows.column("body").combine_chunks(), schema)
    fields = fields.append_column("tag", rows.column("tag")).append_column("offset", rows.column("offset"))
    required(fields, *_KEY_NAMES)
    if _lowest(fields.column("so")) < 0:
        raise Damaged("a negative offset")
    is_checkpoint = pc.equal(fields.column("tag"), "ck")
    checkpoints = fields.filter(is_checkpoint)
    taken = checkpoints.filter(pc.is_valid(checkpoints.column("rp")))
    return [_of_checkpoints(checkpoints), _of_replaced(taken), _of_bits(fields.filter(pc.invert(is_checkpoint)))]


def _of_checkpoints(fields: pa.Table) -> pa.Table:
    required(fields, "t", "it", "rq", "n", "bm", "a")
    counts = _ints(fields.column("n"))
    if len(counts) and not 1 <= counts.min() <= counts.max() <= CHECKPOINT_MESSAGES_MAX:
        raise Damaged("a checkpoint covers 1 to 32 messages")
    bit_map = _ints(fields.column("bm"))
    if (bit_map < 0).any() or (bit_map > (1 << counts) - 1).any():
        raise Damaged("a bit without a message")
    if min(_lowest(fields.column("it")), _lowest(fields.column("rq"))) < 0:
        raise Damaged("a negative number")
    _check_diffs(fields.column("d"), counts)
    return _table(
        fields,
        topic=fields.column("t"),
        num=pa.array(counts.astype(np.int32)),
        diffs=fields.column("d"),
        attempts=_attempts(fields.column("a"), counts),
        invisible_ms=fields.column("it"),
        revive_time=_time(_ints(fields.column("pt")) + _ints(fields.column("it"))),
        acked=pa.array(bit_map),
        dead_reason=fields.column("dr"),
        given_back=fields.column("gb"),
        revive_queue=fields.column("rq").cast(pa.int32()),
        revive_offset=fields.column("offset"),
    )


def _check_diffs(diffs: pa.ChunkedArray, counts: Ints) -> None:
    """Offset differences must ascend from 0, with one for each message."""
    there = pc.is_valid(diffs).to_numpy()
    lists = lists_of(diffs.filter(pc.is_valid(diffs)))
    values, starts = _values(lists), lists.offsets.to_numpy()
    if (np.diff(starts) != counts[there]).any():
        raise Damaged("an offset difference for each message, or none")
    first = starts[:-1] - (starts[0] if len(starts) else 0)
    inner = np.ones(len(values), dtype=bool)
    inner[first] = False
    if values[first].any() or (np.diff(values, prepend=0)[inner] <= 0).any():
        raise Damaged("offset differences that do not ascend from 0")


def _attempts(column: pa.ChunkedArray, counts: Ints) -> pa.Array:
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    if pa.types.is_list(column.type):
        lists = lists_of(column)
        if (np.diff(lists.offsets.to_numpy()) != counts).any():
            raise Damaged("an attempt for each message, or one for all")
        values = _values(lists)
    else:
        values = np.repeat(_ints(column), counts)
    return pa.ListArray.from_arrays(pa.array(starts), pa.array(values).cast(pa.int32()))


def _of_replaced(fields: pa.Table) -> pa.Table:
    """The messages of other checkpoints whose leases these checkpoints have taken over."""
    inner = pa.Table.from_struct_array(fields.column("rp"))
    required(inner, *_KEY_NAMES)
    if _lowest(inner.column("so")) < 0:
        raise Damaged("a negative offset")
    return _table(inner, replaced=_bits(inner))


def _of_bits(fields: pa.Table) -> pa.Table:
    required(fields, "rt")
    bits = _bits(fields)
    done = pc.equal(fields.column("tag"), "done").to_numpy()
    return _table(
        fields,
        acked=pa.array(np.where(done, 0, bits)),
        done=pa.array(np.where(done, bits, 0)),
        revive_time=_time(_ints(fields.column("rt"))),
    )


def _bits(fields: pa.Table) -> pa.Array:
    required(fields, "b")
    bits = _ints(fields.column("b"))
    if len(bits) and not 0 < bits.min() <= bits.max() <= _BITS_MAX:
        raise Damaged("bits that no checkpoint has")
    return pa.array(bits)


def _table(fields: pa.Table, **given: Column) -> pa.Table:
    """Bit maps that are not given are empty."""
    count = fields.num_rows
    columns: dict[str, Column] = {
        "topic_id": fields.column("ti"),
        "group": fields.column("c"),
        "retry": fields.column("r"),
        "partition": pc.binary_join_element_wise(fields.column("q"), fields.column("bn"), "@"),
        "epoch": fields.column("e"),
        "start_offset": fields.column("so"),
        "pop_time": _time(_ints(fields.column("pt"))),
        **{name: pa.array(np.zeros(count, dtype=np.int64)) for name in ("acked", "replaced", "done")},
        **given,
    }
    arrays = [columns.get(column.name, pa.nulls(count, column.type)) for column in BATCH_SCHEMA]
    return pa.Table.from_arrays(arrays, names=BATCH_SCHEMA.names).cast(BATCH_SCHEMA)


def _time(ms: Ints) -> pa.Array:
    return pa.array(ms * 1_000).cast(TIME)


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = column.to_numpy()
    return values.astype(np.int64, copy=False)


def _values(lists: pa.ListArray) -> Ints:
    flat = lists.flatten()
    if flat.null_count:
        raise Damaged("a list that contains null")
    values: Ints = flat.to_numpy()
    return values


def _lowest(column: pa.ChunkedArray) -> int:
    lowest: Any = pc.min(column).as_py()
    return 0 if lowest is None else int(lowest)


def fold(parts: Sequence[pa.Table]) -> pa.Table:
    """Return one row for each checkpoint: the union of the bit maps, and the checkpoint itself if any part has it.

    A checkpoint that was stored twice, because the answer of an append was lost, is taken from its first record.
    """
    table = pa.concat_tables([BATCH_SCHEMA.empty_table(), *parts]).combine_chunks()
    count = table.num_rows
    if not count:
        return table
    keyed = table.select(CHECKPOINT_KEY).append_column("row", pa.array(np.arange(count)))
    groups = keyed.group_by(list(CHECKPOINT_KEY), use_threads=False).aggregate([("row", "list")])
    lists = lists_of(groups.column("row_list"))
    order, starts = lists.flatten().to_numpy(), lists.offsets.to_numpy()[:-1]
    columns: dict[str, Column] = {name: groups.column(name) for name in CHECKPOINT_KEY}
    for name in ("acked", "replaced", "done"):
        columns[name] = pa.array(np.bitwise_or.reduceat(_ints(table.column(name))[order], starts))
    times = pc.fill_null(table.column("revive_time").cast(pa.int64()), 0).to_numpy()
    latest = np.maximum.reduceat(times[order], starts)
    columns["revive_time"] = pa.array(latest, mask=latest == 0).cast(TIME)
    chosen = np.minimum.reduceat(_rank(table)[order], starts)
    at = pa.array(_by_rank(table)[np.minimum(chosen, count - 1)], mask=chosen == count)
    for name in OF_CHECKPOINT:
        columns[name] = table.column(name).take(at)
    return pa.Table.from_arrays([columns[name] for name in BATCH_SCHEMA.names], schema=BATCH_SCHEMA)


def _by_rank(table: pa.Table) -> Ints:
    """Row numbers in order of the log; rows without a checkpoint (nulls) come last."""
    order = [(name, "ascending") for name in ("revive_offset", "revive_queue", "num", "invisible_ms", "topic")]
    row_numbers: Ints = pc.sort_indices(table, sort_keys=order).to_numpy().astype(np.int64)
    return row_numbers


def _rank(table: pa.Table) -> Ints:
    """The position of each row in `_by_rank`; the number of rows if it has no checkpoint."""
    count = table.num_rows
    rank = np.empty(count, dtype=np.int64)
    rank[_by_rank(table)] = np.arange(count)
    rank[pc.is_null(table.column("num")).to_numpy()] = count
    return rank


def is_open(rows: pa.Table) -> NDArray[np.bool_]:
    """Compute `CheckpointState.open` in columns: whether some messages of each checkpoint are not dealt with."""
    full = (np.int64(1) << pc.fill_null(rows.column("num"), 0).to_numpy().astype(np.int64)) - 1
    dealt_with = np.zeros(rows.num_rows, dtype=np.int64)
    for name in ("acked", "replaced", "done"):
        dealt_with |= rows.column(name).to_numpy()
    unfinished: NDArray[np.bool_] = (full & ~dealt_with) != 0
    return unfinished
