"""What a process that starts must know of the queue, from the tables alone (SPEC META-3, POP-14).

    revive logs, 8 for each broker  --fold-->  checkpoints, with what became of their messages
    offsets log of each broker      --fold-->  how far each group is in each partition

Both folds are joins: records may be seen twice and in any order (see `mq.checkpoint_state`, `mq.progress`). A log that
nobody has written to yet is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mq.checkpoint import CheckpointKey, LaneKey
from mq.checkpoint_state import CheckpointState, fold
from mq.progress import Committed, committed_of
from tables.log import PartitionLog
from tables.pages import pages
from tables.paths import PartitionRef
from tables.queue_refs import OFFSETS, revive_refs, system_ref
from tables.records import offset_records_of, records_of
from tables.warehouse import Warehouse

__all__ = ["Cursor", "Follower", "Recovered", "recover"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The state of the lanes of some brokers."""

    #: What the offsets log says, whatever the epoch: see `GroupsState.committed_in`.
    committed: Mapping[LaneKey, Committed]
    #: Every checkpoint that is not forgotten yet, of all epochs; what has no checkpoint so far is left out.
    states: Mapping[LaneKey, Sequence[CheckpointState]]


def recover(warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> Recovered:
    """Everything that is known of the lanes of `brokers`; blocking.

    Raises
    ------
    Corrupt
        A log holds what is no record of its kind.
    """
    follower = Follower(warehouse, cluster, brokers)
    follower.refresh()
    committed: dict[LaneKey, Committed] = {}
    for broker in brokers:
        for rows in Cursor(warehouse, system_ref(OFFSETS, cluster, broker)).new_rows():
            committed = committed_of(committed, offset_records_of(rows))
    states: dict[LaneKey, list[CheckpointState]] = {}
    for key, state in follower.states.items():
        if state.checkpoint is not None:
            states.setdefault(key.lane, []).append(state)
    return Recovered(committed=committed, states=states)


class Cursor:
    """How far a reader is in a log that may not exist yet."""

    def __init__(self, warehouse: Warehouse, ref: PartitionRef, offset: int = 0) -> None:
        self.ref = ref
        #: The next offset to be read.
        self.offset = offset
        self._warehouse = warehouse
        self._log: PartitionLog | None = None

    def new_rows(self) -> Iterator[pa.Table]:
        """What other processes and this one have appended since, page by page.

        The offset moves over a page when the next one is asked for: what the caller could not use is read again.

        Raises
        ------
        OffsetOutOfRange
            Retention has removed rows that were not read.
        """
        if self._log is None:
            if not self._warehouse.exists(self.ref):
                return
            self._log = self._warehouse.open_partition(self.ref)
        self._log.refresh()
        for page in pages(self._log, self.offset):
            yield page.rows
            self.offset = page.next_offset


class Follower:
    """The revive logs of some brokers, folded; each call of `refresh` adds what is new. For one thread, blocking."""

    def __init__(self, warehouse: Warehouse, cluster: str, brokers: Sequence[str]) -> None:
        #: Every checkpoint that was not forgotten. Do not change it.
        self.states: dict[CheckpointKey, CheckpointState] = {}
        refs = [ref for broker in brokers for ref in revive_refs(cluster, broker)]
        self._cursors = [Cursor(warehouse, ref) for ref in refs]

    @property
    def positions(self) -> dict[PartitionRef, int]:
        """For each log, the offset up to which it is folded."""
        return {cursor.ref: cursor.offset for cursor in self._cursors}

    def refresh(self) -> set[CheckpointKey]:
        """Fold what was appended since the last call; returns the checkpoints that it is about.

        Raises
        ------
        Corrupt
            A log holds what is no record. What the other calls found stays.
        """
        changed: set[CheckpointKey] = set()
        for cursor in self._cursors:
            for rows in cursor.new_rows():
                part = fold({}, records_of(rows))
                changed |= part.keys()
                self._join(part)
        return changed

    def _join(self, part: Mapping[CheckpointKey, CheckpointState]) -> None:
        for key, state in part.items():
            known = self.states.get(key)
            self.states[key] = state if known is None else known.join(state)

    def forget(self, keys: Iterable[CheckpointKey]) -> None:
        """Let go of checkpoints about which no record can come any more."""
        for key in keys:
            self.states.pop(key, None)
