"""Routes the rows of a write as the service does, column by column (SPEC ROUTE-5, ROUTE-7).

    named partition -> this partition;   key -> the partition of its slot;   neither -> spread from a drawn partition

A part is the rows of one piece for one partition. It also says whether the rows wait there for their delivery
time, and by which placement they were routed: parts of equal `token` were routed alike. In a static topic rows name
logical queues; a part keeps the name of its queue, which leads to the queue's present leader after a remapping.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.sink.columns import SinkRows
from deltamq.jobs.sink.typed_rows import typed_rows
from deltamq.mq.errors import NotFound, Unavailable
from deltamq.mq.meta.access import not_writable
from deltamq.mq.meta.topics import Topic
from deltamq.mq.routing import spread
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.key_column import slots_of_keys
from deltamq.tables.queue.deliver_times import AT_ONCE
from deltamq.tables.queue.placement import Placement
from deltamq.tables.schema import TIME
from deltamq.tables.typed.codec import Codec

#: A column of staged rows: whether the row named its partition, which then wins over its key.
NAMED: Final = "named"
Targets = NDArray[np.int16]


class RoutedPart(msgspec.Struct, frozen=True):
    """Rows for one partition, or with `waits` for the delay partition of its broker."""

    topic: str
    partition: str
    token: str
    waits: bool
    rows: pa.RecordBatch
    #: The logical queue that the partition led; empty in a plain topic.
    queue: str = ""


def token_of(topic: Topic, placement: Placement) -> str:
    """Return a token that two placements share exactly if they put every row into the same partition."""
    token = f"{topic.id}:{len(placement.partitions)}:{zlib.crc32(placement.table.tobytes()):08x}"
    if placement.partitioner == "kafka":
        return f"{token}:kafka"
    if placement.queues is None:
        return token
    # partitions of a static topic may be dropped, so that the same number stands for another partition
    return f"{token}:{zlib.crc32(repr((placement.partitions, sorted(placement.names.items()))).encode()):08x}"


def route_rows(
    given: SinkRows,
    topic_named: str | None,
    routed: Callable[[str], tuple[Topic, Placement]],
    codec_of: Callable[[Topic], Codec | None],
    *,
    draw: int,
    now_ms: int,
) -> Iterator[RoutedPart]:
    """Yield the rows grouped by partition, in their order within each.

    Parameters
    ----------
    topic_named
        The topic of the option; None if a column names one for each row.
    routed
        Returns a topic and its placement by name.
    codec_of
        Returns the codec of a topic that has a schema.
    draw
        The number that decides at which partition rows without a key begin.
    """
    if topic_named is not None:
        yield from _route(given, *routed(topic_named), codec_of, draw=draw, now_ms=now_ms)
        return
    assert given.topics is not None, "checked with the schema"
    encoded = given.topics.dictionary_encode()
    codes = np.asarray(encoded.indices)
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        at = np.flatnonzero(codes == code)
        rows_of_topic = given if len(at) == len(codes) else _taken(given, at)
        yield from _route(rows_of_topic, *routed(name), codec_of, draw=draw, now_ms=now_ms)


def _taken(given: SinkRows, at: NDArray[np.int64]) -> SinkRows:
    index = pa.array(at)
    named = None if given.partitions is None else given.partitions.take(index)
    values = None if given.values is None else given.values.take(index)
    return SinkRows(given.rows.take(index), None, named, None if given.times is None else given.times[at], values)


def _route(
    given: SinkRows,
    topic: Topic,
    placement: Placement,
    codec_of: Callable[[Topic], Codec | None],
    *,
    draw: int,
    now_ms: int,
) -> Iterator[RoutedPart]:
    targets = _targets(given, topic, placement, draw)
    waits = np.zeros(len(targets), dtype=bool) if given.times is None else given.times > now_ms
    rows = typed_rows(given, topic.name, codec_of(topic))
    if given.partitions is not None:
        rows = rows.append_column(NAMED, given.partitions.is_valid())
    if waits.any():
        assert given.times is not None
        at = np.where(waits, given.times, 0)
        rows = rows.append_column(pa.field("deliver_time", TIME), pa.array(at * 1000, pa.int64()).cast(TIME))
    token = token_of(topic, placement)
    queues = {number: name for name, number in placement.names.items()} if placement.queues is not None else {}
    for code, part in _grouped(rows, targets.astype(np.int32) * 2 + waits):
        target = code // 2
        partition = placement.partitions[target]
        yield RoutedPart(topic.name, partition, token, bool(code % 2), part, queues.get(target, ""))


def _targets(given: SinkRows, topic: Topic, placement: Placement, draw: int) -> Targets:
    count = given.rows.num_rows
    targets = np.full(count, -1, dtype=np.int16)
    at = given.rows.schema.get_field_index("key")
    if at >= 0:
        targets = _by_key(given.rows.column(at), placement, targets)
    if given.partitions is not None:
        targets = _by_name(given.partitions, topic, placement, targets)
    keyless = np.flatnonzero(targets < 0)
    if keyless.size and not placement.targets:
        raise _unserved(topic)
    for index, low, high in spread(keyless.size, placement, draw):
        targets[keyless[low:high]] = index
    return _served(targets, topic, placement)


def _served(targets: Targets, topic: Topic, placement: Placement) -> Targets:
    """Refuse targets that accept no messages: their rows never go elsewhere (STATIC-22)."""
    if placement.avoided:
        for number in np.unique(targets[np.isin(targets, sorted(placement.avoided))]).tolist():
            if number in placement.unserved:
                raise _unserved(topic)
            raise not_writable(f"topic {topic.name}: {placement.partitions[number]}", placement.closed[number])
    return targets


def _unserved(topic: Topic) -> Unavailable:
    detail = f"topic {topic.name}: the mapping of a logical queue is not available, so its messages cannot be appended"
    return Unavailable(f"{detail}; check the topic, then start the query again", code="queue_unserved")


def _by_key(key: pa.StringArray, placement: Placement, targets: Targets) -> Targets:
    if len(placement.partitions) == 1:
        return np.zeros_like(targets)
    slots = slots_of_keys(key, placement)
    return np.where(slots >= 0, placement.table[slots], targets).astype(np.int16)


def _by_name(named: pa.StringArray, topic: Topic, placement: Placement, targets: Targets) -> Targets:
    encoded = named.dictionary_encode()
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        targets[codes == code] = _index(name, topic, placement)
    return targets


def _index(name: str, topic: Topic, placement: Placement) -> int:
    """Return the number of the partition that a row names, by name or by number, or raise as `Placement.number_of`."""
    if placement.queues is not None:
        queue = queue_name(int(name)) if name.isdigit() and int(name) < placement.queues.total else name
        return placement.number_of(topic.name, queue, "partition")
    if name in placement.names:
        return placement.names[name]
    if name.isdigit() and int(name) < len(placement.partitions):
        return int(name)
    known = ", ".join(placement.partitions)
    detail = f"partition: topic {topic.name} has no partition {name!r}; it has {known}. Drop the column to go by key"
    raise NotFound(detail, code="partition_not_found", field="partition")


def _grouped(rows: pa.RecordBatch, codes: NDArray[np.int32]) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not len(codes):
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    for part in np.split(order, edges):
        yield int(codes[part[0]]), rows.take(pa.array(part))


def targets_again(
    rows: pa.RecordBatch, partition: str, topic: Topic, placement: Placement, *, queue: str = ""
) -> Targets:
    """Route staged rows with a key by another placement; the other rows stay.

    Rows that stay in a static topic follow their logical `queue` to its present leader.

    Raises
    ------
    NotFound
        The topic no longer has such a partition: it was deleted and created again.
    Unavailable
        `queue_unserved`: the mapping of the logical queue is not available.
    """
    home = queue or _queue_of(partition, placement) or partition
    targets = np.full(rows.num_rows, _index(home, topic, placement), dtype=np.int16)
    at = rows.schema.get_field_index("key")
    if at < 0:
        return targets
    moved = _by_key(rows.column(at), placement, targets)
    named = rows.schema.get_field_index(NAMED)
    kept = moved if named < 0 else np.where(np.asarray(rows.column(named)), targets, moved).astype(np.int16)
    return _served(kept, topic, placement)


def are_free(rows: pa.RecordBatch, placement: Placement) -> NDArray[np.bool_]:
    """Return which staged rows may go to any partition: those without a key that name no partition."""
    at, named = (rows.schema.get_field_index(name) for name in ("key", NAMED))
    free = np.ones(rows.num_rows, dtype=bool) if at < 0 else slots_of_keys(rows.column(at), placement) < 0
    return free if named < 0 else free & ~np.asarray(rows.column(named))


def _queue_of(partition: str, placement: Placement) -> str:
    """The logical queue of a partition that was staged before its topic was made again as a static topic."""
    segment = None if placement.queues is None else placement.queues.of_partition(partition)
    return "" if segment is None else segment.queue.name


assert AT_ONCE < 0, "a message without a delay is due before any time"
