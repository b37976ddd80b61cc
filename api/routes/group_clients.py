"""Who consumes for a group and, where it is exclusive, what each may: as the API shows it.

Of an exclusive group the metadata log says it; of a shared one each process says whom it has heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from api.routes.topics import rfc3339
from api.service import Service
from mq.meta import Member

__all__ = ["AllocationView", "ClientView", "allocation_views", "client_views", "seen_views"]


class SubscribedView(BaseModel):
    """How a client consumes a topic."""

    order: bool
    tags: str


class ClientView(BaseModel):
    """A client that is known; one that is not `online` has said that it goes, and may be finishing.

    `authorized_ms` is known to the owner of the meta role alone, and null elsewhere. Clients of a shared group need no
    authorization: they are those that have named themselves in pops or heartbeats lately.
    """

    client_id: str
    online: bool
    topics: dict[str, SubscribedView]
    since_time: str
    authorized_ms: int | None


class AllocationView(BaseModel):
    """The partitions of a topic by client; `epoch` grows with each change."""

    epoch: int
    clients: Annotated[dict[str, list[str]], Field(examples=[{"worker-1": ["orders@broker-a"]}])]


def client_views(service: Service, group: str) -> list[ClientView]:
    """The clients of a group, sorted."""
    clients = service.meta.now.online.group(group).clients
    return [
        ClientView(
            client_id=one.id,
            online=not one.leaving,
            topics={topic: SubscribedView(order=want.order, tags=want.tags) for topic, want in one.topics.items()},
            since_time=rfc3339(one.since_ms * 1000),
            authorized_ms=service.online.authorized_ms(Member(group, one.id, one.joined)),
        )
        for _, one in sorted(clients.items())
    ]


def seen_views(service: Service, group: str, others: Iterable[ClientView]) -> list[ClientView]:
    """The clients of a shared group, sorted: those that this process has heard, and those that others have."""
    found = {one.client_id: one for one in others}
    for client, seen in service.seen.of(group).items():
        told = found.get(client)
        found[client] = ClientView(
            client_id=client,
            online=True,
            topics={
                **(told.topics if told is not None else {}),
                **{topic: SubscribedView(order=want.order, tags=want.tags) for topic, want in seen.topics.items()},
            },
            since_time=min(rfc3339(seen.since_ms * 1000), told.since_time if told is not None else "~"),
            authorized_ms=None,
        )
    return [one for _, one in sorted(found.items())]


def allocation_views(service: Service, group: str) -> dict[str, AllocationView]:
    """Who may consume what, by topic."""
    topics = service.meta.now.online.group(group).topics
    return {
        topic: AllocationView(
            epoch=found.epoch, clients={client: list(those) for client, those in found.owners.items()}
        )
        for topic, found in sorted(topics.items())
    }
