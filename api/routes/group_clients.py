"""The clients of a group and, if it is exclusive, their allocation, as the API shows them.

The clients of an exclusive group are in the metadata log; of a shared group, each process knows those that it heard of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.order.online_clients import OnlineClients
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.api.wire.fields import rfc3339
from deltamq.mq.meta.online import Member, Subscription


class SubscribedView(BaseModel):
    """How a client consumes a topic."""

    order: bool
    tags: str
    filter: str | None = None


class ClientView(BaseModel):
    """A known client; one that is not `online` is leaving, and may still finish what it holds.

    Only the owner of the meta role knows `authorized_ms`; elsewhere it is null. Clients of a shared group need no
    authorization: they are those that named themselves in pops or heartbeats lately.
    """

    client_id: str
    online: bool
    topics: dict[str, SubscribedView]
    since_time: str
    authorized_ms: int | None


class AllocationView(BaseModel):
    """The partitions of a topic, by client; `epoch` grows with each change."""

    epoch: int
    clients: Annotated[dict[str, list[str]], Field(examples=[{"worker-1": ["orders@broker-a"]}])]


def client_views(meta: HostedMeta, online: OnlineClients, group: str) -> list[ClientView]:
    """Return the clients of an exclusive group, sorted."""
    clients = meta.now.online.group(group).clients
    return [
        ClientView(
            client_id=one.id,
            online=not one.leaving,
            topics={topic: _subscribed(want) for topic, want in one.topics.items()},
            since_time=rfc3339(one.since_ms * 1000),
            authorized_ms=online.authorized_ms(Member(group, one.id, one.joined)),
        )
        for _, one in sorted(clients.items())
    ]


def _subscribed(one: Subscription) -> SubscribedView:
    return SubscribedView(order=one.order, tags=one.tags, filter=one.filter)


def seen_views(seen_here: SeenClients, group: str, others: Iterable[ClientView]) -> list[ClientView]:
    """Return the clients of a shared group, sorted: those that this process has heard of, and those in `others`."""
    found = {one.client_id: one for one in others}
    for client, seen in seen_here.of(group).items():
        told = found.get(client)
        found[client] = ClientView(
            client_id=client,
            online=True,
            topics={
                **(told.topics if told is not None else {}),
                **{topic: _subscribed(want) for topic, want in seen.topics.items()},
            },
            since_time=min(rfc3339(seen.since_ms * 1000), told.since_time if told is not None else "~"),
            authorized_ms=None,
        )
    return [one for _, one in sorted(found.items())]


def allocation_views(meta: HostedMeta, group: str) -> dict[str, AllocationView]:
    """Return the allocation of each topic of an exclusive group."""
    topics = meta.now.online.group(group).topics
    return {
        topic: AllocationView(
            epoch=found.epoch, clients={client: list(those) for client, those in found.owners.items()}
        )
        for topic, found in sorted(topics.items())
    }
