"""Online states of exclusive clients, and the partitions that each may consume (SPEC ORDER-2, ORDER-3, ORDER-5).

The online clients, and the allocation that follows from them, are events of the metadata log, so any process can take
the meta role over. A heartbeat that changes nothing makes no event. Only the holder of the role knows until when a
client is authorized (`mq.order.authorization`), so decisions in this module need no clock:

    heartbeat --> decide_heartbeat --> events: client_put, allocated   (one append: both or neither)
    scan      --> decide_scan      --> events: client_gone, allocated  (authorization over, expansion, topic deleted)

A client that sends `online: false` is *leaving*: its partitions go to others at once, but it stays in the state until
its authorization is over, because until then it may finish and commit its work under its pull locks.

    online --online: false--> leaving --authorization over--> gone
       '----------- authorization over -----------------------^
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.mq.meta.allocation import Allocation, Strategy, allocate
from deltamq.mq.stored_json import Form, check_event, forms_of


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """How a client consumes a topic (SPEC CONS-1, CONS-3, CONS-9)."""

    order: bool
    tags: str
    #: A SQL condition; None for no condition, and in events of releases without filters.
    filter: str | None = None


class OnlineClient(msgspec.Struct, frozen=True, kw_only=True):
    """One stay of an exclusive client in its group."""

    id: str
    #: The number of the event that began the stay; distinguishes it from earlier and later stays.
    joined: int
    topics: Mapping[str, Subscription]
    #: Whether it has sent `online: false`: it has no partitions any more, but may be finishing its work.
    leaving: bool
    #: Wall time at which the stay began; only for display.
    since_ms: int


class ClientPut(msgspec.Struct, frozen=True, kw_only=True):
    """A client joined or changed its subscriptions; holds the complete new state of the client."""

    kind: ClassVar[str] = "client_put"
    group: str
    client: OnlineClient

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.client.id}"


class ClientGone(msgspec.Struct, frozen=True, kw_only=True):
    """A stay ended: everything that the client held is free, because it may not consume any more."""

    kind: ClassVar[str] = "client_gone"
    group: str
    id: str
    joined: int

    @property
    def key(self) -> str:
        return f"client/{self.group}/{self.id}"


class Allocated(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a topic were allocated to clients; without owners, no client may consume the topic."""

    kind: ClassVar[str] = "allocated"
    group: str
    topic: str
    topic_id: str
    epoch: int
    owners: Allocation

    @property
    def key(self) -> str:
        return f"allocation/{self.group}/{self.topic}"


OnlineEvent = ClientPut | ClientGone | Allocated
#: The stored form of each kind of event.
ONLINE_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(ClientPut, ClientGone, Allocated)


class Member(NamedTuple):
    """One stay of a client in a group; a client that comes back after it was gone begins another stay."""

    group: str
    client: str
    joined: int


class TopicPartitions(NamedTuple):
    """The partitions of a topic that can be allocated, in route order, or its logical queues, with the topic's id."""

    topic_id: str
    partitions: tuple[str, ...]


class TopicAllocation(msgspec.Struct, frozen=True):
    """The allocation of the partitions of one topic."""

    topic_id: str
    #: Grows with each change of the allocation.
    epoch: int
    owners: Allocation
    #: The client of each partition.
    owner: Mapping[str, str]
    #: For each partition, the known clients that had it before: one of them may still hold its lock.
    earlier: Mapping[str, frozenset[str]]


class Seat(NamedTuple):
    """What a broker must know of a partition to grant its pull lock (see `mq.order.pull_lock`)."""

    #: The client that may pull; None when no client is online.
    owner: str | None
    #: The known clients of the group.
    clients: Mapping[str, OnlineClient]
    #: Clients that had the partition before and may still be finishing.
    earlier: frozenset[str]
    #: The epoch of the allocation; a client that names a higher one has newer metadata than this broker.
    epoch: int


