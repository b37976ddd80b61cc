"""Hashing of a key column to slots: one pass over its buffers, without Python objects (SPEC ROUTE-4, KAFKA-12)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.mq.partitioners import Slots, column_buffers, kafka_hashes, logical_partitions, slots_of
from deltamq.mq.routing import SlotMap


def lps_of_keys(key: pa.StringArray) -> NDArray[np.int16]:
    """Return the logical partition of each key, -1 for null."""
    lps = logical_partitions(*column_buffers(key))
    _mark_nulls(lps, key)
    return lps


def kafka_hashes_of_keys(key: pa.StringArray | pa.BinaryArray) -> NDArray[np.int32]:
    """Return the hash that Kafka's partitioner computes for each key, -1 for null."""
    hashes = kafka_hashes(*column_buffers(key))
    _mark_nulls(hashes, key)
    return hashes


def slots_of_keys(key: pa.StringArray | pa.BinaryArray, places: SlotMap) -> Slots:
    """Return the slot of each key in the table of `places`, -1 for null."""
    slots = slots_of(*column_buffers(key), places.partitioner, len(places.table))
    _mark_nulls(slots, key)
    return slots


def _mark_nulls(numbers: Slots, key: pa.StringArray | pa.BinaryArray) -> None:
    if key.null_count:
        numbers[np.asarray(key.is_null())] = -1
