"""Online states of exclusive clients, and what each of them may consume (SPEC ORDER-2, ORDER-3, ORDER-5).

Who is online, and the allocation that follows from it, are events of the metadata log, so any process can take the
meta role over. A heartbeat that changes nothing makes no event; until when a client is authorized is known to the
holder of the role alone (`mq.order.authorization`), which is why this module needs no clock to decide:

    heartbeat --> decide_heartbeat --> events: client_put, allocated   (one append: both or neither)
    scan      --> decide_scan      --> events: client_gone, allocated  (authorization over, expansion, topic deleted)

A client that says `online: false` is *leaving*: its partitions go to others at once, but it is known until its
authorization is over, because until then it may finish and commit what it holds under its pull locks.

    online --online: false--> leaving --authorization over--> gone
       '----------- authorization over -----------------------^
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mq.errors import Corrupt
from mq.meta.allocation import Allocation, Strategy, allocate
from mq.meta.online_events import Allocated, ClientGone, ClientPut, OnlineClient, OnlineEvent, Subscription

__all__ = [
    "GroupOnline",
    "Member",
    "OnlineState",
    "Seat",
    "TopicAllocation",
    "TopicPartitions",
    "decide_heartbeat",
    "decide_scan",
]


class Member(NamedTuple):
    """One stay of a client in a group; when it comes back after it was gone, that is another."""

    group: str
    client: str
    joined: int


class TopicPartitions(NamedTuple):
    """What there is to allocate of a topic: the id of its life, and its partitions in route order."""

    topic_id: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicAllocation:
    """Who may consume which partition of one topic."""

    topic_id: str
    #: Grows with each change of it.
    epoch: int
    owners: Allocation
    #: The client of each partition.
    owner: Mapping[str, str]
    #: For each partition the clients still known that had it before: one of them may still hold its lock.
    earlier: Mapping[str, frozenset[str]]


class Seat(NamedTuple):
    """What a broker must know of a partition to give its pull lock away (see `mq.order.pull_lock`)."""

    #: Who may pull; None when nobody is online.
    owner: str | None
    #: The clients of the group that are known.
    clients: Mapping[str, OnlineClient]
    #: Clients that had the partition before and may still be finishing.
    earlier: frozenset[str]
    #: The epoch of the allocation; a client that names a higher one knows more than this broker.
    epoch: int


@dataclass(frozen=True, slots=True)
class GroupOnline:
    """The known clients of one exclusive group, and the allocation of each topic. Never modified."""

    clients: Mapping[str, OnlineClient] = field(default_factory=dict)
    topics: Mapping[str, TopicAllocation] = field(default_factory=dict)

    def allocation(self, client: str) -> dict[str, tuple[str, ...]]:
        """What the client may consume of each topic that it asked for; nothing is said so (R125)."""
        present = self.clients.get(client)
        if present is None or present.leaving:
            return {}
        return {
            topic: self.topics[topic].owners.get(client, ()) if topic in self.topics else () for topic in present.topics
        }

    def subscribers(self, topic: str) -> list[str]:
        return sorted(one.id for one in self.clients.values() if topic in one.topics and not one.leaving)


_NOBODY = GroupOnline()


@dataclass(frozen=True, slots=True)
class OnlineState:
    """Everything that the events of exclusive clients so far add up to. Immutable: `apply_all` returns the next one."""

    #: Groups with clients or allocations, by name; never modified.
    groups: Mapping[str, GroupOnline] = field(default_factory=dict)
    #: Grows with each event.
    epoch: int = 0

    def group(self, name: str) -> GroupOnline:
        return self.groups.get(name, _NOBODY)

    def members(self) -> set[Member]:
        """Every stay that has not ended."""
        return {
            Member(name, one.id, one.joined) for name, group in self.groups.items() for one in group.clients.values()
        }

    def seat(self, group: str, topic: str, partition: str) -> Seat:
        """Who may have the pull lock of a partition."""
        online = self.group(group)
        allocation = online.topics.get(topic)
        if allocation is None:
            return Seat(None, online.clients, frozenset(), 0)
        earlier = allocation.earlier.get(partition, frozenset())
        return Seat(allocation.owner.get(partition), online.clients, earlier, allocation.epoch)

    def apply_all(self, events: Iterable[OnlineEvent]) -> OnlineState:
        """The state after `events`, with one copy for all of them."""
        groups, epoch = dict(self.groups), self.epoch
        for event in events:
            group = groups.get(event.group, _NOBODY)
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


def _expect(fits: bool, event: OnlineEvent) -> None:
    """An event continues what the events before it left, or the log contradicts itself."""
    if not fits:
        raise Corrupt(
            f"a {event.kind} event of group {event.group} contradicts those before it", code="meta_event_corrupt"
        )


def _with_client(group: GroupOnline, event: ClientPut, epoch: int) -> GroupOnline:
    client = event.client
    present = group.clients.get(client.id)
    _expect(client.joined == (present.joined if present else epoch), event)
    return replace(group, clients={**group.clients, client.id: client})


def _without_client(group: GroupOnline, event: ClientGone) -> GroupOnline:
    present = group.clients.get(event.id)
    _expect(present is not None and present.joined == event.joined, event)
    clients = {id: one for id, one in group.clients.items() if id != event.id}
    topics = {topic: replace(one, earlier=_known(one.earlier, clients)) for topic, one in group.topics.items()}
    return GroupOnline(clients=clients, topics={name: one for name, one in topics.items() if one.owners or one.earlier})


def _with_allocation(group: GroupOnline, event: Allocated, epoch: int) -> GroupOnline:
    _expect(event.epoch == epoch and all(client in group.clients for client in event.owners), event)
    topics = {topic: one for topic, one in group.topics.items() if topic != event.topic}
    before = group.topics.get(event.topic)
    owner = {partition: client for client, those in event.owners.items() for partition in those}
    earlier: Mapping[str, frozenset[str]] = {}
    if before is not None and before.topic_id == event.topic_id:
        earlier = _known(_earlier(before, owner), group.clients)
    if event.owners or earlier:
        topics[event.topic] = TopicAllocation(
            topic_id=event.topic_id, epoch=epoch, owners=event.owners, owner=owner, earlier=earlier
        )
    return replace(group, topics=topics)


def _earlier(before: TopicAllocation, owner: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Who may still hold the lock of each partition, beside its owner now."""
    return {
        partition: (before.earlier.get(partition, frozenset()) | {before.owner.get(partition, "")})
        - {owner.get(partition, "")}
        for partition in {*before.owner, *before.earlier}
    }


def _known(earlier: Mapping[str, frozenset[str]], clients: Mapping[str, object]) -> dict[str, frozenset[str]]:
    """`earlier` without those who are gone."""
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
    """The events of a heartbeat of an exclusive client; none when it says what was known (SPEC ORDER-2).

    `now_ms` is wall time, to show. Check the meta role in the same decision (`mq.meta.brokers.check_role`).
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
    """The events of the periodic scan: clients whose authorizations are over are gone, and allocations follow.

    `strategies` are those of the exclusive groups that there are: nobody is online in any other. `topics` are all
    that there are, as their routes are now. Check the meta role in the same decision.
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
    """The events that make a group's allocation what its clients and the routes ask for."""
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
