"""Exclusive groups of the stub service: heartbeats, pull locks, commits and messages set aside, decided by the core."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from deltamq.mq.errors import NotFound
from deltamq.mq.meta.allocation import Strategy
from deltamq.mq.meta.brokers import OwnLease
from deltamq.mq.meta.online import Member, OnlineState, Subscription, TopicPartitions, decide_heartbeat, decide_scan
from deltamq.mq.order.authorization import Authorizations
from deltamq.mq.order.pull_lock import PullLocks
from deltamq.mq.queue.checkpoint import LaneKey

__all__ = ["StubOrder"]

TOPIC_ID = "t-1"


class StubOrder:
    """One broker and the meta role, in memory."""

    def __init__(
        self, changed: threading.Condition, partitions_of: Callable[[], Mapping[str, tuple[str, ...]]]
    ) -> None:
        self.changed = changed
        self._partitions_of = partitions_of
        #: Consume strategy by group; `exclusive` ones are served here.
        self.strategies: dict[str, str] = {}
        self.authorized_ms = 30_000
        self.online = OnlineState()
        #: The epoch of the allocation that the last heartbeat of (group, client) named.
        self._known: dict[tuple[str, str], int] = {}
        self.epoch = 1
        self.committed: dict[str, int] = {}
        #: Number of attempts at the message at the committed offset.
        self.attempts: dict[str, int] = {}
        #: All commits, and messages set aside: partition, offset, destination, reason, attempts.
        self.commits: list[tuple[str, str, int]] = []
        self.aside: list[tuple[str, int, str, str, int]] = []
        #: Grants and releases of locks by clients, in order.
        self.lock_events: list[tuple[str, str, str]] = []
        #: Whether every request for a lock is refused.
        self.refuses_locks = False
        lease = OwnLease(_now_ms(), lease_ms=10**9)
        self._authorizations = Authorizations(lease, set(), _now_ms(), length_ms=self.authorized_ms)
        self.locks = PullLocks(_now_ms(), epoch=1, online_epoch=0)

    # For tests.

    def take_over(self) -> None:
        """Act as a new host of the broker, which knows no locks."""
        with self.changed:
            self.epoch += 1
            self.locks = PullLocks(_now_ms(), epoch=self.epoch, online_epoch=self.online.epoch)

    def call_offline(self, client: str) -> None:
        """Call a client offline, as the meta role does when its authorization is over."""
        with self.changed:
            over = {one for one in self.online.members() if one.client == client}
            self._scan(over)

    def owner(self, group: str, partition: str) -> str | None:
        with self.changed:
            topic = partition.partition("@")[0].partition("#")[0]
            return self.online.seat(group, topic, partition).owner

    def _scan(self, over: set[Member]) -> None:
        strategies: dict[str, Strategy] = {
            group: "sticky" for group, strategy in self.strategies.items() if strategy == "exclusive"
        }
        events = decide_scan(self.online, over=over, strategies=strategies, topics=self._topics())
        self.online = self.online.apply_all(events)
        self.changed.notify_all()

    # Calls.

    def _topics(self) -> dict[str, TopicPartitions]:
        return {topic: TopicPartitions(TOPIC_ID, names) for topic, names in self._partitions_of().items()}

    def answer(self, method: str, parts: list[str], request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a call that never waits; None if the call is not about exclusive groups."""
        match method, parts:
            case "POST", [group, "topics", topic, "aside"]:
                return self.set_aside(group, topic, request)
            case "DELETE", [group, "topics", _, "locks"]:
                return self.release(group, request)
            case "PUT", [group, "topics", topic, "offsets"] if self.strategies.get(group) == "exclusive":
                return self.commit(group, topic, request)
            case "PUT", [group] if "consume_strategy" in request:
                self.strategies[group] = request["consume_strategy"]
        return None

    def heartbeat(
        self, group: str, client: str, request: dict[str, Any], query: dict[str, str], ended: threading.Event
    ) -> dict[str, Any]:
        strategy = self.strategies.get(group)
        if strategy is None:
            raise NotFound("no such group", code="group_not_found")
        with self.changed:
            if strategy != "exclusive":
                return self._answer(group, client, 0) | {"consume_strategy": strategy}
            events = decide_heartbeat(
                self.online,
                group,
                client,
                subscriptions={topic: Subscription(**one) for topic, one in request["topics"].items()},
                online=request["online"],
                topics=self._topics(),
                strategy="sticky",
                now_ms=0,
            )
            self.online = self.online.apply_all(events)
            if events:
                self.changed.notify_all()
            known, wait_s = int(query.get("allocation_epoch", -1)), int(query.get("wait_ms", 0)) / 1000
            self._known[group, client] = known
            self.changed.notify_all()
            self.changed.wait_for(lambda: ended.is_set() or self._epoch_of(group, client) != known, wait_s)
            return self._answer(group, client, self.authorized_ms if request["online"] else 0)

    def knows_its_allocation(self, group: str, client: str) -> bool:
        """Whether the client's last heartbeat named the allocation that is in force."""
        return self._known.get((group, client)) == self._epoch_of(group, client)

    def _epoch_of(self, group: str, client: str) -> int:
        mine = self.online.group(group).allocation(client)
        return sum(hash(one) for one in mine.items()) % 2**31

    def _answer(self, group: str, client: str, authorized_ms: int) -> dict[str, Any]:
        allocation = self.online.group(group).allocation(client)
        return {
            "consume_strategy": "exclusive",
            "authorized_until_ms": 0,
            "authorized_ms": authorized_ms,
            "allocation": {topic: list(names) for topic, names in allocation.items()},
            "routes_epoch": 1,
            "allocation_epoch": self._epoch_of(group, client),
        }

    def take(self, group: str, topic: str, request: dict[str, Any], ended: threading.Event) -> dict[str, Any]:
        client, held = request["client_id"], request.get("held", [])
        wanted = list(dict.fromkeys([*request["partitions"], *held]))
        numbers: dict[str, int] = {}
        deadline = time.monotonic() + request.get("wait_ms", 0) / 1000
        with self.changed:
            while not numbers:
                for name in wanted:
                    seat = self.online.seat(group, topic, name)
                    number = self.locks.take(_lane(group, name), client, seat, _now_ms(), held=name in held)
                    if number is not None and not self.refuses_locks:
                        numbers[name] = number
                        self.lock_events.append(("take" if name not in held else "renew", client, name))
                if time.monotonic() >= deadline or ended.is_set():
                    break
                if not numbers:
                    self.changed.wait(deadline - time.monotonic())
            for name in numbers:
                if self.locks.is_abandoned(_lane(group, name)):
                    self.attempts[name] = self.attempts.get(name, 0) + 1
                    self.locks.counted(_lane(group, name))
            self.changed.notify_all()
        return {
            "partitions": list(numbers),
            "locks": numbers,
            "offsets": {name: self.committed.get(name, 0) for name in numbers},
            "attempts": {name: self.attempts[name] for name in numbers if name in self.attempts},
            "refused": [name for name in wanted if name not in numbers],
            "unanswered": [],
        }

    def release(self, group: str, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            numbers = request.get("locks", {})
            released = []
            for name in request["partitions"]:
                if self.locks.release(_lane(group, name), request["client_id"], number=numbers.get(name)):
                    released.append(name)
                    self.lock_events.append(("release", request["client_id"], name))
            self.changed.notify_all()
            return {"partitions": released}

    def pull(self, group: str, topic: str, partition: str, client: str) -> None:
        """Raise unless the client may fetch."""
        with self.changed:
            self.locks.pull(_lane(group, partition), client, self.online.seat(group, topic, partition), _now_ms())

    def _check(self, group: str, topic: str, partition: str, client: str, number: int | None) -> None:
        seat = self.online.seat(group, topic, partition)
        self.locks.check_commit(_lane(group, partition), client, seat, _now_ms(), number=number)

    def commit(self, group: str, topic: str, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            client, numbers = request["client_id"], request.get("locks", {})
            for name in request["offsets"]:
                self._check(group, topic, name, client, numbers.get(name))
            for name, offset in request["offsets"].items():
                attempts = request.get("attempts", {}).get(name, 0)
                if offset > self.committed.get(name, 0):
                    self.attempts[name] = attempts
                elif offset == self.committed.get(name, 0):
                    self.attempts[name] = max(attempts, self.attempts.get(name, 0))
                self.committed[name] = max(self.committed.get(name, 0), offset)
                self.commits.append((client, name, offset))
            self.changed.notify_all()
            return {"group": group, "topic": topic, "offsets": request["offsets"]}

    def set_aside(self, group: str, topic: str, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            partition = request["partition"]
            self._check(group, topic, partition, request["client_id"], request["lock"])
            for offset in request["offsets"]:
                one = (partition, offset, request["to"], request["reason"], request["attempts"])
                if (partition, offset, request["to"]) in {known[:3] for known in self.aside}:
                    continue
                self.aside.append(one)
            self.changed.notify_all()
            return {"moved": len(request["offsets"])}


def _lane(group: str, partition: str) -> LaneKey:
    return LaneKey(TOPIC_ID, group, False, partition)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
