"""Access over REST: which brokers and partitions may be read and written to (SPEC ROUTE-9).

A call returns when this process obeys; the others do once they have read the metadata, within moments.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter

from api.routes.topics import Running, TopicName
from api.wire import AccessAsked, AccessFields, JsonBody, problems
from mq.meta import decide_broker_access, decide_partition_access
from mq.names import check_broker, check_topic

__all__ = ["router"]

log = logging.getLogger("deltamq.api")

router = APIRouter(tags=["service"])

#: Without a body everything is allowed again.
_ACCESS: Final = JsonBody(AccessAsked, {"writable": False, "reason": "disk is replaced"}, required=False)


class BrokerAccessView(AccessFields):
    """The access of a broker."""

    broker: str


class PartitionAccessView(AccessFields):
    """The access of a partition, as far as it and its broker both allow."""

    topic: str
    partition: str


@router.put(
    "/v1/brokers/{broker}",
    summary="Set whether a broker may be read and written to",
    response_model=BrokerAccessView,
    responses=problems(400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_ACCESS.described,
)
async def put_broker(
    broker: Annotated[str, PathParameter(examples=["broker-a"])], service: Running, request: Request
) -> Any:
    check_broker(broker)
    access, now_ms = (await _ACCESS.read(request)).access(), service.now_ms()
    meta = await service.meta.submit_any(lambda meta: decide_broker_access(meta, broker, access, now_ms))
    log.info("event=broker_access broker=%r readable=%s writable=%s", broker, access.readable, access.writable)
    return {"broker": broker, **AccessFields.of(meta.access.of_broker(broker))}


@router.put(
    "/v1/topics/{topic}/partitions/{partition}",
    summary="Set whether a partition may be read and written to",
    response_model=PartitionAccessView,
    responses=problems(400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_ACCESS.described,
)
async def put_partition(
    topic: TopicName,
    partition: Annotated[str, PathParameter(examples=["flights@broker-a"])],
    service: Running,
    request: Request,
) -> Any:
    check_topic(topic)
    access, now_ms = (await _ACCESS.read(request)).access(), service.now_ms()
    meta = await service.meta.submit_any(lambda meta: decide_partition_access(meta, topic, partition, access, now_ms))
    log.info(
        "event=partition_access topic=%r partition=%r readable=%s writable=%s",
        topic,
        partition,
        access.readable,
        access.writable,
    )
    topic_id = meta.topics.topic(topic).id
    return {"topic": topic, "partition": partition, **AccessFields.of(meta.access.at(now_ms).of(topic_id, partition))}
