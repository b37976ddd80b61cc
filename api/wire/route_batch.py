"""The routing of a request's messages to partitions: one request in, a few `PartitionShare`s out.

    named partition            -> there, whatever the key (SPEC ROUTE-7); of a static topic: the queue's leader
    key                        -> the partition of its slot: its logical partition, or by Kafka's hash (ROUTE-5)
    neither                    -> slices of the request over the partitions, from a random one on (ROUTE-5)

A replay is routed by its stored parts, not by the present route: `replayed` (SPEC SEND-5).

Hashing a key in Python costs twenty look-ups, so the hashes of recent keys are remembered: logical partitions, or the
numbers that Kafka's partitioner divides by the number of slots. They depend only on the key, not on the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.api.wire.rows import ArrowRows, Column, Indexes, Named, Rows
from deltamq.mq.errors import Conflict
from deltamq.mq.meta.moved_keys import Blocked, first_blocked
from deltamq.mq.partitioners import Slots, kafka_hash, logical_partition
from deltamq.mq.producer import Part
from deltamq.mq.routing import NamedSlotMap, SlotMap, spread
from deltamq.tables.key_column import kafka_hashes_of_keys, lps_of_keys, slots_of_keys


class PartitionShare(msgspec.Struct):
    """The messages of one request for one partition; `indexes` is None if they are the whole request.

    For delayed messages, `partition` is the delay partition of `delay_broker`.
    """

    partition: str
    messages: Rows | ArrowRows
    indexes: Indexes | None
    delay_broker: str | None = None


def route_messages(
    topic: str, messages: Rows | ArrowRows, named: Named, route: NamedSlotMap, draw: int
) -> list[PartitionShare]:
    """Split a request by partition, in request order inside each share; `draw` places messages without a key."""
    if isinstance(named, str):
        return [PartitionShare(route.partitions[route.number_of(topic, named, "partition")], messages, None)]
    if named is None and messages.key is None:
        return _spread(messages, route, draw)
    if named is None and len(route.partitions) == 1:
        return [PartitionShare(route.partitions[0], messages, None)]
    if messages.count == 1:
        return [PartitionShare(route.partitions[_target(topic, messages, named, route, draw)], messages, None)]
    targets = _targets(topic, messages, named, route, draw)
    return _grouped(messages, targets, route.partitions, np.arange(messages.count))


def bound_to(topic: str, messages: Rows | ArrowRows, named: Named, route: NamedSlotMap) -> NDArray[np.int16]:
    """Return the index of the partition that each message names, or that its key has; -1 if it has neither."""
    targets = np.full(messages.count, -1, dtype=np.int16)
    if isinstance(named, str):
        targets[:] = route.number_of(topic, named, "partition")
        return targets
    key = messages.key
    if key is not None:
        slots = slots_of_keys(key, route) if isinstance(key, pa.Array) else slots_of_list(key, route)
        targets = np.where(slots >= 0, route.table[slots], targets)
    if named is not None:
        _name(topic, named, route, targets)
    return targets


def check_named(topic: str, count: int, named: Named, route: NamedSlotMap) -> None:
    """Refuse the first partition that the `count` messages name and the route does not have."""
    if isinstance(named, str):
        route.number_of(topic, named, "partition")
    elif named is not None:
        _name(topic, named, route, np.full(count, -1, dtype=np.int16))


def replayed(
    topic: str,
    messages: Rows | ArrowRows,
    named: Named,
    route: NamedSlotMap,
    draw: int,
    stored: Mapping[str, Sequence[Part]],
    only: NDArray[np.int64] | None = None,
) -> list[PartitionShare]:
    """Return the shares of a replay: the parts in `stored`, by partition, and the rest by the present route.

    `only` are the indexes of the messages to store, by default all: parts with none of them are left out.

    Raises
    ------
    Conflict
        `producer_sequence_reused`: the stored request had another number of messages.
    """
    shares = []
    wanted = np.ones(messages.count, dtype=bool)
    if only is not None:
        wanted[:] = False
        wanted[only] = True
    left = wanted.copy()
    for partition, part in ((name, part) for name, parts in stored.items() for part in parts):
        check_same_request(part, messages.count)
        if part.indexes is None:
            return [PartitionShare(partition, messages, None)]
        indexes = np.array(part.indexes, dtype=np.int64)
        if not wanted[indexes].any():
            continue
        left[indexes] = False
        shares.append(PartitionShare(partition, messages.take(indexes), indexes))
    rest = np.flatnonzero(left)
    if rest.size:
        shares += rerouted(topic, PartitionShare("", messages.take(rest), rest), named, route, draw)
    return shares


def rerouted(topic: str, share: PartitionShare, named: Named, route: NamedSlotMap, draw: int) -> list[PartitionShare]:
    """Split one share of a request by another route; `named` and `draw` are the request's."""
    if share.indexes is None:
        return route_messages(topic, share.messages, named, route, draw)
    indexes = np.asarray(share.indexes, dtype=np.int64)
    if named is not None and not isinstance(named, str):
        named = [_value(named, at) for at in indexes.tolist()]
    shares = route_messages(topic, share.messages, named, route, draw)
    for part in shares:
        part.indexes = indexes if part.indexes is None else indexes[np.asarray(part.indexes)]
    return shares


