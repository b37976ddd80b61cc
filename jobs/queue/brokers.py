"""The brokers whose queues the jobs of a warehouse process, and the logs that the local engine follows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from deltamq.jobs.run.registry import with_spark_engine
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.names import broker_of
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import DELAY, REVIVE_LOG

#: Interval at which new brokers are looked for, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
_TROUBLES_SHOWN: Final = 3


class BrokerList:
    """The brokers of a warehouse, looked up at intervals."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._known: list[str] = []
        self._looked_ms: int | None = None

    def at(self, now_ms: int) -> list[str]:
        """Return the brokers that are known at `now_ms`."""
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _BROKERS_EVERY_MS:
            self._looked_ms = now_ms
            self._known = brokers_of(self._warehouse, self._conf)
        return self._known


class FollowedLogs(Protocol):
    """A follower of one broker's logs; its length is the number of messages or checkpoints that it remembers."""

    def __len__(self) -> int: ...

    def refresh(self) -> object:
        """Read what was appended since the last call."""

    def oldest_ms(self) -> int | None:
        """Return when the oldest of those that could not be delivered was due; None if there is none."""


F = TypeVar("F", bound=FollowedLogs)


class FollowedBrokers(Generic[F]):
    """The followed logs of a job of the local engine, by broker. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config, follow: Callable[[str], F]) -> None:
        self._list = BrokerList(warehouse, conf)
        self._follow = follow
        self.all: dict[str, F] = {}
        #: Brokers that must wait because a log cannot be read, and since when.
        self.held: dict[str, int] = {}

    def look(self, now_ms: int, mine: Sequence[str] | None) -> list[str]:
        """Read the logs of the brokers that this application has (None: all); return why brokers are held."""
        if mine is not None:
            # Another application has the others now; when this one gets one back, it reads its state from the tables.
            for broker in self.all.keys() - set(mine):
                del self.all[broker]
                self.held.pop(broker, None)
        for broker in self._list.at(now_ms) if mine is None else mine:
            if broker not in self.all:
                self.all[broker] = self._follow(broker)
        return self._refresh(now_ms)

    def _refresh(self, now_ms: int) -> list[str]:
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

    def remembered(self) -> int:
        """Return the number of messages or checkpoints in memory."""
        return sum(map(len, self.all.values()))

    def behind_ms(self, now_ms: int) -> int:
        """Return the time since the oldest of those was due that could not be delivered, or whose broker is held."""
        waiting = [at for followed in self.all.values() if (at := followed.oldest_ms()) is not None]
        return max([0, *(now_ms - at for at in (*waiting, *self.held.values()))])


def trouble_of(troubles: Iterable[str]) -> dict[str, str]:
    """Return the fact `trouble` of a run, with the first reasons; no fact if there are none."""
    reasons = sorted(set(troubles))
    return {"trouble": "; ".join(reasons[:_TROUBLES_SHOWN])} if reasons else {}


def look_every_s(conf: Config, local_ms: int) -> float:
    """Return the interval in seconds at which a job looks for due messages; `local_ms` is the local engine's."""
    return (conf.jobs.spark_look_every_ms if with_spark_engine(conf) else local_ms) / 1000


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
