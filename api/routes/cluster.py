"""The service itself over REST: cluster, its upgrades, access of brokers and partitions, health, metrics, console.

A change of access (SPEC ROUTE-9) is answered when this process obeys; the others do once they have read the metadata,
within moments. What not every release knows is switched on once every process of the cluster does (SPEC META-5).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from deltamq.api.auth.caller import Caller
from deltamq.api.auth.gate import guarded_warehouse
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.static_topics import queue_states
from deltamq.api.log.metrics import QueueGauges, of_partitions, of_queues, rendered
from deltamq.api.routes.jobs import MissingJob, missing_jobs
from deltamq.api.routes.topics import TopicName, brought_up
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.service.health import Stopped
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.fields import AccessAsked, AccessFields
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import TOPIC_PATTERN, Json, problems
from deltamq.mq.auth.principals import CLUSTER
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.access_changes import decide_broker_access, decide_partition_access
from deltamq.mq.meta.brokers import META_ROLE, Host
from deltamq.mq.meta.features import decide_upgrade, upgrade_of
from deltamq.mq.meta.fold import Meta
from deltamq.mq.names import broker_of, check_broker, check_topic
from deltamq.tables.paths import Space

log = logging.getLogger("deltamq.api")

router = APIRouter(tags=["service"])

_STOPPED_SHOWN: Final = 100

#: The console's page, script and style: bytes and media type.
_CONSOLE: Final = {
    name: (files("deltamq.api").joinpath(name).read_bytes(), f"text/{kind}; charset=utf-8")
    for name, kind in (("console.html", "html"), ("console.js", "javascript"), ("console.css", "css"))
}
#: The console's policy: the page runs this service's files alone, and asks this service alone. Text that it shows can
#: thus never run, and nobody else can frame it.
_CONSOLE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_METRICS_TEXT: Final = """# HELP deltamq_produced_messages_total Messages acknowledged to producers.
# TYPE deltamq_produced_messages_total counter
deltamq_produced_messages_total{topic="flights"} 123.0
"""


#: Without a body everything is allowed again.
_ACCESS: Final = JsonBody(AccessAsked, {"writable": False, "reason": "disk is replaced"}, required=False)
#: Maximum number of topics in one request for metrics.
_TOPICS_MAX: Final = 100


class BrokerView(AccessFields):
    """A broker, the process that serves it, and the epoch since which it does; no process does if not `online`."""

    broker: str
    address: str | None
    host: str | None
    roles: list[str]
    epoch: int
    partitions: int
    online: bool


class MetaView(BaseModel):
    """The process that has the meta role: it answers heartbeats of exclusive groups."""

    address: str
    host: str
    epoch: int


class HostView(BaseModel):
    """A service process; `brokers` are those it was started for, `load` its requests a second at the last renewal."""

    host: str
    address: str
    brokers: list[str]
    load: int


class StoppedPartition(BaseModel):
    """A partition that refuses all calls of this process, with the error; `queue` is its logical queue, if any.

    `space` is `topics`, `retry` for groups' retries, `dlq` for dead letters, or `sys` for the service's own logs.
    """

    space: str
    topic: str
    partition: str
    queue: str | None
    code: str
    detail: str


class ClusterView(BaseModel):
    """The warehouse, its brokers, and the processes that serve them.

    `host` is the process that answers, `auth` whether it asks callers who they are.
    """

    warehouse: str
    version: str
    #: The process that answers.
    host: str
    routes_epoch: int
    topics: int
    brokers: list[BrokerView]
    meta: MetaView | None
    hosts: list[HostView]
    #: Whether each caller must show who it is; if not, anyone who can reach this process may do everything.
    auth: bool
    #: Jobs that the queue needs and that run nowhere.
    missing_jobs: list[MissingJob]
    #: What has stopped, as far as the caller may see it: a hundred partitions at most.
    stopped: list[StoppedPartition]


class Health(BaseModel):
    """The state of this process."""

    status: str


class Readiness(BaseModel):
    """Whether this process serves, and the number of partitions that have stopped; the cluster's view names them."""

    status: str
    stopped_partitions: int


def _shown(**example: object) -> Json:
    """Return the description of a success with an example."""
    return {"content": {"application/json": {"example": example}}}


@router.get("/v1/cluster", summary="Brokers, roles and warehouse", response_model=ClusterView, responses=problems(500))
async def cluster(service: Running, caller: Asking, request: Request) -> Any:
    state, brokers, access = service.topics.state, service.meta.now.brokers, service.topics.access
    hosted = Counter(broker_of(name) for topic in state.topics.values() for name in topic.route.partitions)
    meta_owner = brokers.owner(META_ROLE)
    views: list[BrokerView] = []
    for broker in brokers.brokers:
        owner = brokers.owner(broker)
        # The meta role is shown once: with the first broker of the process that has it.
        is_meta = meta_owner is not None and owner is meta_owner and not any("meta" in view.roles for view in views)
        views.append(
            BrokerView.model_validate(
                {
                    "broker": broker,
                    "address": None if owner is None else owner.address,
                    "host": None if owner is None else owner.id,
                    "roles": ["broker", "meta"] if is_meta else ["broker"],
                    "epoch": brokers.roles[broker].epoch,
                    "partitions": hosted[broker],
                    "online": owner is not None,
                    **AccessFields.of(access.of_broker(broker)),
                }
            )
        )
    return {
        "warehouse": service.warehouse.uri,
        "version": request.app.version,
        "host": service.hosting.id,
        "routes_epoch": state.routes_epoch,
        "topics": len(state.topics),
        "brokers": views,
        "meta": None if meta_owner is None else _role_view(meta_owner, brokers.roles[META_ROLE].epoch),
        "hosts": [
            HostView(host=host.id, address=host.address, brokers=list(host.brokers), load=host.load)
            for host in sorted(brokers.hosts.values(), key=lambda one: one.id)
        ],
        "auth": service.gate is not None,
        "missing_jobs": missing_jobs(await service.job_watch.reports()),
        "stopped": [asdict(one) for one in islice(filter(_visible_to(caller), service.stops.all()), _STOPPED_SHOWN)],
    }


