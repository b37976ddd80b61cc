"""What a typed topic has in quarantine: found, sent again with the newest schema, deleted (SPEC TYPE-6 to TYPE-8).

    files --marked in their statistics--> rows --are not marked--> in quarantine
                                            |  decoded with the newest schema
                                            '--fit--> appended again, each once --> mark     (or: mark deleted)

Rows are never changed: marks beside the partition, of the form that dead letters have, say which of them have left.
A message is appended again by a request that is named after its place, so a repetition stores nothing twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.auth.caller import Caller
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.typed_topics import TopicCodecs
from deltamq.api.log.partition import Partitions
from deltamq.api.sending.letters import LetterFailures, Marks
from deltamq.api.sending.replay import Replayed, Replayer, Resendable
from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import MIB
from deltamq.mq.queue.dead_letters import Deleted, LetterMarks, Replay, SentBack
from deltamq.mq.wire.quarantine import StillQuarantined
from deltamq.tables.delta.typed_stats import INVALID_MARK
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.fetch import FetchStatus, one_record_batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.dead_marks import states_at
from deltamq.tables.queue.redelivery_rows import again
from deltamq.tables.queue.refs import quarantine_marks_ref
from deltamq.tables.schema import MESSAGE_COLUMNS, MESSAGE_SCHEMA
from deltamq.tables.typed.codec import Codec
from deltamq.tables.typed_row import INVALID

Int64s = NDArray[np.int64]

#: What is read at once.
_PIECE_MESSAGES: Final = 20_000
_PIECE_BYTES: Final = 4 * MIB
#: Failures that are listed.
_LISTED_MAX: Final = 1_000
_NOT_THERE: Final = "not_quarantined"


class Place(NamedTuple):
    """Where a walk through a topic's quarantine goes on; partitions come in the order of the route."""

    partition: str
    offset: int


class Piece(NamedTuple):
    """Some rows of a partition whose bodies did not fit, with the column `invalid`, and what has left by the marks."""

    ref: PartitionRef
    marks: LetterMarks
    rows: pa.Table
    #: Where the walk goes on; None at its end.
    following: Place | None

    @property
    def offsets(self) -> Int64s:
        """The offsets of the rows, which ascend."""
        offsets: Int64s = self.rows.column("offset").to_numpy()
        return offsets

    def have_left(self) -> NDArray[np.bool_]:
        """Return which rows have left the quarantine: they were sent again, or deleted."""
        left: NDArray[np.bool_] = states_at(self.marks, self.offsets) > 0
        return left

    def only(self, wanted: NDArray[np.bool_]) -> Piece:
        """Return the piece with only these rows."""
        return self._replace(rows=self.rows.filter(pa.array(wanted)))


class Outcome:
    """What became of messages in quarantine."""

    def __init__(self) -> None:
        self.done = 0
        #: Number of messages that had left it before.
        self.duplicates = 0
        self.failed: list[StillQuarantined] = []
        self.failed_total = 0

    def fail(self, partition: str, offset: int, code: str, field: str | None = None, reason: str | None = None) -> None:
        """Note a message that stays where it is."""
        self.failed_total += 1
        if len(self.failed) < _LISTED_MAX:
            why = StillQuarantined(partition=partition, offset=offset, code=code, field=field or None, reason=reason)
            self.failed.append(why)


