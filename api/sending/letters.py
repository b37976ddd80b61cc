"""A group's dead letters with their states: selection, counts and marks (SPEC RETRY-3, RETRY-8).

    partition of dead letters --filter--> offsets --read--> rows
    partition of their marks  --fold----> states ---^

States are ranges of offsets in memory. A filter by topic, reason or time needs columns of the files, which are
remembered: files do not change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.log.partition import Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.mq.meta.group import Group
from deltamq.mq.names import broker_of
from deltamq.mq.queue.dead_letters import DeadMark, LetterMarks, LetterState
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import Picked, TooMuch, pick
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.dead_marks import LETTER_STATES, DeadMarks, mark_ranges, states_between
from deltamq.tables.queue.records import rows_of_dead_marks
from deltamq.tables.queue.refs import dead_marks_ref, dead_ref

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The states of dead letters that are shown and sent back unless a call names others.
KEPT_STATES: Final[frozenset[LetterState]] = frozenset({"new", "sent_back"})
#: Dead letters whose columns are remembered: 24 bytes each.
_COLUMNS_MAX: Final = 1_000_000
#: Partitions of dead letters whose marks are remembered.
_MARKED_MAX: Final = 10_000
#: Failures that are listed.
_LISTED_MAX: Final = 1_000
#: Messages that are read at once.
_READ_MESSAGES: Final = 1_000


class _Column(NamedTuple):
    """A column of dead letters: for each row the number of its value in `values`."""

    values: list[str | None]
    codes: Int64s

    def among(self, wanted: Callable[[str | None], bool]) -> Bools:
        """Return which rows hold a value that is wanted."""
        return np.array([wanted(value) for value in self.values], dtype=bool)[self.codes]


class _Columns(NamedTuple):
    """The columns of one file by which dead letters are selected."""

    offsets: Int64s
    topics: _Column
    reasons: _Column
    died_us: Int64s


class LettersWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of dead letters; a field that is None excludes none."""

    states: Collection[LetterState] = KEPT_STATES
    topic: str | None = None
    reason: str | None = None
    #: Dead letters from this time on.
    from_us: int | None = None
    may_read: Callable[[str], bool] | None = None

    @property
    def needs_columns(self) -> bool:
        """Whether the selection depends on more than states."""
        return (self.topic, self.reason, self.from_us, self.may_read) != (None, None, None, None)

    def rows(self, columns: _Columns) -> Bools:
        """Return which rows of a file are wanted, in any state."""
        fits = np.ones(len(columns.offsets), dtype=bool)
        if self.topic is not None:
            fits &= columns.topics.among(lambda topic: topic == self.topic)
        if self.reason is not None:
            fits &= columns.reasons.among(lambda reason: reason == self.reason)
        if self.from_us is not None:
            fits &= columns.died_us >= self.from_us
        may_read = self.may_read
        if may_read is not None:
            fits &= columns.topics.among(lambda topic: topic is None or may_read(topic))
        return fits


class LetterCount(msgspec.Struct):
    """How many dead letters there are, by state."""

    new: int = 0
    sent_back: int = 0
    deleted: int = 0

    def add(self, counts: Iterable[int]) -> None:
        """Add counts, in the order of `LETTER_STATES`."""
        new, sent_back, deleted = counts
        self.new += new
        self.sent_back += sent_back
        self.deleted += deleted


_NEW: Final = LettersWanted(states=frozenset[LetterState]({"new"}))


class LetterFailures:
    """Dead letters for which a call failed, with their codes: the first of them, and their number."""

    def __init__(self) -> None:
        #: Partition, offset and code.
        self.listed: list[tuple[str, int, str]] = []
        self.total = 0

    def add(self, partition: str, offsets: Iterable[int] | Int64s, code: str) -> None:
        for offset in offsets:
            self.total += 1
            if len(self.listed) < _LISTED_MAX:
                self.listed.append((partition, int(offset), code))