def check_same_request(part: Part, count: int) -> None:
    """Refuse a request of `count` messages if `part`, stored under its number, belongs to one of another size."""
    if part.total != count:
        raise Conflict(
            f"producer.seq: {part.seq} was used for a request of {part.total} messages, this one has {count}",
            code="producer_sequence_reused",
            field="producer.seq",
            extra={"last_seq": part.seq},
        )


def _spread(messages: Rows | ArrowRows, route: NamedSlotMap, draw: int) -> list[PartitionShare]:
    if messages.count == 1:
        return [PartitionShare(route.partitions[_drawn(route, draw)], messages, None)]
    slices = spread(messages.count, route, draw)
    if len(slices) == 1:
        return [PartitionShare(route.partitions[slices[0][0]], messages, None)]
    return [
        PartitionShare(route.partitions[at], messages.slice(low, high), range(low, high)) for at, low, high in slices
    ]


def _drawn(route: NamedSlotMap, draw: int) -> int:
    """Return the index of the partition for one message without a key; it avoids partitions that take no messages."""
    drawn = int(route.table[draw % len(route.table)])
    return route.targets[draw % len(route.targets)] if drawn in route.avoided else drawn


def _value(column: Column, index: int) -> str | None:
    value = column[index]
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _target(topic: str, messages: Rows | ArrowRows, named: Column | None, route: NamedSlotMap, draw: int) -> int:
    partition = None if named is None else _value(named, 0)
    if partition is not None:
        return route.number_of(topic, partition, "messages[0].partition")
    key = None if messages.key is None else _value(messages.key, 0)
    return _drawn(route, draw) if key is None else int(route.table[slot_of_seen(key, route)])


def _targets(
    topic: str, messages: Rows | ArrowRows, named: Column | None, route: NamedSlotMap, draw: int
) -> NDArray[np.int16]:
    targets = bound_to(topic, messages, named, route)
    keyless = np.flatnonzero(targets < 0)
    if keyless.size:
        for at, low, high in spread(keyless.size, route, draw):
            targets[keyless[low:high]] = at
    return targets


def _name(topic: str, named: Column, route: NamedSlotMap, targets: NDArray[np.int16]) -> None:
    column = named if isinstance(named, pa.Array) else pa.array(named, pa.string())
    encoded = column.dictionary_encode()
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    for code, partition in enumerate(encoded.dictionary.to_pylist()):
        at = codes == code
        first = int(np.argmax(at))
        targets[at] = route.number_of(topic, partition, f"messages[{first}].partition")


