"""An exclusive client of the cluster in memory: heartbeats, pull locks, and orderly runs (see `memory_cluster`).

Heartbeats and lock requests take time on the way, in both directions; pulls, commits and releases do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from deltamq.mq.errors import Conflict, Unavailable
from deltamq.mq.limits import HEARTBEAT_MS
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.names import broker_of
from deltamq.mq.order.authorization import Authorization
from deltamq.mq.order.orderly import (
    Fetch,
    OnFailure,
    OrderlyRun,
    OrderlySettings,
    Process,
    Right,
    RunState,
    Stop,
    Verdict,
    Yield,
)
from deltamq.mq.order.pull_lock import ClientLock
from tests.unit.mq.order.memory_cluster import Answer, Clock, KeyedMessage, MemoryCluster, MemoryHost

__all__ = ["MemoryClient", "Work"]

_SETTINGS: Final = OrderlySettings(on_failure=OnFailure.IN_PLACE)
_PULL_MESSAGES: Final = 4


class Work(msgspec.Struct):
    """A partition whose lock the client has."""

    partition: str
    lock: ClientLock
    right: Right
    run: OrderlyRun
    #: The last committed offset that the client knows of.
    committed: int
    #: The pulled messages, by offset.
    messages: dict[int, KeyedMessage]
    renewing: bool = False
    #: The offset that is being processed, and the true time of its end.
    offset: int = -1
    until_ms: int = 0

    @property
    def is_processing(self) -> bool:
        return self.run.state is RunState.PROCESSING


class MemoryClient:
    """One life of a consumer process."""

    def __init__(self, cluster: MemoryCluster, name: str, clock: Clock) -> None:
        self.cluster = cluster
        self.name = name
        self.clock = clock
        self.alive = True
        self.leaving = False
        self.stopped_until_ms = 0
        self.cut_until_ms = 0
        #: Time that a message takes, and time that requests and answers are under way.
        self.work_ms = 0
        self.lag_ms = 0
        self.authorization = Authorization()
        self.allocation: tuple[str, ...] = ()
        self.works: dict[str, Work] = {}
        self._asking: set[str] = set()
        #: Numbers of the locks whose release is not answered yet, by partition. None is a lock that the broker may have
        #: granted in an answer that was lost.
        self._releases: dict[str, int | None] = {}
        self._heartbeat_ms: int | None = None

    @property
    def now_ms(self) -> int:
        return self.clock.at(self.cluster.now_ms)

    @property
    def runs(self) -> bool:
        return self.alive and self.cluster.now_ms >= self.stopped_until_ms

    def kill(self) -> None:
        self.alive = False

    def leave(self) -> None:
        """Stop cleanly: `online: false` at once, then finish, commit and release."""
        self.leaving = True
        self._heartbeat_ms = None

    def stop_for(self, ms: int) -> None:
        """Stop the process for `ms`, unnoticed by itself."""
        self.stopped_until_ms = self.cluster.now_ms + ms

    def cut_for(self, ms: int) -> None:
        """Cut the running process off from all hosts for `ms`."""
        self.cut_until_ms = self.cluster.now_ms + ms

    def _host(self, role: str) -> MemoryHost:
        """Return the host of a role; raises if the client is cut off."""
        if self.cluster.now_ms < self.cut_until_ms:
            raise Unavailable(f"{self.name} is cut off")
        return self.cluster.host_of(role)

    def _partition_host(self, partition: str) -> MemoryHost:
        return self._host(broker_of(partition))

    # What tests look at.

    def began(self, work: Work, message: KeyedMessage) -> None:
        """Note that the listener gets a message; for tests."""

    def ended(self, work: Work, message: KeyedMessage) -> None:
        """Note that the listener has finished a message; its result counts unless the run is lost; for tests."""

    def lost(self, work: Work) -> None:
        """Note the loss of a partition, whose uncommitted messages are processed again; for tests."""

    def tick(self) -> None:
        """Do the client's periodic work."""
        if not self.runs:
            return
        if self._heartbeat_ms is None or self.now_ms - self._heartbeat_ms >= HEARTBEAT_MS:
            self._heartbeat()
        for partition, number in list(self._releases.items()):
            self._release(partition, number)
        if self.authorization.holds(self.now_ms) and not self.leaving:
            for partition in sorted(set(self.allocation) - self.works.keys() - self._asking - self._releases.keys()):
                self._take(partition)
        for work in list(self.works.values()):
            self._drive(work)

    def _ask(self, request: Callable[[], object], answered: Callable[[object], None]) -> None:
        """Send a request, and call `answered` with the answer or the exception, if the process still runs then."""

        def deliver() -> None:
            try:
                answer: object = request()
            except (Unavailable, Conflict) as error:
                answer = error
            self.cluster.later(self.lag_ms, lambda: self._hear(answer, answered))

        self.cluster.later(self.lag_ms, deliver)

    def _hear(self, answer: object, answered: Callable[[object], None]) -> None:
        if self.cluster.now_ms < self.cut_until_ms:
            answer = Unavailable(f"{self.name} is cut off")
        if self.alive and not self.runs:
            self.cluster.later(self.stopped_until_ms - self.cluster.now_ms, lambda: self._hear(answer, answered))
        elif self.alive:
            answered(answer)

    def _heartbeat(self) -> None:
        sent_ms, online = self.now_ms, not self.leaving
        self._heartbeat_ms = sent_ms

        def answered(answer: object) -> None:
            if isinstance(answer, Answer):
                self.authorization.granted(sent_ms, answer.authorized_ms, self.now_ms)
                self.allocation = answer.partitions
                for partition, work in self.works.items():
                    work.right.allocated = partition in answer.partitions

        self._ask(lambda: self._host(META_ROLE).heartbeat(self.name, online=online), answered)

    def _take(self, partition: str) -> None:
        sent_ms = self.now_ms
        self._asking.add(partition)

        def answered(number: object) -> None:
            self._asking.discard(partition)
            if isinstance(number, int):
                self._begin(partition, ClientLock(number, sent_ms))
            elif number is not None:
                self._release(partition, None)

        self._ask(lambda: self._partition_host(partition).take_lock(partition, self.name, held=False), answered)

    def _begin(self, partition: str, lock: ClientLock) -> None:
        """Begin to consume a partition whose lock was granted, at the group's offset."""
        right = Right(self.authorization, lock)
        right.allocated = partition in self.allocation and not self.leaving
        offset = self.cluster.committed[partition]
        run = OrderlyRun(right, offset, _SETTINGS, self.now_ms)
        self.works[partition] = Work(partition, lock, right, run, offset, {})

    def _renew(self, work: Work) -> None:
        sent_ms = self.now_ms
        work.renewing = True

        def answered(number: object) -> None:
            work.renewing = False
            if isinstance(number, int):
                is_mine = self.works.get(work.partition) is work
                if not (is_mine and work.lock.renewed(number, sent_ms, self.now_ms)):
                    self._release(work.partition, number)
            elif number is None:
                work.lock.lose()

        self._ask(
            lambda: self._partition_host(work.partition).take_lock(work.partition, self.name, held=True),
            answered,
        )

    def _drive(self, work: Work) -> None:
        """Consume one partition for a tick."""
        if work.lock.is_due(self.now_ms) and not work.renewing:
            self._renew(work)
        if work.is_processing:
            if self.cluster.now_ms < work.until_ms:
                return
            work.run.finished(Verdict.SUCCESS, self.now_ms)
            self.ended(work, work.messages[work.offset])
        self._commit(work)
        step = work.run.next(self.now_ms)
        if isinstance(step, Yield):
            work.run.begin_turn(self.now_ms)
        elif isinstance(step, Fetch):
            self._pull(work, step.offset)
        elif isinstance(step, Process):
            work.offset = step.offsets[0]
            work.until_ms = self.cluster.now_ms + self.work_ms
            self.began(work, work.messages[work.offset])
        elif isinstance(step, Stop):
            self._stop(work)

    def _pull(self, work: Work, offset: int) -> None:
        sent_ms = self.now_ms
        try:
            host = self._partition_host(work.partition)
            batch = host.pull(work.partition, self.name, offset, _PULL_MESSAGES)
        except Unavailable:
            return
        except Conflict as error:
            self._refused(work, error)
            return
        work.lock.renewed(work.lock.number, sent_ms, self.now_ms)
        work.messages |= dict(enumerate(batch, start=offset))
        work.run.fetched(range(offset, offset + len(batch)), offset + len(batch))

    def _refused(self, work: Work, error: Conflict) -> None:
        if error.code == "partition_moved":
            work.right.allocated = False
        elif self._may_claim(work):
            self._renew(work)
        else:
            work.lock.lose()

    def _may_claim(self, work: Work) -> bool:
        """Return whether to claim the lock: once, after the broker was taken over and does not know the lock."""
        broker_epoch = self.cluster.meta.brokers.roles[broker_of(work.partition)].epoch
        return broker_epoch > work.lock.number >> 32 and not work.renewing

    def _commit(self, work: Work) -> None:
        if work.run.position == work.committed or not work.run.may_commit(self.now_ms):
            return
        try:
            host = self._partition_host(work.partition)
            host.commit(work.partition, self.name, work.run.position, work.lock.number)
        except Unavailable:
            return
        except Conflict as error:
            self._refused(work, error)
            return
        work.committed = work.run.position

    def _stop(self, work: Work) -> None:
        """Release the lock after the last commit; a lost partition is only forgotten."""
        handed_over = work.run.state is RunState.HANDED_OVER and work.run.may_commit(self.now_ms)
        if handed_over and work.committed != work.run.position:
            return
        if not handed_over:
            self.lost(work)
        del self.works[work.partition]
        self._release(work.partition, work.lock.number)

    def _release(self, partition: str, number: int | None) -> None:
        """Release a lock; without an answer, the next tick repeats that."""
        self._releases[partition] = number
        try:
            self._partition_host(partition).release(partition, self.name, number)
        except Unavailable:
            return
        del self._releases[partition]
