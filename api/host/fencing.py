"""The fence epochs that this process knows, and how it learns new ones after an append was refused (SPEC META-2).

    append --Fenced--> read the metadata --known now--> append again
                            '--not yet--> 503: its cause is not in the metadata yet, or we are cut off

The process that serves a broker appends to the queue's own logs with the epoch since which it serves it. If such an
append is refused, another process serves the broker now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deltamq.api.log.partition import fence_not_known
from deltamq.mq.errors import Fenced
from deltamq.mq.names import broker_of
from deltamq.tables.log.fences import BROKER_FENCE
from deltamq.tables.queue.placement import FenceEpochs, fence_epochs_of

if TYPE_CHECKING:
    from deltamq.api.host.hosted_meta import HostedMeta


class Fencing:
    """The fence epochs that one process knows, for all partitions; used on the event loop."""

    def __init__(self, meta: HostedMeta, held_since: Callable[[str], int | None]) -> None:
        """`held_since` returns the epoch since which this process has a broker; None if it does not."""
        self._meta = meta
        self._held_since = held_since
        self._epochs: dict[str, FenceEpochs] = {}
        self._known_epoch = -1

    def epochs(self, partition: str) -> FenceEpochs:
        """Return the fence epochs for an append to the partition, by kind of fence."""
        broker = broker_of(partition)
        held = self._held_since(broker)
        if held is not None:
            return {BROKER_FENCE: held}
        brokers = self._meta.now.brokers
        if brokers.epoch != self._known_epoch:
            self._epochs.clear()
            self._known_epoch = brokers.epoch
        found = self._epochs.get(broker)
        if found is None:
            found = self._epochs[broker] = fence_epochs_of(brokers, broker)
        return found

    def is_ours(self, partition: str) -> bool:
        """Whether this process has the partition's broker."""
        return self._held_since(broker_of(partition)) is not None

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append, if any process may make that append.

        Raises
        ------
        Unavailable
            `fenced`: this process does not know of the fence yet.
        """
        await self._meta.refresh()
        if not passes(self.epochs(partition), error):
            raise fence_not_known(partition, error)


def passes(fence_epochs: FenceEpochs, error: Fenced) -> bool:
    """Return whether an append with these fence epochs passes the fence that raised `error`."""
    epoch = error.extra.get("epoch")
    return isinstance(epoch, int) and fence_epochs.get(str(error.extra.get("fence")), 0) >= epoch