def first_held_back(blocked: Blocked | None, rows: pa.Table) -> int:
    """Return how many messages come before the first one whose key must wait (SPEC ROUTE-6)."""
    if blocked is None or not rows.num_rows:
        return int(rows.num_rows)
    lps = np.concatenate([lps_of_keys(chunk) for chunk in rows.column("key").chunks])
    return first_blocked(blocked, lps)


def _grouped(
    messages: Rows | ArrowRows, targets: NDArray[np.int16], partitions: Sequence[str], indexes: NDArray[np.int64]
) -> list[PartitionShare]:
    first = targets[0]
    if (targets == first).all():
        return [PartitionShare(partitions[first], messages, None)]
    order = np.argsort(targets, kind="stable")
    edges = np.flatnonzero(np.diff(targets[order])) + 1
    return [
        PartitionShare(partitions[targets[part[0]]], messages.take(part), indexes[part])
        for part in np.split(order, edges)
    ]


#: Maximum number of recent keys of each kind.
_KEYS_MAX: Final = 65_536
#: Number of unseen keys from which on hashing them as one Arrow column is faster.
_COLUMN_MIN: Final = 16
_NULL: Final = -1
_UNSEEN: Final = -2


class _SeenKeys:
    """Recent keys with their numbers: `of_key` computes the number of a key, `of_column` of each key of a column."""

    def __init__(self, of_key: Callable[[str], int], of_column: Callable[[pa.StringArray], Slots]) -> None:
        self._of_key = of_key
        self._of_column = of_column
        self.numbers: Final[dict[str, int]] = {}

    def hashed(self, key: str) -> int:
        """Return the number of a key that is not remembered, and remember it."""
        number = self._of_key(key)
        self._remember({key: number})
        return number

    def of_list(self, keys: Sequence[str | None]) -> list[int]:
        """Return the number of each key, -1 for None."""
        get = self.numbers.get
        seen = [_NULL if k is None else get(k, _UNSEEN) for k in keys]
        if _UNSEEN in seen:
            unseen = {k for k, number in zip(keys, seen, strict=True) if number == _UNSEEN and k is not None}
            fresh = self._all_hashed(list(unseen))
            seen = [
                fresh[k] if number == _UNSEEN and k is not None else number
                for k, number in zip(keys, seen, strict=True)
            ]
            self._remember(fresh)
        return seen

    def _all_hashed(self, keys: list[str]) -> dict[str, int]:
        if len(keys) < _COLUMN_MIN:
            return {k: self._of_key(k) for k in keys}
        numbers: list[int] = self._of_column(pa.array(keys, pa.string())).tolist()
        return dict(zip(keys, numbers, strict=True))

    def _remember(self, keys: dict[str, int]) -> None:
        if len(self.numbers) + len(keys) > _KEYS_MAX:
            self.numbers.clear()
        self.numbers.update(keys)


_LPS: Final = _SeenKeys(logical_partition, lps_of_keys)
_HASHES: Final = _SeenKeys(kafka_hash, kafka_hashes_of_keys)
#: The dictionary stays the same object, so its method is looked up once.
_lp_seen: Final = _LPS.numbers.get


def slot_of_seen(key: str, places: SlotMap) -> int:
    """Return the slot of a key in the table of `places`."""
    if places.partitioner == "lp":
        lp = _lp_seen(key)
        return _LPS.hashed(key) if lp is None else lp
    number = _HASHES.numbers.get(key)
    return (_HASHES.hashed(key) if number is None else number) % len(places.table)


def slots_of_list(keys: Sequence[str | None], places: SlotMap) -> Slots:
    """Return the slot of each key of a list in the table of `places`, -1 for None."""
    if places.partitioner == "lp":
        return np.array(_LPS.of_list(keys), dtype=np.int16)
    numbers = np.array(_HASHES.of_list(keys), dtype=np.int32)
    return np.where(numbers == _NULL, np.int32(_NULL), numbers % np.int32(len(places.table)))
