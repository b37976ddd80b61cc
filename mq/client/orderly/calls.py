"""The calls of an exclusive client, one attempt each: heartbeats, locks, commits, and messages set aside (SPEC ORDER).

Heartbeats go to the host of the meta role, other calls to the host of the partition's broker; for a logical queue, of
its leader when the topic was last fetched. The caller decides what a failure means, and repeats the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Unpack

import msgspec

from deltamq.mq.client.admin.topic_view import TopicView, broker_in, fetch_view
from deltamq.mq.client.http.calls import Calls, ClientAccess, read_answer
from deltamq.mq.client.http.endpoint import Query, path_of
from deltamq.mq.client.http.hosts import META
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.orderly.work import OrderlyWork
from deltamq.mq.client.shells.shell import Answer, Shell
from deltamq.mq.limits import MAX_ATTEMPTS_MAX
from deltamq.mq.names import check_client_topic, check_group
from deltamq.mq.order.orderly import MoveAway
from deltamq.mq.wire.groups import (
    AsideRequest,
    CommitRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LocksGiven,
    LocksRequest,
    ReleaseRequest,
    SubscriptionRequest,
)

_HEADERS: Final = {"Content-Type": "application/json"}


class _Group(msgspec.Struct):
    max_attempts: int


class OrderlyCalls(Calls):
    """The calls of one client of an exclusive group."""

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        client_id: str,
        *,
        patience: Patience | None = None,
        shell: Shell | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        super().__init__(url, patience=patience, shell=shell, **access)
        self.group = check_group(group)
        self.client_id = client_id
        #: The topics as last fetched.
        self._views: dict[str, TopicView] = {}
        self.hosts.follow()

    async def heartbeat(
        self,
        topics: Mapping[str, SubscriptionRequest],
        *,
        online: bool,
        wait_ms: int = 0,
        allocation_epoch: int = 0,
        timeout_s: float,
    ) -> HeartbeatAnswer:
        """Send a heartbeat with the consumed topics and how they are consumed.

        The service waits up to `wait_ms` for an allocation newer than `allocation_epoch`.
        """
        query = {"wait_ms": wait_ms, "allocation_epoch": allocation_epoch} if wait_ms else None
        path = path_of("groups", self.group, "clients", self.client_id, "heartbeat")
        body = HeartbeatRequest(dict(topics), online)
        return read_answer(
            await self._once("POST", path, META, body, query, timeout_s + wait_ms / 1000), HeartbeatAnswer
        )

    async def make_group(self) -> None:
        """Create the group as an exclusive one."""
        path = path_of("groups", self.group)
        await self._once("PUT", path, META, {"consume_strategy": "exclusive"}, None, self.patience.request_timeout_s)

    async def max_attempts(self) -> int:
        """Return the group's `max_attempts`."""
        answer = await self.hosts.call("GET", path_of("groups", self.group), timeout_s=self.patience.request_timeout_s)
        return read_answer(answer, _Group).max_attempts

    async def view(self, topic: str) -> TopicView:
        """Fetch the topic's route and order strategy."""
        view = self._views[topic] = await fetch_view(
            self.hosts, check_client_topic(topic), self.patience.request_timeout_s
        )
        return view

    def broker(self, topic: str, partition: str) -> str:
        """Return the broker whose host has the lock of a partition; empty if unknown: any host forwards."""
        named = broker_in(partition)
        if named is not None:
            return named
        view = self._views.get(topic)
        return "" if view is None else view.broker(partition)

    async def take(
        self, topic: str, partitions: Sequence[str], *, held: Sequence[str] = (), wait_ms: int = 0, timeout_s: float
    ) -> LocksGiven:
        """Ask for the locks of partitions of one broker; those in `held` are renewed (SPEC ORDER-4).

        If no lock is free, the service waits up to `wait_ms` for the first one.
        """
        body = LocksRequest(self.client_id, list(partitions), list(held), wait_ms)
        broker = self.broker(topic, [*partitions, *held][0])
        answer = await self._once("POST", self._locks(topic), broker, body, None, timeout_s + wait_ms / 1000)
        return read_answer(answer, LocksGiven)

    async def release(self, topic: str, partition: str, number: int | None) -> None:
        """Release a lock; with `number` None, any lock of the partition that this client may have been granted."""
        body = ReleaseRequest(self.client_id, [partition], None if number is None else {partition: number})
        timeout_s = self.patience.request_timeout_s
        await self._once("DELETE", self._locks(topic), self.broker(topic, partition), body, None, timeout_s)

    async def commit(self, work: OrderlyWork, offset: int, number: int, attempts: int) -> None:
        """Commit `offset` under the lock of this number; `attempts` counts failures of the message at `offset`."""
        path = path_of("groups", self.group, "topics", work.topic, "offsets")
        body = CommitRequest({work.partition: offset}, self.client_id, {work.partition: number})
        if attempts:
            body.attempts = {work.partition: min(attempts, MAX_ATTEMPTS_MAX)}
        await self._once("PUT", path, work.broker, body, None, self.patience.request_timeout_s)

    async def set_aside(self, work: OrderlyWork, away: MoveAway, *, to: Literal["dead", "retry"], reason: str) -> None:
        """Append messages to the group's dead letters (`dead`) or its retry partition (`retry`), each once."""
        path = path_of("groups", self.group, "topics", work.topic, "aside")
        body = AsideRequest(
            client_id=self.client_id,
            partition=work.partition,
            offsets=list(away.offsets),
            to=to,
            lock=work.lock.number,
            reason=reason,
            attempts=away.attempts,
        )
        await self._once("POST", path, work.broker, body, None, self.patience.request_timeout_s)

    def _locks(self, topic: str) -> str:
        return path_of("groups", self.group, "topics", topic, "locks")

    async def _once(
        self,
        method: str,
        path: str,
        role: str,
        body: msgspec.Struct | Mapping[str, str],
        query: Query | None,
        timeout_s: float,
    ) -> Answer:
        return await self.hosts.call(
            method,
            path,
            role=role,
            query=query,
            headers=_HEADERS,
            body=msgspec.json.encode(body),
            timeout_s=timeout_s,
        )
