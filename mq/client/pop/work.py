"""What a pop brought, cut into the pieces that handlers get."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from mq.client.messages import PopBatch, PoppedMessage, PopTable
from mq.client.pop.handler import Handled
from mq.client.pop.lease import Lease

__all__ = ["Ticket", "Work", "leases_of", "works_of"]


class Ticket:
    """The slots of one pop: one goes back with each piece that is done, the last one only when all are."""

    def __init__(self, slots: int, works: int) -> None:
        self._slots = slots
        self._left = works
        self._lock = threading.Lock()

    def done(self) -> int:
        """A piece is done: how many slots go back now."""
        with self._lock:
            self._left -= 1
            return 1 if self._left < self._slots else 0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Messages for one handler: one by one, or all at once when it is a batch."""

    leases: Sequence[Lease]
    messages: Sequence[PoppedMessage] | pa.Table
    ticket: Ticket
    #: The whole is handed over at once.
    batch: bool

    def subject(self, index: int) -> Handled:
        """What the handler gets."""
        return self.messages if self.batch else self.messages[index]


def leases_of(topic: str, found: PopBatch | PopTable) -> list[Lease]:
    """A lease for each message, from this moment on."""
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
    """The pieces: the whole batch, a run for each partition, or each message by itself.

    Messages of a partition are handled one after another where the partition is in order (POP-16).
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
