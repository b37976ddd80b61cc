"""The brokers whose queues the jobs of a warehouse process, and the logs that the local engine follows of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.names import broker_of
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import DELAY, REVIVE_LOG

#: Interval at which new brokers are looked for, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000


class FollowedLogs(Protocol):
    """A follower of one broker's logs."""

    def refresh(self) -> object:
        """Read what was appended since the last call."""


F = TypeVar("F", bound=FollowedLogs)


class FollowedBrokers(Generic[F]):
    """The followed logs of a job of the local engine, by broker. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config, follow: Callable[[str], F]) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._follow = follow
        self._looked_ms = -_BROKERS_EVERY_MS
        self.all: dict[str, F] = {}
        #: Brokers that must wait because a log cannot be read, and since when.
        self.held: dict[str, int] = {}

    def find(self, now_ms: int, mine: Sequence[str] | None) -> None:
        """Follow the brokers that this application has; None: all, which are looked for every five seconds."""
        if mine is not None:
            # Another application has the others now; when this one gets one back, it reads its state from the tables.
            for broker in self.all.keys() - set(mine):
                del self.all[broker]
                self.held.pop(broker, None)
        elif 0 <= now_ms - self._looked_ms < _BROKERS_EVERY_MS:
            return
        self._looked_ms = now_ms
        for broker in brokers_of(self._warehouse, self._conf) if mine is None else mine:
            if broker not in self.all:
                self.all[broker] = self._follow(broker)

    def refresh(self, now_ms: int) -> list[str]:
        """Read what was appended to all logs; hold brokers whose logs cannot be read, and return why."""
        troubles = []
        for broker, followed in self.all.items():
            try:
                followed.refresh()
                self.held.pop(broker, None)
            except DeltaMQError as error:
                # Which messages have been delivered is not known: delivering twice would be worse than delivering late.
                self.held.setdefault(broker, now_ms)
                troubles.append(f"{broker} is held: {type(error).__name__}: {error}")
        return troubles

    def readable(self) -> list[tuple[str, F]]:
        """Return the brokers that are not held."""
        return [(broker, followed) for broker, followed in self.all.items() if broker not in self.held]


def broker_shards(conf: Config) -> list[str]:
    """Return the shards of `revive` and `delay`, each with a lock of its own: the brokers.

    The queues of a broker append to the same retry partitions: drivers that shared a broker would race all the time.
    """
    return brokers_of(warehouse_of(conf), conf)


def brokers_of(warehouse: Warehouse, conf: Config) -> list[str]:
    """Return the brokers of the settings, and every other one with a log of the queue in the warehouse."""
    logs = {f"{kind}_{conf.warehouse.cluster}" for kind in (REVIVE_LOG, DELAY)}
    logged = {broker_of(ref.name) for ref in warehouse.refs(Space.SYS) if ref.topic in logs}
    return sorted(logged | set(conf.service.brokers))