class Quarantines:
    """The quarantines of all typed topics; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        codecs: TopicCodecs,
        marks: Marks,
        replayer: Replayer,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._codecs = codecs
        self._marks = marks
        self._replayer = replayer
        self._now_ms = now_ms

    def codec(self, hosted: HostedTopic) -> Codec:
        """Return the codec of a topic; raise `Unprocessable` (`no_schema`) if it has no schema."""
        codec = self._codecs.of(hosted.topic)
        if codec is None:
            raise Unprocessable(f"topic {hosted.name} has no schema, so it has no quarantine", code="no_schema")
        return codec

    async def walk(self, hosted: HostedTopic, start: Place | None) -> AsyncIterator[Piece]:
        """Yield what did not fit from a place on, piece by piece; some pieces have no rows, and say how far it came."""
        names = hosted.route.partitions
        if start is not None and start.partition in names:  # else its segment was dropped: begin again
            names = names[names.index(start.partition) :]
        for number, name in enumerate(names):
            self._topics.check_readable(hosted, name)
            log = await self._partition(hosted, name)
            at = start.offset if start is not None and name == start.partition else 0
            marks: LetterMarks | None = None
            while (piece := await self._partitions.run(partial(_piece, log, at, log.end_offset))) is not None:
                rows, at = piece
                marks = marks or await self._marks_of(log)
                following = Place(name, at) if at < log.end_offset else _begin(names, number + 1)
                yield Piece(log.ref, marks, rows, following)

    async def at(self, hosted: HostedTopic, name: str, offsets: Int64s, outcome: Outcome) -> AsyncIterator[Piece]:
        """Yield what did not fit among the offsets of a partition, which ascend; the others fail."""
        self._topics.check_readable(hosted, name)
        log = await self._partition(hosted, name)
        marks: LetterMarks | None = None
        while len(offsets):
            at = int(offsets[0])
            piece = await self._partitions.run(partial(_piece, log, at, int(offsets[-1]) + 1))
            rows, reached = (MESSAGE_SCHEMA.empty_table(), int(offsets[-1]) + 1) if piece is None else piece
            here, offsets = offsets[offsets < reached], offsets[offsets >= reached]
            there = rows.column("offset").to_numpy()
            for offset in here[~np.isin(here, there)].tolist():
                is_stored = log.min_offset <= offset < log.end_offset
                shown = self._topics.shown_at(hosted.name, name, offset)
                outcome.fail(*shown, _NOT_THERE if is_stored else "offset_out_of_range")
            if np.isin(there, here).any():
                marks = marks or await self._marks_of(log)
                yield Piece(log.ref, marks, rows.filter(pa.array(np.isin(there, here))), None)

    async def replay(self, piece: Piece, codec: Codec, caller: Caller, outcome: Outcome) -> None:
        """Append again what fits the newest schema, and mark it; what does not fit stays, and is in `outcome`.

        Raises
        ------
        Unknown, Unavailable
            Some messages may be stored; repeating the call stores none of them twice.
        """
        left = piece.have_left()
        outcome.duplicates += int(left.sum())
        piece = piece.only(~left)
        if not piece.rows.num_rows:
            return
        ref = piece.ref
        decoded = await self._partitions.run(lambda: codec.decode(piece.rows.column("body").combine_chunks()))
        if decoded.invalid is not None:
            for offset, why in zip(piece.offsets.tolist(), decoded.invalid.to_pylist(), strict=True):
                if why is not None:
                    shown = self._topics.shown_at(ref.topic, ref.name, offset)
                    outcome.fail(*shown, why["code"], why["field"], why["reason"])
            piece = piece.only(np.asarray(decoded.invalid.is_null()))
        rows = one_record_batch(piece.rows)
        moved = again(rows, ref.topic, ref.name, [0] * rows.num_rows)
        at = rows.schema.get_field_index("origin")
        rows = rows.set_column(at, rows.schema.field(at), moved.column("origin"))
        source = Resendable(
            ref.name,
            partial(Replay, f"quarantine/{ref.topic}", ref.generation, ref.name),
            lambda given: again(given, ref.topic, ref.name, [0] * given.num_rows),
            "origin",
        )
        replayed = Replayed(LetterFailures())
        sent, before = await self._replayer.send(source, rows, replayed, caller)
        outcome.done += len(sent)
        outcome.duplicates += len(before)
        for partition, offset, code in replayed.failed.listed:
            outcome.fail(*self._topics.shown_at(ref.topic, partition, offset), code)
        if sent or before:
            failpoint("replay.before_mark")
            now_ms, by = self._now_ms(), caller.name
            await self._marks.add(
                quarantine_marks_ref(ref),
                np.sort(np.array(sent + before, dtype=np.int64)),
                lambda ranges: SentBack(ranges, "origin", now_ms, by),
            )

    async def delete(self, piece: Piece, caller: Caller, outcome: Outcome) -> None:
        """Mark the messages as deleted; durable when this returns."""
        left = piece.have_left()
        outcome.duplicates += int(left.sum())
        offsets = piece.offsets[~left]
        if len(offsets):
            now_ms, by = self._now_ms(), caller.name
            await self._marks.add(quarantine_marks_ref(piece.ref), offsets, lambda ranges: Deleted(ranges, now_ms, by))
        outcome.done += len(offsets)

    async def _partition(self, hosted: HostedTopic, name: str) -> PartitionLog:
        log = await hosted.partition(name).look()
        assert log is not None, "a topic's partition has a table"
        return log

    async def _marks_of(self, log: PartitionLog) -> LetterMarks:
        return await self._marks.of(quarantine_marks_ref(log.ref), log.min_offset)


def _begin(names: Sequence[str], at: int) -> Place | None:
    return Place(names[at], 0) if at < len(names) else None


def _piece(log: PartitionLog, at: int, stop: int) -> tuple[pa.Table, int] | None:
    """Return rows of `[at, stop)` that did not fit, and up to where it looked; None if no file has more. Blocks."""
    files = log.files
    number = bisect_left(files, at + 1, key=lambda file: file.end)
    while number < len(files) and INVALID_MARK not in files[number].stats:
        number += 1
    if number == len(files) or files[number].start >= stop:
        return None
    file = files[number]
    at = max(at, file.start)
    room = min(_PIECE_MESSAGES, file.end - at, stop - at)
    fetched = log.read(at, max_messages=room, max_bytes=_PIECE_BYTES, columns=(*MESSAGE_COLUMNS, INVALID))
    if fetched.status is not FetchStatus.FOUND:
        # Retention took the file meanwhile.
        return MESSAGE_SCHEMA.empty_table(), max(at + 1, log.min_offset)
    return fetched.rows.filter(fetched.rows.column(INVALID).is_valid()), fetched.next_offset
