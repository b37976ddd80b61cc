"""From a key to its slot in a topic's table, which names the partition (SPEC ROUTE-4, KAFKA-12).

    lp       key -> logical partition                             of 1,024, as Spark SQL computes it; a route maps them
    kafka    key -> Kafka's hash, modulo the size of the table    the i-th of n slots is the i-th partition of the route

A table of `kafka` has a multiple of n slots while partitions are closed (`tables.queue.placement`): the hash modulo n
follows from the hash modulo any multiple of n, so no other key moves.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.murmur2 import hash_bytes, hash_pieces
from deltamq.mq.murmur3 import hash_string, hash_strings

#: By which hash the keys of a topic go to its partitions: Spark's, or that of Kafka's clients.
Partitioner: TypeAlias = Literal["lp", "kafka"]
#: For each slot the index of a partition.
Table: TypeAlias = NDArray[np.int16]
Slots: TypeAlias = NDArray[np.int16] | NDArray[np.int32]
Offsets: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

#: Kafka's partitioner takes the lower 31 bits, because Java's remainder of a negative number is negative.
_POSITIVE: Final = 0x7FFF_FFFF


def logical_partition(key: str) -> int:
    """Return the LP of `key`: `pmod(hash(key), 1024)` in Spark SQL (SPEC ROUTE-4)."""
    return hash_string(key) % LOGICAL_PARTITIONS


def logical_partitions(offsets: Offsets, data: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return the LP of every key of an Arrow string column, from its buffers (see `hash_column`)."""
    # The number of LPs is a power of two, so the low bits are the positive remainder.
    return (hash_strings(offsets, data) & (LOGICAL_PARTITIONS - 1)).astype(np.int16)


def kafka_hash(key: str) -> int:
    """Return the number that Kafka's default partitioner divides by the number of partitions; never negative."""
    return hash_bytes(key.encode()) & _POSITIVE


def kafka_hashes(offsets: Offsets, data: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the same number of every key of an Arrow column of strings or bytes, from its buffers."""
    return hash_pieces(offsets, data) & np.int32(_POSITIVE)


def kafka_table(partitions: int) -> Table:
    """Return the table of a topic with this many partitions, whose keys go by Kafka's hash; read only."""
    table = np.arange(partitions, dtype=np.int16)
    table.flags.writeable = False
    return table


def slot_of(key: str, partitioner: Partitioner, slots: int) -> int:
    """Return the slot of `key` in a table of this size."""
    return kafka_hash(key) % slots if partitioner == "kafka" else logical_partition(key)


def slots_of(offsets: Offsets, data: NDArray[np.uint8], partitioner: Partitioner, slots: int) -> Slots:
    """Return the slot of every key of an Arrow column in a table of this size, from the column's buffers."""
    if partitioner == "kafka":
        return kafka_hashes(offsets, data) % np.int32(slots)
    return logical_partitions(offsets, data)
