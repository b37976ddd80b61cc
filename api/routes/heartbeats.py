"""`POST /v1/groups/{group}/clients/{client_id}/heartbeat`: what a client may consume, and how long (SPEC ORDER-1 to 3).

The owner of the meta role serves it; other processes forward it. With `wait_ms` the answer comes when the client's
allocation changes, so that a handover begins at once.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter

from deltamq.api.auth.caller import require_also
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.order.online_clients import Beat
from deltamq.api.routes.groups import GroupName
from deltamq.api.routes.order_request import HEARTBEAT, check_client, check_wait, heartbeat_of
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.openapi_parts import answers
from deltamq.api.wire.request import Client
from deltamq.mq.limits import WAIT_MS_MAX
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.group import Group
from deltamq.mq.names import check_group
from deltamq.mq.wire.groups import CLIENT_PATTERN, HeartbeatAnswer

router = APIRouter(prefix="/v1/groups/{group}/clients", tags=["order"])

ClientId = Annotated[str, PathParameter(json_schema_extra={"pattern": CLIENT_PATTERN}, examples=["worker-1"])]


@router.post(
    "/{client_id}/heartbeat",
    summary="Renew a client's authorization, and return its allocation",
    responses=answers(HeartbeatAnswer, 400, 404, 409, 413, 415, 422, 429, 500, 507),
    openapi_extra=HEARTBEAT.described,
)
async def heartbeat(
    group: GroupName,
    client_id: ClientId,
    service: Running,
    request: Request,
    wait_ms: Annotated[
        int, Query(ge=0, description=f"Milliseconds to wait for another allocation, at most {WAIT_MS_MAX}.")
    ] = 0,
    allocation_epoch: Annotated[
        int | None, Query(ge=0, description="Epoch of the allocation that the client knows; needed to wait.")
    ] = None,
) -> Response:
    check_group(group)
    check_client(client_id)
    check_wait(wait_ms)
    subscriptions, online = heartbeat_of(await HEARTBEAT.read(request))
    for name in subscriptions:
        require_also(request.scope, "topic", name, "subscribe")
        subscribed = service.topics.find(name)
        if subscribed is not None:
            refuse_global(subscribed.topic, "a subscription")
    elsewhere: Response | None = await service.peers.elsewhere_as_response(META_ROLE, request, wait_ms=wait_ms)
    if elsewhere is not None:
        return elsewhere
    beat = Beat(group, client_id, subscriptions, online)
    if allocation_epoch is None:
        granted = await service.online.beat(beat)
    else:
        client = Client(request.scope, request.receive)
        try:
            granted = await service.online.beat_until_changed(beat, allocation_epoch, wait_ms, client)
        finally:
            client.close()
    if not granted.exclusive:
        service.seen.beat(group, client_id, subscriptions) if online else service.seen.gone(group, client_id)
    answer = HeartbeatAnswer(
        consume_strategy="exclusive" if granted.exclusive else _strategy(service.groups.find(group)),
        authorized_until_ms=service.now_ms() + granted.authorized_ms,
        authorized_ms=granted.authorized_ms,
        allocation={topic: list(partitions) for topic, partitions in granted.allocation.items()},
        routes_epoch=service.topics.state.routes_epoch,
        allocation_epoch=granted.epoch,
    )
    return json_answer(answer)


def _strategy(group: Group | None) -> str:
    """Return the strategy of a group that needs no authorization; it may have become exclusive just now."""
    return "broadcast" if group is not None and group.is_broadcast else "shared"