class GroupOnline(msgspec.Struct, frozen=True):
    """The known clients of one exclusive group, and the allocation of each topic. Never modified."""

    clients: Mapping[str, OnlineClient] = msgspec.field(default_factory=dict)
    topics: Mapping[str, TopicAllocation] = msgspec.field(default_factory=dict)

    def allocation(self, client: str) -> dict[str, tuple[str, ...]]:
        """Return the client's partitions of each topic that it asked for; a topic without any is included."""
        present = self.clients.get(client)
        if present is None or present.leaving:
            return {}
        return {
            topic: self.topics[topic].owners.get(client, ()) if topic in self.topics else () for topic in present.topics
        }

    def subscribers(self, topic: str) -> list[str]:
        return sorted(client.id for client in self.clients.values() if topic in client.topics and not client.leaving)


_NO_CLIENTS = GroupOnline()


class OnlineState(msgspec.Struct, frozen=True):
    """The state of all exclusive clients. Immutable: `apply_all` returns the next one."""

    #: Groups with clients or allocations, by name; never modified.
    groups: Mapping[str, GroupOnline] = msgspec.field(default_factory=dict)
    #: Grows with each event.
    epoch: int = 0

    def group(self, name: str) -> GroupOnline:
        return self.groups.get(name, _NO_CLIENTS)

    def members(self) -> set[Member]:
        """Return every stay that has not ended."""
        return {
            Member(name, client.id, client.joined)
            for name, group in self.groups.items()
            for client in group.clients.values()
        }

    def seat(self, group: str, topic: str, partition: str) -> Seat:
        """Return what decides which client may have the pull lock of a partition."""
        online = self.group(group)
        allocation = online.topics.get(topic)
        if allocation is None:
            return Seat(None, online.clients, frozenset(), 0)
        earlier = allocation.earlier.get(partition, frozenset())
        return Seat(allocation.owner.get(partition), online.clients, earlier, allocation.epoch)

    def apply_all(self, events: Iterable[OnlineEvent]) -> OnlineState:
        """Return the state after `events`; copies the state once for all of them."""
        groups, epoch = dict(self.groups), self.epoch
        for event in events:
            group = groups.get(event.group, _NO_CLIENTS)
            epoch += 1
            if isinstance(event, ClientPut):
                group = _with_client(group, event, epoch)
            elif isinstance(event, ClientGone):
                group = _without_client(group, event)
            else:
                group = _with_allocation(group, event, epoch)
            groups[event.group] = group
            if not group.clients and not group.topics:
                del groups[event.group]
        return OnlineState(groups=groups, epoch=epoch)


def _with_client(group: GroupOnline, event: ClientPut, epoch: int) -> GroupOnline:
    client = event.client
    present = group.clients.get(client.id)
    check_event(client.joined == (present.joined if present else epoch), "a", event.kind, "event of group", event.group)
    return replace(group, clients={**group.clients, client.id: client})


def _without_client(group: GroupOnline, event: ClientGone) -> GroupOnline:
    present = group.clients.get(event.id)
    check_event(present is not None and present.joined == event.joined, "a", event.kind, "event of group", event.group)
    clients = {id: client for id, client in group.clients.items() if id != event.id}
    topics = {
        topic: replace(allocation, earlier=_known(allocation.earlier, clients))
        for topic, allocation in group.topics.items()
    }
    return GroupOnline(
        clients=clients,
        topics={name: allocation for name, allocation in topics.items() if allocation.owners or allocation.earlier},
    )


def _with_allocation(group: GroupOnline, event: Allocated, epoch: int) -> GroupOnline:
    check_event(
        event.epoch == epoch and all(client in group.clients for client in event.owners),
        "a",
        event.kind,
        "event of group",
        event.group,
    )
    topics = {topic: allocation for topic, allocation in group.topics.items() if topic != event.topic}
    before = group.topics.get(event.topic)
    owner = {partition: client for client, partitions in event.owners.items() for partition in partitions}
    earlier: Mapping[str, frozenset[str]] = {}
    if before is not None and before.topic_id == event.topic_id:
        earlier = _known(_earlier(before, owner), group.clients)
    if event.owners or earlier:
        topics[event.topic] = TopicAllocation(
            topic_id=event.topic_id, epoch=epoch, owners=event.owners, owner=owner, earlier=earlier
        )
    return replace(group, topics=topics)