def _visible_to(caller: Caller) -> Callable[[Stopped], bool]:
    """Return whether a caller may see that a partition has stopped."""
    sees_all = caller.allows("cluster", CLUSTER, "metrics")
    return lambda one: sees_all or (one.space == Space.TOPICS.value and caller.allows("topic", one.topic, "describe"))


def _role_view(owner: Host, epoch: int) -> MetaView:
    return MetaView(address=owner.address, host=owner.id, epoch=epoch)


@router.get("/healthz", summary="Liveness", response_model=Health, responses={200: _shown(status="alive")})
async def alive() -> Any:
    return {"status": "alive"}


@router.get(
    "/readyz",
    summary="Readiness",
    response_model=Readiness,
    responses={200: _shown(status="serving", stopped_partitions=0), **problems(503)},
)
async def ready(service: Running) -> Any:
    if service.stopping:
        raise Unavailable("the service is stopping", code="stopping")
    service.meta.check()
    service.meta.check_read()
    if service.is_outsider:
        raise guarded_warehouse()
    return {"status": "serving", "stopped_partitions": service.stops.partitions}


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}, "example": _METRICS_TEXT}},
            "description": "Metrics",
        },
        **problems(400, 404, 422, 500),
    },
)
async def metrics(
    service: Running,
    topic: Annotated[
        Sequence[str],
        Query(
            max_length=_TOPICS_MAX,
            description="Only metrics of these topics, their partitions, and their logical queues.",
            json_schema_extra={"items": {"type": "string", "pattern": TOPIC_PATTERN}},
            examples=[["flights"]],
        ),
    ] = (),
    partitions: Annotated[
        bool, Query(description="Include every partition open in this process: large with many topics.")
    ] = False,
) -> Response:
    if topic:
        for name in topic:
            await brought_up(await service.topics.require(name), service.settings.refresh_ms)
        families = [*service.metrics.of_topics(topic), *of_partitions(service.partitions.gauges(topic))]
        families += of_queues(_queues(service.topics, topic))
    else:
        families = list(service.metrics.of_process())
        if partitions:
            families += of_partitions(service.partitions.gauges())
    # On a thread: formatting takes some microseconds for each sample.
    text = await service.partitions.run(partial(rendered, families))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _queues(topics: Topics, names: Sequence[str]) -> Iterator[QueueGauges]:
    """Yield the logical queues of the static topics among these."""
    for name in names:
        hosted = topics.find(name)
        states = None if hosted is None else queue_states(hosted, topics.queues(hosted))
        for one in states or ():
            yield QueueGauges(name, one.partition, one.min_offset, one.max_offset, one.messages)


@router.get("/", summary="The console", response_class=HTMLResponse)
async def console() -> Response:
    return _file("console.html")


@router.get("/console.js", summary="The console's script", include_in_schema=False)
async def console_script() -> Response:
    return _file("console.js")


@router.get("/console.css", summary="The console's style", include_in_schema=False)
async def console_style() -> Response:
    return _file("console.css")


def _file(name: str) -> Response:
    body, kind = _CONSOLE[name]
    headers = {"content-type": kind, "content-security-policy": _CONSOLE_POLICY, "cache-control": "no-cache"}
    return Response(body, headers=headers)


def asking_console(refusal: Answer) -> Answer:
    """Return the 401 that a browser shows: the console's page, the same for everybody, which asks for a key."""
    page = _file("console.html")
    challenge = [one for one in refusal.headers if one[0] == b"www-authenticate"]
    return Answer(refusal.status, [*page.raw_headers, *challenge], bytes(page.body))


# Access ---------------------------------------------------------------------------------------------------------------


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


upgrade_router = APIRouter(prefix="/v1/cluster/upgrade", tags=["service"])


class FeatureView(BaseModel):
    """A feature and what it changes; `lacking` are the addresses of the processes that do not know it yet."""

    feature: str
    says: str
    lacking: list[str] = []


class UpgradeView(BaseModel):
    """Features that are on, those that an upgrade switches on now, and those that wait for processes."""

    on: list[FeatureView]
    ready: list[FeatureView]
    waiting: list[FeatureView]


@upgrade_router.get("", summary="Features that are on, and what an upgrade would do", response_model=UpgradeView)
async def upgrade(service: Running) -> Any:
    return _view(await service.meta.refresh())


@upgrade_router.post(
    "",
    summary="Switch on every feature that all processes know",
    response_model=UpgradeView,
    responses=problems(500, 503, 507),
)
async def switch_on(service: Running) -> Any:
    return _view(await service.meta.submit_any(lambda meta: decide_upgrade(meta.features, _known(meta))))


def _known(meta: Meta) -> Mapping[str, Sequence[str]]:
    return {host.address or host.id: host.features for host in meta.brokers.hosts.values()}


def _view(meta: Meta) -> dict[str, list[FeatureView]]:
    found = upgrade_of(meta.features, _known(meta))
    return {
        "on": [FeatureView(feature=name, says=says) for name, says in meta.features.on.items()],
        "ready": [FeatureView(feature=name, says=says) for name, says in found.ready.items()],
        "waiting": [
            FeatureView(feature=name, says="", lacking=list(lacking)) for name, lacking in found.waiting.items()
        ],
    }
