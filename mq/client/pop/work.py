"""The messages of a pop, cut into pieces of work for handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from deltamq.mq.client.messages.received import PopBatch, PoppedMessage, PopTable
from deltamq.mq.client.pop.handler import Handled
from deltamq.mq.client.pop.lease import Lease


class Ticket:
    """The slots of one pop, given back one by one as pieces are done, the last one only when all pieces are."""

    def __init__(self, slots: int, works: int) -> None:
        self._slots = slots
        self._left = works
        self._lock = threading.Lock()

    def done(self) -> int:
        """Note a finished piece; returns the number of slots to give back now."""
        with self._lock:
            self._left -= 1
            return 1 if self._left < self._slots else 0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Messages for one handler, handed over one by one, or all at once as a batch."""

    leases: Sequence[Lease]
    messages: Sequence[PoppedMessage] | pa.Table
    ticket: Ticket
    #: Whether all messages are handed over at once.
    batch: bool

    def subject(self, index: int) -> Handled:
        """Return the argument of the handler: the message at `index`, or the batch."""
        return self.messages if self.batch else self.messages[index]


def leases_of(topic: str, found: PopBatch | PopTable) -> list[Lease]:
    """Make a lease for each message; their invisible times are counted from now."""
    popped_at = time.monotonic()
    if isinstance(found, PopBatch):
        places = [(message.partition, message.offset, message.handle) for message in found.messages]
    else:
        columns = (found.rows.column(name).to_pylist() for name in ("partition", "offset", "handle"))
        places = list(zip(*columns, strict=True))
    return [
        Lease(topic, partition, offset, handle, invisible_ms=found.invisible_ms, popped_at=popped_at)
        for partition, offset, handle in places
    ]


def works_of(
    found: PopBatch | PopTable, leases: Sequence[Lease], slots: int, *, batch: bool, in_order: bool
) -> list[Work]:
    """Cut a pop into pieces: the whole batch, a run for each partition (in order, POP-16), or each message by itself.

    The messages of a run are handled one after another.
    """
    if isinstance(found, PopTable):
        return [Work(leases, found.rows, Ticket(slots, 1), True)]
    if batch:
        return [Work(leases, found.messages, Ticket(slots, 1), True)]
    if not in_order:
        ticket = Ticket(slots, len(leases))
        return [
            Work((lease,), (message,), ticket, False) for lease, message in zip(leases, found.messages, strict=True)
        ]
    runs: dict[str, list[int]] = {}
    for at, lease in enumerate(leases):
        runs.setdefault(lease.partition, []).append(at)
    ticket = Ticket(slots, len(runs))
    return [
        Work([leases[at] for at in run], [found.messages[at] for at in run], ticket, False) for run in runs.values()
    ]
