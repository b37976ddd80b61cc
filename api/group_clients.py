"""Who is online in an exclusive group and what each may consume, as the API shows it: what the metadata log says."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from api.service import Service
from api.topics import rfc3339
from mq.online import Member

__all__ = ["AllocationView", "ClientView", "allocation_views", "client_views"]


class SubscribedView(BaseModel):
    """How a client consumes a topic."""

    order: bool
    tags: str


class ClientView(BaseModel):
    """A client that is known; one that is not `online` has said that it goes, and may be finishing.

    `authorized_ms` is known to the owner of the meta role alone, and null elsewhere.
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


def allocation_views(service: Service, group: str) -> dict[str, AllocationView]:
    """Who may consume what, by topic."""
    topics = service.meta.now.online.group(group).topics
    return {
        topic: AllocationView(
            epoch=found.epoch, clients={client: list(those) for client, those in found.owners.items()}
        )
        for topic, found in sorted(topics.items())
    }
