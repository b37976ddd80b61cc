"""Idempotent producers: whether a request is new, a replay, or out of order (SPEC SEND-5), and the same (SEND-10).

    (id, seq) remembered in any partition of the topic   -> a replay: stored parts answer their original ranges,
                                                            a part that is not stored yet is appended now
    not remembered, seq above all seen or producer new   -> append
    otherwise                                            -> 409 producer_sequence_out_of_order

The partitions' logs remember requests, so that memory survives a restart. This module holds only requests under way: a
second copy of one waits for the first and is then a replay. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.log.parts import RequestPart
from deltamq.api.wire.rows import ArrowRows, Rows, to_record_batch
from deltamq.mq.errors import Conflict
from deltamq.mq.limits import FETCH_BYTES_MAX
from deltamq.mq.producer import Part
from deltamq.mq.wire.produce import Producer
from deltamq.tables.log.batch import Appended
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog


def draw_of(producer: Producer) -> int:
    """Return the draw that places messages without a key; it is the same for every copy of a request."""
    return zlib.crc32(f"{producer.id}#{producer.seq}".encode())


class ProducerGate:
    """The requests of one topic's producers that are under way."""

    def __init__(self) -> None:
        self._running: dict[str, dict[int, asyncio.Event]] = {}

    async def turn(self, producer: Producer) -> None:
        """Return when no other copy of this request is under way; claim it before the next await."""
        while (running := self._running.get(producer.id, {}).get(producer.seq)) is not None:
            await running.wait()

    @contextmanager
    def claim(self, producer: Producer) -> Iterator[None]:
        """Claim the request: inside the block, this is the only copy that is being handled."""
        done = asyncio.Event()
        running = self._running.setdefault(producer.id, {})
        assert producer.seq not in running, "wait for the turn first"
        running[producer.seq] = done
        try:
            yield
        finally:
            del running[producer.seq]
            if not running:
                del self._running[producer.id]
            done.set()

    def stored_parts(
        self,
        producer: Producer,
        logs: Mapping[str, PartitionLog],
        waiting: Mapping[str, PartitionLog] = {},
        waiting_id: str = "",
        *,
        in_order: bool = True,
    ) -> dict[str, tuple[Part, ...]]:
        """Return the parts of this request that the topic's partitions hold, by partition; empty for a new request.

        `waiting` are the delay partitions, in which the producer is called `waiting_id`. Without `in_order` the
        request's order is not checked: the caller has checked it.

        Raises
        ------
        Conflict
            `producer_sequence_out_of_order`: the request is neither remembered nor newer than all others.
        """
        last = max((seq for seq in self._running.get(producer.id, ()) if seq != producer.seq), default=-1)
        stored = {}
        named = [(name, log, producer.id) for name, log in logs.items()]
        named += [(name, log, waiting_id) for name, log in waiting.items()]
        for name, log, producer_id in named:
            seen = log.known_producer(producer_id)
            if seen is None:
                continue
            last = max(last, seen.last_seq)
            parts = seen.parts.get(producer.seq)
            if parts is not None:
                stored[name] = parts
        if in_order and not stored and producer.seq <= last:
            raise Conflict(
                f"producer.seq: {producer.seq} is not remembered and {last} was seen; use a higher number",
                code="producer_sequence_out_of_order",
                field="producer.seq",
                extra={"last_seq": last},
            )
        return stored


_COMPARED = ("key", "tag", "body")


def brings_the_same(log: PartitionLog, appended: Appended, part: RequestPart) -> bool:
    """Whether the messages of a repeated part are the stored ones; messages that retention has taken count as the same.

    The append compares only numbers. Two processes with one producer id, such as copies of one virtual machine, send
    different messages under one number, and an acknowledged message must be there. Repeats are rare, so their messages
    are compared with the stored rows.
    """
    rows = part.messages
    if not isinstance(rows, (Rows, ArrowRows)):
        return True
    batch = to_record_batch([rows]) if isinstance(rows, Rows) else rows.batch
    # A body that is made of a value may have been sent in another form.
    names = [name for name in _COMPARED if name != "body" or not log.state.is_rendered]
    at = 0
    while at < appended.count:
        fetched = log.read(appended.base_offset + at, max_messages=appended.count - at, max_bytes=FETCH_BYTES_MAX)
        if fetched.status is not FetchStatus.FOUND:
            return True
        stored = fetched.rows
        if not all(_same(batch.slice(at, stored.num_rows), stored, name) for name in names):
            return False
        at += stored.num_rows
    return True


def _same(sent: pa.RecordBatch, stored: pa.Table, name: str) -> bool:
    kind = stored.schema.field(name).type
    column = stored.column(name).combine_chunks()
    if sent.schema.get_field_index(name) < 0:
        return int(column.null_count) == len(column)
    same: bool = pc.cast(sent.column(name), kind).equals(column)
    return same
