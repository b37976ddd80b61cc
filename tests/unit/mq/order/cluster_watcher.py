"""A cluster in memory that is checked in every step.

`Watcher` sees what no process can: the true time, and the actions of all processes. It decides nothing. It fails if two
clients work on one partition, a key is out of order, a message is processed twice though no process died or was out of
reach, or a partition is without a client for longer than a lease and an authorization.
"""

from __future__ import annotations

from deltamq.mq.errors import Conflict, Unavailable
from deltamq.mq.limits import AUTHORIZATION_MS_DEFAULT, HEARTBEAT_MS, LEASE_MS_DEFAULT, PULL_LOCK_MS
from deltamq.mq.meta.brokers import HostLeft
from deltamq.mq.meta.online import ClientGone
from tests.unit.mq.order.memory_cluster import (
    Clock,
    ClusterEvent,
    ClusterMeta,
    Decide,
    KeyedMessage,
    MemoryCluster,
    MemoryHost,
)
from tests.unit.mq.order.memory_orderly import MemoryClient, Work

__all__ = ["BROKERS", "LPS", "OWNED_WITHIN_MS", "SLACK_MS", "TRUE_CLOCK", "Watched", "Watcher"]

BROKERS = ("A", "B")
LPS = (0, 100, 256, 400, 511, 600, 768, 900, 1023)
#: Allowance for heartbeats under way, scans, and clocks that are 2 % slow.
SLACK_MS = HEARTBEAT_MS + 4_000
OWNED_WITHIN_MS = LEASE_MS_DEFAULT + AUTHORIZATION_MS_DEFAULT + SLACK_MS

TRUE_CLOCK = Clock()


class Watcher(MemoryCluster):
    """A cluster that is checked in every step."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions, BROKERS)
        self.sent: dict[int, int] = {}
        #: The last number of each key that was processed with a right, and the number of times of each message.
        self.done: dict[int, int] = {}
        self.processed: dict[KeyedMessage, int] = {}
        #: Messages that a client had done, or had begun, when it lost its right.
        self.given_up: set[KeyedMessage] = set()
        self.deaths = 0
        self.fault_ms = 0
        self.owned_ms: dict[str, int] = {}

    def append(self, decide: Decide) -> ClusterMeta:
        known = len(self.events)
        meta = super().append(decide)
        self.deaths += sum(map(self._is_death, self.events[known:]))
        return meta

    def _is_death(self, event: ClusterEvent) -> bool:
        """Return whether the event declares a process dead, or a client offline with unfinished works."""
        if isinstance(event, ClientGone):
            return any(client.name == event.id and bool(client.works) for client in self.watched)
        return isinstance(event, HostLeft) and event.expired

    def host(
        self, name: str, *brokers: str, clock: Clock = TRUE_CLOCK, kind: type[MemoryHost] = MemoryHost
    ) -> MemoryHost:
        host = kind(self, name, brokers, clock)
        self.hosts.append(host)
        return host

    def client(
        self,
        name: str,
        *,
        clock: Clock = TRUE_CLOCK,
        work_ms: int = 0,
        lag_ms: int = 0,
        kind: type[Watched] | None = None,
    ) -> Watched:
        client = (kind or Watched)(self, name, clock)
        client.work_ms, client.lag_ms = work_ms, lag_ms
        self.clients.append(client)
        return client

    @property
    def watched(self) -> list[Watched]:
        return [client for client in self.clients if isinstance(client, Watched)]

    def fault(self) -> None:
        self.fault_ms = self.now_ms

    def try_send(self, lp: int) -> bool:
        number = self.sent.get(lp, -1) + 1
        try:
            self.send(lp, number)
        except (Unavailable, Conflict):
            return False
        self.sent[lp] = number
        return True

    def at_work(self, partition: str) -> list[Watched]:
        """Return the clients that may be at work on a partition; a stopped one cannot know that its right is over."""
        return [
            client
            for client in self.watched
            if client.alive and partition in client.works and client.works[partition].right.holds(client.now_ms)
        ]

    def observe(self) -> None:
        ready = all(host.runs for host in self.hosts if host.alive) and any(host.alive for host in self.hosts)
        ready = ready and any(client.runs and not client.leaving for client in self.watched)
        if not ready or any(not client.well for client in self.watched if client.alive):
            self.fault()
        for partition in self.meta.route.partitions:
            workers = self.at_work(partition)
            assert len(workers) <= 1, f"two clients have {partition}: {[client.name for client in workers]}"
            since_ms = max(self.owned_ms.get(partition, self.now_ms), self.fault_ms)
            if workers:
                self.owned_ms[partition] = self.now_ms
            else:
                self.owned_ms.setdefault(partition, self.now_ms)
                assert self.now_ms - since_ms <= OWNED_WITHIN_MS, f"nobody has {partition}"


class Watched(MemoryClient):
    """A client that reports its listener's messages to the watcher."""

    cluster: Watcher

    @property
    def well(self) -> bool:
        return self.runs and self.cluster.now_ms >= self.cut_until_ms

    def began(self, work: Work, message: KeyedMessage) -> None:
        others = [client.name for client in self.cluster.at_work(work.partition) if client is not self]
        assert not others, f"{self.name} begins in {work.partition}, where {others} are at work"
        before = self.cluster.done.get(message.lp, -1)
        assert message.number <= before + 1, f"key {message.lp}: {message.number} after {before}"

    def ended(self, work: Work, message: KeyedMessage) -> None:
        times = self.cluster.processed[message] = self.cluster.processed.get(message, 0) + 1
        again = self.cluster.deaths or message in self.cluster.given_up
        assert times == 1 or again, f"{message} was processed {times} times, and no process died"
        if work.right.holds(self.now_ms):
            self.cluster.done[message.lp] = max(message.number, self.cluster.done.get(message.lp, -1))

    def lost(self, work: Work) -> None:
        """Check that a partition is lost only after a death or an outage of its client or broker."""
        assert self.cluster.deaths or self.cluster.now_ms - self.cluster.fault_ms <= PULL_LOCK_MS, "lost for no reason"
        self.cluster.given_up |= {
            message for offset, message in work.messages.items() if offset >= min(work.committed, work.run.position)
        }