def _earlier(before: TopicAllocation, owner: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the clients that may still hold the lock of each partition, without its current owner."""
    return {
        partition: (before.earlier.get(partition, frozenset()) | {before.owner.get(partition, "")})
        - {owner.get(partition, "")}
        for partition in {*before.owner, *before.earlier}
    }


def _known(earlier: Mapping[str, frozenset[str]], clients: Mapping[str, object]) -> dict[str, frozenset[str]]:
    known = {partition: who & clients.keys() for partition, who in earlier.items()}
    return {partition: who for partition, who in known.items() if who}


def decide_heartbeat(
    state: OnlineState,
    group: str,
    client: str,
    *,
    subscriptions: Mapping[str, Subscription],
    online: bool,
    topics: Mapping[str, TopicPartitions],
    strategy: Strategy,
    now_ms: int,
) -> tuple[OnlineEvent, ...]:
    """Return the events of a heartbeat of an exclusive client; none when it changes nothing (SPEC ORDER-2).

    `now_ms` is wall time, only for display. Check the meta role in the same decision (`mq.meta.brokers.check_role`).
    """
    present = state.group(group).clients.get(client)
    if online:
        joined, since_ms = (present.joined, present.since_ms) if present else (state.epoch + 1, now_ms)
        wanted = OnlineClient(id=client, joined=joined, topics=dict(subscriptions), leaving=False, since_ms=since_ms)
    elif present is None:
        return ()
    else:
        wanted = replace(present, leaving=True)
    if wanted == present:
        return ()
    put = ClientPut(group=group, client=wanted)
    return (put, *_reallocated(state.apply_all([put]), group, topics, strategy))


def decide_scan(
    state: OnlineState,
    *,
    over: Collection[Member],
    strategies: Mapping[str, Strategy],
    topics: Mapping[str, TopicPartitions],
) -> tuple[OnlineEvent, ...]:
    """Return the events of the periodic scan: clients whose authorizations are over are gone, and allocations follow.

    `strategies` has every exclusive group: clients of any other group are gone, too. `topics` has every topic with its
    current partitions. Check the meta role in the same decision.
    """
    known = state.members()
    gone = {member for member in known if member.group not in strategies} | (known & set(over))
    events: list[OnlineEvent] = [
        ClientGone(group=member.group, id=member.client, joined=member.joined) for member in sorted(gone)
    ]
    after = state.apply_all(events)
    for name in sorted(after.groups):
        changed = _reallocated(after, name, topics, strategies.get(name, "sticky"))
        events += changed
        after = after.apply_all(changed)
    return tuple(events)


def _reallocated(
    state: OnlineState, group: str, topics: Mapping[str, TopicPartitions], strategy: Strategy
) -> list[OnlineEvent]:
    online = state.group(group)
    wanted = {topic for client in online.clients.values() for topic in client.topics}
    events: list[OnlineEvent] = []
    for topic in sorted(wanted | set(online.topics)):
        present = online.topics.get(topic)
        there = topics.get(topic)
        owners: Allocation = {}
        if there is not None:
            previous = present.owners if present is not None and present.topic_id == there.topic_id else {}
            owners = allocate(strategy, online.subscribers(topic), there.partitions, previous)
        topic_id = there.topic_id if there is not None else ""
        if present is None and not owners:
            continue
        if present is not None and (present.owners, present.topic_id) == (owners, topic_id):
            continue
        epoch = state.epoch + len(events) + 1
        events.append(Allocated(group=group, topic=topic, topic_id=topic_id, epoch=epoch, owners=owners))
    return events
