"""The slots of keys that come one by one or in lists: what was computed for recent keys is remembered.

Hashing a key in Python costs twenty look-ups. What is remembered depends on the key alone, and not on the topic: its
logical partition, or the number that Kafka's partitioner divides by the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.mq.partitioners import Slots, kafka_hash, logical_partition
from deltamq.mq.routing import Places
from deltamq.tables.key_column import kafka_hashes_of_keys, lps_of_keys

#: Maximum number of recent keys of each kind.
_KEYS_MAX: Final = 65_536
#: Number of unseen keys from which on hashing them as one Arrow column is faster.
_COLUMN_MIN: Final = 16
_NULL: Final = -1
_UNSEEN: Final = -2


class _SeenKeys:
    """Recent keys with the number that `one` computes for a key, and `column` for each key of an Arrow column."""

    def __init__(self, one: Callable[[str], int], column: Callable[[pa.StringArray], Slots]) -> None:
        self._one = one
        self._column = column
        self.numbers: Final[dict[str, int]] = {}

    def hashed(self, key: str) -> int:
        """Return the number of a key that is not remembered, and remember it."""
        number = self._one(key)
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
            return {k: self._one(k) for k in keys}
        numbers: list[int] = self._column(pa.array(keys, pa.string())).tolist()
        return dict(zip(keys, numbers, strict=True))

    def _remember(self, keys: dict[str, int]) -> None:
        if len(self.numbers) + len(keys) > _KEYS_MAX:
            self.numbers.clear()
        self.numbers.update(keys)


_LPS: Final = _SeenKeys(logical_partition, lps_of_keys)
_HASHES: Final = _SeenKeys(kafka_hash, kafka_hashes_of_keys)
#: The dictionary stays the same object, so its method is looked up once.
_lp_seen: Final = _LPS.numbers.get


def slot_of_seen(key: str, places: Places) -> int:
    """Return the slot of a key in the table of `places`."""
    if places.partitioner == "lp":
        lp = _lp_seen(key)
        return _LPS.hashed(key) if lp is None else lp
    number = _HASHES.numbers.get(key)
    return (_HASHES.hashed(key) if number is None else number) % len(places.table)


def slots_of_list(keys: Sequence[str | None], places: Places) -> Slots:
    """Return the slot of each key of a list in the table of `places`, -1 for None."""
    if places.partitioner == "lp":
        return np.array(_LPS.of_list(keys), dtype=np.int16)
    numbers = np.array(_HASHES.of_list(keys), dtype=np.int32)
    return np.where(numbers == _NULL, np.int32(_NULL), numbers % np.int32(len(places.table)))
