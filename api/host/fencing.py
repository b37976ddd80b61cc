"""What this process knows of fences, and how it learns when it was refused for knowing too little (SPEC META-2).

    append --Fenced--> read the metadata --known now--> append again
                            '--not yet--> 503: whoever put the fence up has not said why yet, or we are cut off

The queue's own logs are for the process that serves the broker: it says since when it does, and when it is refused
there, it does so no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from api.log import not_known
from mq.errors import Fenced
from mq.names import broker_of
from tables.log import BROKER_FENCE
from tables.queue import Known, known_of_broker

if TYPE_CHECKING:
    from api.host.hosted_meta import HostedMeta

__all__ = ["Fencing", "passes"]


class Fencing:
    """Of all partitions of one process; used on the event loop."""

    def __init__(self, meta: HostedMeta, held_since: Callable[[str], int | None]) -> None:
        """`held_since` says since which epoch this process has a broker; None when it has not."""
        self._meta = meta
        self._held_since = held_since
        self._known: dict[str, Known] = {}
        self._known_epoch = -1

    def known(self, partition: str) -> Known:
        """What an append says that it knows."""
        broker = broker_of(partition)
        held = self._held_since(broker)
        if held is not None:
            return {BROKER_FENCE: held}
        brokers = self._meta.now.brokers
        if brokers.epoch != self._known_epoch:
            self._known.clear()
            self._known_epoch = brokers.epoch
        found = self._known.get(broker)
        if found is None:
            found = self._known[broker] = known_of_broker(brokers, broker)
        return found

    def is_ours(self, partition: str) -> bool:
        """Whether appends are made as the process that has the broker."""
        return self._held_since(broker_of(partition)) is not None

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append which anybody may make.

        Raises
        ------
        Unavailable
            `fenced`: it does not.
        """
        await self._meta.refresh()
        if not passes(self.known(partition), error):
            raise not_known(partition, error)


def passes(known: Known, error: Fenced) -> bool:
    """Whether an append that knows this passes the fence that refused another."""
    epoch = error.extra.get("epoch")
    return isinstance(epoch, int) and known.get(str(error.extra.get("fence")), 0) >= epoch
