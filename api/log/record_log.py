"""Appends to one of the queue's own logs: durable, in groups, repeated until the outcome is known.

    records --one batch--> commit queue --group commit, fsync--> stored
                   ^------ outcome unknown -------'

A record that is stored twice in such a log counts once (see `mq.queue.revive_log`, `mq.queue.progress`), so an append
with an unknown outcome is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import pyarrow as pa

from deltamq.api.log.partition import Partition, fence_not_known
from deltamq.api.log.parts import PendingRequest, RecordRows, RequestPart
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Fenced, Unavailable, Unknown
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.settings import Flush

Record = TypeVar("Record")

#: Pauses between tries of an append with an unknown outcome, in seconds.
_AGAIN_S: Final = Backoff(0.01, 1.0)


class RecordLog(Generic[Record]):
    """Appends to one partition; used on the event loop."""

    def __init__(
        self,
        partition: Partition,
        encode: Callable[[Sequence[Record]], pa.RecordBatch],
        *,
        owner_only: bool = False,
    ) -> None:
        """`encode` makes rows of records; it runs on the event loop, or on a thread if it is long.

        `owner_only`: append only while this process has the broker. Records of lanes are wrong after a takeover: an old
        checkpoint would bring back messages that are acknowledged by then.
        """
        self._encode = encode
        self._owner_only = owner_only
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self.appends = 0

    async def append(self, records: Sequence[Record], stamp: ProducerStamp | None = None) -> None:
        """Store the records, once if they have a stamp; returns when they are durable.

        Raises
        ------
        DeltaMQError
            The records are certainly not stored.
        """
        failures = 0
        while True:
            part, is_ours = await self._try(records, stamp)
            error, fencing = part.error, self._partition.fencing
            if error is None:
                return
            if isinstance(error, Fenced) and fencing is not None:
                if is_ours:
                    # Another process serves the broker now, and these records may contradict its own.
                    fencing.lost()
                    raise fence_not_known(self._partition.name, error)
                await fencing.learn(self._partition.name, error)
            elif isinstance(error, Unknown):
                failures += 1
                await asyncio.sleep(_AGAIN_S.after(failures))
            else:
                raise error

    async def _try(self, records: Sequence[Record], stamp: ProducerStamp | None) -> tuple[RequestPart, bool]:
        """Append once; also return whether this process appended as the broker's owner."""
        self.appends += 1
        pending = PendingRequest(1, self._loop)
        fencing, name = self._partition.fencing, self._partition.name
        fence_epochs = None if fencing is None else fencing.epochs(name)
        is_ours = fencing is not None and fencing.is_ours(name)
        if self._owner_only and fencing is not None and not is_ours:
            raise Unavailable(f"{name} went to another process; ask again", code="lease_lost")
        part = RequestPart(
            RecordRows(records, self._encode), pending, Flush.SYNC, stamp=stamp, fence_epochs=fence_epochs
        )
        self._partition.queue.put(part)
        await pending.wait()
        return part, is_ours
