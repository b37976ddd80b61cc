"""The append of requests' rows as one data file and one commit: dedupe, stamp, number, write, commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import KIB, OFFSET_MAX, PRODUCER_WINDOW_MS
from deltamq.mq.producer import Part
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import NewCommit, encode_append
from deltamq.tables.delta.encode import Encoded, encode_stamped
from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.log.batch import Appended, MessageIds, only
from deltamq.tables.log.plan import LogView, Plan, plan
from deltamq.tables.log.publish import Publisher
from deltamq.tables.log.requests import Requests
from deltamq.tables.log.state import LogState
from deltamq.tables.log.tail import Tail
from deltamq.tables.store.calls import on_a_thread

#: Bytes of rows that take so long to encode that an event loop leaves them to a thread.
LONG_BYTES: Final = 128 * KIB


class Coming(msgspec.Struct, frozen=True):
    """Where an append will end, unless it or one before it fails."""

    end_offset: int
    append_us: int


#: Is called when it is known where an append will end.
OnComing: TypeAlias = Callable[[Coming], None]


class Ahead(msgspec.Struct, frozen=True):
    """A data file that was stored before its turn, for the offsets that its rows will most likely have."""

    stamped: Stamped
    stored_as: Sequence[Part]
    encoded: Encoded
    batch_id: str
    began_ms: int
    append_us: int
    base: int

    @property
    def coming(self) -> Coming:
        """What its commit adds to the log."""
        return Coming(self.base + self.stamped.count, self.append_us)


class Appender:
    """Appends to one partition; its owner holds the append lock."""

    def __init__(
        self,
        state: LogState,
        publisher: Publisher,
        requests: Requests,
        tail: Tail,
        *,
        clock: Clock,
        row_group_rows: int,
        offset_max: int,
    ) -> None:
        self._state = state
        self._publisher = publisher
        self._requests = requests
        self._tail = tail
        self._clock = clock
        self._row_group_rows = row_group_rows
        self._offset_max = offset_max

    async def ahead(
        self, rows: pa.RecordBatch, parts: Sequence[RowsPart], coming: Coming, on_coming: OnComing
    ) -> Ahead | None:
        """Store the data file of an append that follows others under way; None if it cannot be foreseen, or need not.

        The append decides by itself what it stores, and takes this file if that is just what the file has.
        """
        try:
            planned = plan(parts, replace(self._view(), end_offset=coming.end_offset))
        except DeltaMQError:
            return None
        if not planned.is_all_fresh:
            return None
        made = await self._encoded(rows, planned, max(self._now_us(), coming.append_us))
        on_coming(made.coming)
        return made if await self._publisher.put_ahead(made.encoded) else None

    async def append(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        durable: bool,
        expected_offset: int | None,
        fence_epochs: Mapping[str, int] | None,
        ahead: Ahead | None = None,
        on_coming: OnComing | None = None,
    ) -> list[Appended]:
        """Try to append once, against the newest known state of the log.

        `ahead` is the data file that was stored for these rows, if any; see `OnComing` for `on_coming`.

        Raises
        ------
        LostRace
            Another writer committed first: nothing is stored, and the log's state includes the other commit.
        OffsetMismatch, Fenced, OutOfSequence, Unknown
            As for `PartitionLog.append`.
        """
        planned = plan(parts, self._view(), expected_offset=expected_offset, fence_epochs=fence_epochs)
        ids = MessageIds()
        if planned.fresh:
            if not planned.is_all_fresh:
                rows = only(rows, planned.parts, set(planned.fresh))
            made = ahead if ahead is not None and self._fits(ahead, rows, planned) else None
            ids = await self._commit_rows(rows, planned, made, durable=durable, on_coming=on_coming)
        return planned.results(ids, durable=durable, version=self._state.version)

    def _view(self) -> LogView:
        return LogView(
            name=self._state.ref.name,
            end_offset=self._state.end_offset,
            fences=self._state.fences,
            requests=self._requests,
            known_since_ms=self.producers_known_since_ms(),
            offset_max=self._offset_max,
        )

    def _fits(self, ahead: Ahead, rows: pa.RecordBatch, planned: Plan) -> bool:
        """Return whether a file that was stored ahead is just what this append would store."""
        return (
            ahead.base == planned.base
            and ahead.stamped.count == rows.num_rows
            and ahead.append_us >= self._newest_append_us()
            and ahead.stored_as == planned.requests(ahead.append_us // 1000)
        )

    def producers_known_since_ms(self) -> int:
        """Return the time from which on every producer born then is remembered, whatever was forgotten before."""
        if self._state.min_offset > 0:
            return OFFSET_MAX
        now_ms = self._clock.wall_us() // 1000
        return max(self._requests.whole_since_ms(), now_ms - PRODUCER_WINDOW_MS)

    async def _commit_rows(
        self, rows: pa.RecordBatch, planned: Plan, ahead: Ahead | None, *, durable: bool, on_coming: OnComing | None
    ) -> MessageIds:
        made = ahead or await self._encoded(rows, planned, max(self._now_us(), self._newest_append_us()))
        is_put = ahead is not None or await self._publisher.put_ahead(made.encoded)
        if is_put and on_coming is not None:
            on_coming(made.coming)
        metadata = self._state.widened(made.stamped.rows)
        await self._commit(made, put=None if is_put else made.encoded, durable=durable, metadata=metadata)
        self._tail.add(made.stamped, made.encoded.rows_bytes)
        return MessageIds(made.stamped, 0, made.stamped.count)

    def _now_us(self) -> int:
        """Return the time now, cut to milliseconds as in Delta's statistics."""
        return self._clock.wall_us() // 1000 * 1000

    def _newest_append_us(self) -> int:
        """Return the append time of the newest row, 0 if there is none: later rows never have an earlier one."""
        files = self._state.files
        return files[-1].append_max_us if files else 0

    async def _encoded(self, rows: pa.RecordBatch, planned: Plan, append_us: int) -> Ahead:
        batch_id = uuid.uuid4().hex
        parts = [planned.parts[at] for at in planned.fresh]
        stamped = Stamped(
            self._state.conformed(rows), parts, batch_id=batch_id, append_us=append_us, start=planned.base
        )
        stored_as = planned.requests(append_us // 1000)
        encode = partial(
            encode_stamped, stamped, stored_as, now_ms=append_us // 1000, row_group_rows=self._row_group_rows
        )
        encoded = encode() if rows.nbytes <= LONG_BYTES else await on_a_thread(encode)
        return Ahead(stamped, stored_as, encoded, batch_id, self._clock.boot_ms(), append_us, planned.base)

    async def _commit(
        self, made: Ahead, *, put: Encoded | None, durable: bool, metadata: dict[str, object] | None
    ) -> None:
        file = made.encoded.file

        def encode(version: int) -> NewCommit:
            return encode_append(
                table_id=self._state.table_id,
                version=version,
                batch_id=made.batch_id,
                file=file,
                parts=made.stored_as,
                flushed=durable,
                now_ms=file.modified_ms,
                metadata=metadata,
            )

        await self._publisher.commit(
            encode, [made.encoded], put=put, batch_id=made.batch_id, durable=durable, began_ms=made.began_ms
        )
