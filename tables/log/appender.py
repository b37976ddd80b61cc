"""The append of requests' rows as one data file and one commit: dedupe, stamp, number, write, commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa

from deltamq.mq.errors import OffsetMismatch, Unavailable
from deltamq.mq.limits import OFFSET_MAX, PRODUCER_WINDOW_MS
from deltamq.mq.producer import Part
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import NewCommit, encode_append
from deltamq.tables.delta.encode import Encoded, encode_stamped
from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.log.batch import Appended, MessageIds, appended, only, repeats, requests, with_numbers
from deltamq.tables.log.fences import check_fences
from deltamq.tables.log.publish import Publisher
from deltamq.tables.log.requests import Requests
from deltamq.tables.log.state import LogState
from deltamq.tables.log.tail import Tail


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

    async def append(
        self,
        rows: pa.RecordBatch,
        parts: Sequence[RowsPart],
        *,
        durable: bool,
        expected_offset: int | None,
        fence_epochs: Mapping[str, int] | None,
    ) -> list[Appended]:
        """Try to append once, against the newest known state of the log.

        Raises
        ------
        LostRace
            Another writer committed first: nothing is stored, and the log's state includes the other commit.
        OffsetMismatch, Fenced, OutOfSequence, Unknown
            As for `PartitionLog.append`.
        """
        parts = with_numbers(parts, self._requests.seen, known_since_ms=self.producers_known_since_ms())
        stored = [self._stored_part(p) for p in parts]
        again = repeats(parts)
        base = self._state.end_offset
        fresh = [i for i, part in enumerate(stored) if part is None and i not in again]
        ids = MessageIds()
        if fresh:
            if fence_epochs is not None:
                check_fences(self._state.fences, fence_epochs, self._state.ref.name)
            if expected_offset is not None and expected_offset != base:
                raise OffsetMismatch(
                    f"expected_offset is {expected_offset}, the end offset is {base}",
                    field="expected_offset",
                    extra={"end_offset": base},
                )
            if len(fresh) < len(parts):
                rows = only(rows, parts, set(fresh))
            ids = await self._commit_rows(rows, [parts[i] for i in fresh], base, durable=durable)
        return appended(parts, stored, again, base, ids, durable=durable, version=self._state.version)

    def producers_known_since_ms(self) -> int:
        """Return the time from which on every producer born then is remembered, whatever was forgotten before."""
        if self._state.min_offset > 0:
            return OFFSET_MAX
        now_ms = self._clock.wall_us() // 1000
        return max(self._requests.whole_since_ms(), now_ms - PRODUCER_WINDOW_MS)

    def _stored_part(self, part: RowsPart) -> Part | None:
        stamp = part.producer
        return None if stamp is None else self._requests.find(stamp.id, stamp.seq, stamp.indexes)

    async def _commit_rows(
        self, rows: pa.RecordBatch, parts: Sequence[RowsPart], base: int, *, durable: bool
    ) -> MessageIds:
        if base + rows.num_rows > self._offset_max:
            raise Unavailable(f"{self._state.ref.name}: offsets are used up", code="offsets_exhausted")
        batch_id = uuid.uuid4().hex
        append_us = self._append_time_us()
        stamped = Stamped(rows, parts, batch_id=batch_id, append_us=append_us, start=base)
        stored_as = requests(parts, base, append_us // 1000)
        encoded = encode_stamped(stamped, stored_as, now_ms=append_us // 1000, row_group_rows=self._row_group_rows)
        await self._write_and_commit(encoded, stored_as, batch_id, durable=durable)
        self._tail.add(stamped, encoded.rows_bytes)
        return MessageIds(stamped, 0, stamped.count)

    def _append_time_us(self) -> int:
        """Return the time now, cut to milliseconds as in Delta's statistics, but never before the previous append's."""
        now = self._clock.wall_us() // 1000 * 1000
        files = self._state.files
        return max(now, files[-1].append_max_us) if files else now

    async def _write_and_commit(
        self, encoded: Encoded, requests: Sequence[Part], batch_id: str, *, durable: bool
    ) -> None:
        file = encoded.file
        began_ms = self._clock.boot_ms()

        def encode(version: int) -> NewCommit:
            return encode_append(
                table_id=self._state.table_id,
                version=version,
                batch_id=batch_id,
                file=file,
                parts=requests,
                flushed=durable,
                now_ms=file.modified_ms,
            )

        await self._publisher.commit(
            encode, [encoded], put=encoded, batch_id=batch_id, durable=durable, began_ms=began_ms
        )