class _Remembered:
    """Columns of files that were read before. Safe for several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._known: dict[tuple[str, str], _Columns] = {}
        self._rows = 0

    def of(self, log: PartitionLog, file: DataFile) -> _Columns:
        key = log.ref.folder, file.path
        columns = self._known.get(key)
        if columns is None:
            columns = _columns(log.file_columns(file, ["offset", "origin", "headers", "append_time"]))
            with self._turn:
                if key not in self._known:
                    self._known[key] = columns
                    self._rows += len(columns.offsets)
                while self._rows > _COLUMNS_MAX and self._known:
                    self._rows -= len(self._known.pop(next(iter(self._known))).offsets)
        return columns


def _columns(rows: pa.Table) -> _Columns:
    return _Columns(
        rows.column("offset").to_numpy(),
        _coded(pc.struct_field(rows.column("origin"), "topic")),
        _coded(pc.map_lookup(rows.column("headers"), pa.scalar(DEAD_REASON_HEADER), "last")),
        rows.column("append_time").cast(pa.int64()).to_numpy(),
    )


def _coded(column: pa.ChunkedArray) -> _Column:
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return _Column(coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64))


class Letters:
    """The dead letters of a group on one broker, at one moment. Calls block; safe for several threads."""

    def __init__(self, log: PartitionLog, marks: LetterMarks, remembered: _Remembered) -> None:
        self.log = log
        self.marks = marks
        self._remembered = remembered
        self._low, self._high = log.min_offset, log.end_offset

    def offsets(self, wanted: LettersWanted) -> Int64s:
        """Return the offsets of wanted dead letters, ascending."""
        states = [LETTER_STATES.index(state) for state in wanted.states]
        selected = np.isin(states_between(self.marks, self._low, self._high), states)
        if wanted.needs_columns:
            fits = np.zeros_like(selected)
            for columns, here in self._files():
                fits[columns.offsets[here] - self._low] = wanted.rows(columns)[here]
            selected &= fits
        return self._low + np.flatnonzero(selected)

    def here(self, offsets: Int64s) -> Bools:
        """Return which offsets have a dead letter, in any state."""
        return (offsets >= self._low) & (offsets < self._high)

    def states(self, offsets: Int64s) -> NDArray[np.int8]:
        """Return the states of dead letters that are here, as indexes in `LETTER_STATES`."""
        return states_between(self.marks, self._low, self._high)[offsets - self._low]

    def count(self, wanted: LettersWanted) -> list[int]:
        """Return how many are wanted, for each of `LETTER_STATES`."""
        counts: list[int] = np.bincount(self.states(self.offsets(wanted)), minlength=len(LETTER_STATES)).tolist()
        return counts

    def count_by(self, by: str, wanted: LettersWanted, into: dict[str | None, LetterCount]) -> None:
        """Add the counts of wanted dead letters to `into`, by their `reason` or `topic`."""
        kinds = len(LETTER_STATES)
        states = states_between(self.marks, self._low, self._high)
        for columns, here in self._files():
            column = columns.reasons if by == "reason" else columns.topics
            rows = here & wanted.rows(columns)
            numbers = column.codes[rows] * kinds + states[columns.offsets[rows] - self._low]
            counts = np.bincount(numbers, minlength=kinds * len(column.values)).reshape(-1, kinds)
            for value, some in zip(column.values, counts.tolist(), strict=True):
                if any(some):
                    into.setdefault(value, LetterCount()).add(some)

    def _files(self) -> Iterator[tuple[_Columns, Bools]]:
        """Yield the columns of each file, and which of its rows are still stored."""
        for file in list(self.log.files):
            columns = self._remembered.of(self.log, file)
            yield columns, self.here(columns.offsets)


class Marks:
    """The marks of partitions whose messages are sent again or deleted, folded. Used on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._folded: dict[str, DeadMarks] = {}

    async def of(self, ref: PartitionRef, min_offset: int) -> LetterMarks:
        """Return the newest marks of a partition of them, about messages from `min_offset` on."""
        stored = await self._partitions.of(ref).look()
        marks = self._folded.get(ref.folder)
        if marks is None:
            while len(self._folded) >= _MARKED_MAX:
                del self._folded[next(iter(self._folded))]
            marks = self._folded[ref.folder] = DeadMarks()
        return await self._partitions.run(partial(marks.follow, stored, min_offset))

    async def add(
        self, ref: PartitionRef, offsets: Int64s, mark: Callable[[tuple[tuple[int, int], ...]], DeadMark]
    ) -> None:
        """Store marks of messages at offsets, which ascend; durable when this returns.

        Raises
        ------
        DeltaMQError
            The marks, or some of them, are not stored.
        """
        log: RecordLog[DeadMark] = RecordLog(self._partitions.of(ref), rows_of_dead_marks)
        for record in mark_ranges(offsets, mark):
            await log.append([record])


class DeadLetterLogs:
    """The dead letters of all groups, with their marks. Used on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        meta: HostedMeta,
        brokers: Iterable[str],
        marks: Marks,
        now_ms: Callable[[], int],
    ) -> None:
        self.now_ms = now_ms
        self._partitions = partitions
        self._meta = meta
        self._brokers = list(brokers)
        self._marks = marks
        self._remembered = _Remembered()

    async def of(self, group: Group) -> dict[str, Letters | None]:
        """Return each broker's dead letters by partition, None if there are none yet; in one order at every process.

        All brokers that ever existed are included; their topics and processes may be gone.
        """
        routes = [topic.route.partitions for topic in self._meta.now.topics.topics.values()]
        of_routes = {broker_of(name) for route in routes for name in route}
        known = {*self._brokers, *self._meta.now.brokers.brokers, *of_routes}
        return {
            dead_ref(group.name, group.epoch, broker).name: await self._on(group, broker) for broker in sorted(known)
        }

    async def new_on(self, group: Group, broker: str) -> int:
        """Return how many of the group's dead letters on a broker are neither sent back nor deleted."""
        letters = await self._on(group, broker)
        return 0 if letters is None else await self._partitions.run(partial(_new, letters))

    async def _on(self, group: Group, broker: str) -> Letters | None:
        log = await self._partitions.of(dead_ref(group.name, group.epoch, broker)).look()
        if log is None:
            return None
        folded = await self._marks.of(dead_marks_ref(group.name, group.epoch, broker), log.min_offset)
        return Letters(log, folded, self._remembered)

    async def mark(
        self, group: Group, partition: str, offsets: Int64s, mark: Callable[[tuple[tuple[int, int], ...]], DeadMark]
    ) -> None:
        """Store marks of dead letters of a partition, as `Marks.add` does."""
        await self._marks.add(dead_marks_ref(group.name, group.epoch, broker_of(partition)), offsets, mark)


def _new(letters: Letters) -> int:
    return sum(letters.count(_NEW))


def some_letters(
    log: PartitionLog, offsets: Int64s, bytes_max: int, columns: Sequence[str] | None = None
) -> tuple[Picked, int]:
    """Return the messages at as many of the offsets as fit into `bytes_max`, at least one, and their number."""
    count = min(len(offsets), _READ_MESSAGES)
    while True:
        try:
            return pick(log, offsets[:count], bytes_max=bytes_max if count > 1 else None, columns=columns), count
        except TooMuch:
            count = max(1, count // 4)
