"""The service itself over REST: cluster, its upgrades, access of brokers and partitions, health, metrics, console.

A change of access (SPEC ROUTE-9) is answered when this process obeys; the others do once they have read the metadata,
within moments. A feature that not every release knows is switched on once every process knows it (SPEC META-5).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, Response
from msgspec import Meta as Bounds
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from deltamq.api.auth.caller import Caller
from deltamq.api.auth.gate import guarded_warehouse
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.static_topics import queue_states
from deltamq.api.log.metrics import QueueGauges, of_partitions, of_queues, rendered
from deltamq.api.progress.times import brought_up
from deltamq.api.routes.jobs import missing_jobs
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.fields import AccessAsked, access_fields, json_answer
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import TOPIC_PATTERN, answers, problems
from deltamq.mq.auth.principals import CLUSTER
from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.limits import NAME_LENGTH_MAX
from deltamq.mq.meta.access_changes import decide_broker_access, decide_partition_access
from deltamq.mq.meta.brokers import META_ROLE, BrokersState
from deltamq.mq.meta.features import decide_upgrade, upgrade_of
from deltamq.mq.meta.fold import Meta
from deltamq.mq.names import broker_of, check_broker, check_topic
from deltamq.mq.wire.auth import SignInInfo
from deltamq.mq.wire.cluster import (
    BrokerAccess,
    BrokerInfo,
    ClusterInfo,
    DiskInfo,
    FeatureInfo,
    Health,
    HostInfo,
    LogLevelInfo,
    MetaInfo,
    PartitionAccess,
    Readiness,
    SettingList,
    StoppedPartition,
    UpgradeInfo,
)
from deltamq.tables.config_sections import LogLevel
from deltamq.tables.log_lines import OURS
from deltamq.tables.paths import Space

log = logging.getLogger("deltamq.api")

router = APIRouter(tags=["service"])

_STOPPED_SHOWN: Final = 100

#: Media types of the console's files, by suffix.
_CONSOLE_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
#: The console's policy: the page runs only this service's files, and calls only this service, and for a token the
#: identity provider. Text that it shows can thus never run, and no other page can frame it.
_CONSOLE_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src {connect}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class _File(NamedTuple):
    """A file of the console: what it holds, its media type, and the tag by which a browser asks whether it changed."""

    body: bytes
    kind: str
    tag: str


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, _File]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        elif (kind := _CONSOLE_TYPES.get(entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            yield f"{above}{entry.name}", _File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


#: All files of the console by their paths: nothing else is served, whatever a path says.
CONSOLE: Final = dict(_files(files("deltamq.api").joinpath("console")))
_PAGE: Final = "index.html"

_METRICS_TEXT: Final = """# HELP deltamq_produced_messages_total Messages acknowledged to producers.
# TYPE deltamq_produced_messages_total counter
deltamq_produced_messages_total{topic="flights"} 123.0
"""


#: Without a body everything is allowed again.
_ACCESS: Final = JsonBody(AccessAsked, {"writable": False, "reason": "disk is replaced"}, required=False)


class LogLevelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """From which level on a logger, and those below it, log."""

    level: LogLevel
    logger: Annotated[str, Bounds(max_length=NAME_LENGTH_MAX)] | None = OURS


_LOG_LEVEL: Final = JsonBody(LogLevelRequest, {"level": "debug", "logger": "deltamq.api"})
#: Maximum number of topics in one request for metrics.
_TOPICS_MAX: Final = 100


@router.get("/v1/cluster", summary="Brokers, roles and warehouse", responses=answers(ClusterInfo, 500))
async def cluster(service: Running, caller: Asking, request: Request) -> Response:
    state, roles = service.topics.state, service.meta.now.brokers
    meta, is_guarded = roles.owner(META_ROLE), service.gate is not None
    shown = ClusterInfo(
        warehouse=service.warehouse.uri,
        version=request.app.version,
        host=service.hosting.id,
        routes_epoch=state.routes_epoch,
        topics=len(state.topics),
        brokers=_brokers(roles, service.topics),
        meta=None if meta is None else MetaInfo(address=meta.address, host=meta.id, epoch=roles.roles[META_ROLE].epoch),
        hosts=tuple(
            HostInfo(host=host.id, address=host.address, brokers=tuple(host.brokers), load=host.load, auth=is_guarded)
            for host in sorted(roles.hosts.values(), key=lambda host: host.id)
        ),
        auth=is_guarded,  # a process that differs does not serve (SPEC SEC-44)
        missing_jobs=missing_jobs(await service.job_watch.reports()),
        stopped=tuple(islice(filter(_visible_to(caller), service.stops.all()), _STOPPED_SHOWN)),
        disk=await asyncio.to_thread(_disk, service.warehouse.folder),
        store=service.scrape.store_use(),
    )
    return json_answer(shown)


def _disk(folder: Path | None) -> DiskInfo | None:
    """Return what is free on the disk of a warehouse; None on an object store, or if the disk does not tell."""
    if folder is None:
        return None
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None  # each look of the metrics logs why
    return DiskInfo(size_bytes=usage.total, free_bytes=usage.free)


def _brokers(roles: BrokersState, topics: Topics) -> tuple[BrokerInfo, ...]:
    hosted = Counter(broker_of(name) for topic in topics.state.topics.values() for name in topic.route.partitions)
    owners = {broker: roles.owner(broker) for broker in roles.brokers}
    meta = roles.owner(META_ROLE)
    # The meta role is shown once: with the first broker of the process that has it.
    with_meta = next((broker for broker, owner in owners.items() if owner is meta and meta is not None), None)
    return tuple(
        BrokerInfo(
            broker=broker,
            address=None if owner is None else owner.address,
            host=None if owner is None else owner.id,
            roles=("broker", "meta") if broker == with_meta else ("broker",),
            epoch=roles.roles[broker].epoch,
            partitions=hosted[broker],
            online=owner is not None,
            **access_fields(topics.access.of_broker(broker)),
        )
        for broker, owner in owners.items()
    )


def _visible_to(caller: Caller) -> Callable[[StoppedPartition], bool]:
    sees_all = caller.allows("cluster", CLUSTER, "metrics")
    return lambda stopped: (
        sees_all or (stopped.space == Space.TOPICS.value and caller.allows("topic", stopped.topic, "describe"))
    )


@router.get("/v1/settings", summary="Settings of this process", responses=answers(SettingList, 500))
async def settings(request: Request) -> Response:
    return json_answer(request.app.state.settings)


@router.put(
    "/v1/log-level",
    summary="Change what this process logs, until it ends",
    responses=answers(LogLevelInfo, 400, 413, 415, 422, 500, 507),
    openapi_extra=_LOG_LEVEL.described,
)
async def put_log_level(request: Request) -> Response:
    asked = await _LOG_LEVEL.read(request)
    logger = asked.logger or OURS
    if logger != OURS and not logger.startswith(f"{OURS}."):
        raise Unprocessable(f"logger must be {OURS}, or one below it such as {OURS}.api", field="logger")
    logging.getLogger(logger).setLevel(asked.level.name)
    log.warning("event=log_level logger=%s level=%s", logger, asked.level.value)
    return json_answer(LogLevelInfo(logger=logger, level=asked.level.value))


@router.get("/healthz", summary="Liveness", responses=answers(Health, example={"status": "alive"}))
async def alive() -> Response:
    return json_answer(Health("alive"))


@router.get(
    "/readyz",
    summary="Readiness",
    responses=answers(Readiness, 503, example={"status": "serving", "stopped_partitions": 0, "stopped": []}),
)
async def ready(service: Running) -> Response:
    if service.stopping:
        raise Unavailable("the service is stopping", code="stopping")
    service.meta.check()
    service.meta.check_read()
    service.hosting.check_lease()
    if service.is_outsider:
        raise guarded_warehouse()
    count = service.stops.partitions
    stopped = islice(service.stops.all(), 0 if service.gate is not None else _STOPPED_SHOWN)
    shown = Readiness(
        status="degraded" if count else "serving",
        stopped_partitions=count,
        stopped=tuple(stop.partition for stop in stopped),
    )
    return json_answer(shown)


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
    request: Request,
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
        bool,
        Query(description="Include every partition open in this process, not only the largest: many with many topics."),
    ] = False,
) -> Response:
    if topic:
        for name in topic:
            await brought_up(await service.topics.require(name), service.settings.refresh_ms)
        families = [*service.metrics.of_topics(topic), *of_partitions(service.partitions.gauges(topic))]
        families += of_queues(_queues(service.topics, topic))
        families += await service.scrape.of_topics(topic)
    else:
        families = await service.scrape.families(request.app.version, partitions=partitions)
    # On a thread: formatting takes some microseconds for each sample.
    text = await service.partitions.run(partial(rendered, families))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _queues(topics: Topics, names: Sequence[str]) -> Iterator[QueueGauges]:
    for name in names:
        hosted = topics.find(name)
        states = None if hosted is None else queue_states(hosted, topics.queues(hosted))
        for queue in states or ():
            yield QueueGauges(name, queue.partition, queue.min_offset, queue.max_offset, queue.messages)


@router.get("/", summary="The console", response_class=HTMLResponse)
async def console(service: Running) -> Response:
    return _shown(CONSOLE[_PAGE], sign_in=None if service.gate is None else service.gate.sign_in())


@router.get("/console/{file:path}", summary="A file of the console", include_in_schema=False)
async def console_file(file: str, request: Request) -> Response:
    found = CONSOLE.get(file)
    if found is None:
        raise NotFound("the console has no such file", code="file_not_found")
    return _shown(found, known=request.headers.get("if-none-match", ""))


def _shown(file: _File, known: str = "", sign_in: SignInInfo | None = None) -> Response:
    connect = "'self'"
    if sign_in is not None and sign_in.token_endpoint is not None:
        parts = urlsplit(sign_in.token_endpoint)
        connect += f" {parts.scheme}://{parts.netloc}"
    headers = {
        "content-security-policy": _CONSOLE_POLICY.format(connect=connect),
        "cache-control": "no-cache",
        "etag": file.tag,
    }
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={"content-type": file.kind, **headers})


def asking_console(refusal: Answer, sign_in: SignInInfo) -> Answer:
    """Return the 401 that a browser shows: the console's page, the same for all callers, which asks for a key."""
    page = _shown(CONSOLE[_PAGE], sign_in=sign_in)
    challenge = [header for header in refusal.headers if header[0] == b"www-authenticate"]
    return Answer(refusal.status, [*page.raw_headers, *challenge], bytes(page.body))


# Access ---------------------------------------------------------------------------------------------------------------


@router.put(
    "/v1/brokers/{broker}",
    summary="Set whether a broker may be read and written to",
    responses=answers(BrokerAccess, 400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_ACCESS.described,
)
async def put_broker(
    broker: Annotated[str, PathParameter(examples=["broker-a"])], service: Running, request: Request
) -> Response:
    check_broker(broker)
    access, now_ms = (await _ACCESS.read(request)).access(), service.now_ms()
    meta = await service.meta.submit_any(lambda meta: decide_broker_access(meta, broker, access, now_ms))
    log.info("event=broker_access broker=%r readable=%s writable=%s", broker, access.readable, access.writable)
    return json_answer(BrokerAccess(broker=broker, **access_fields(meta.access.of_broker(broker))))


@router.put(
    "/v1/topics/{topic}/partitions/{partition}",
    summary="Set whether a partition may be read and written to",
    responses=answers(PartitionAccess, 400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_ACCESS.described,
)
async def put_partition(
    topic: TopicName,
    partition: Annotated[str, PathParameter(examples=["flights@broker-a"])],
    service: Running,
    request: Request,
) -> Response:
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
    allowed = access_fields(meta.access.at(now_ms).of(topic_id, partition))
    return json_answer(PartitionAccess(topic=topic, partition=partition, **allowed))


upgrade_router = APIRouter(prefix="/v1/cluster/upgrade", tags=["service"])


@upgrade_router.get("", summary="Features that are on, and what an upgrade would do", responses=answers(UpgradeInfo))
async def upgrade(service: Running) -> Response:
    return json_answer(_upgrade(await service.meta.refresh()))


@upgrade_router.post(
    "",
    summary="Switch on every feature that all processes know",
    responses=answers(UpgradeInfo, 500, 503, 507),
)
async def switch_on(service: Running) -> Response:
    meta = await service.meta.submit_any(lambda meta: decide_upgrade(meta.features, meta.brokers.features))
    return json_answer(_upgrade(meta))


def _upgrade(meta: Meta) -> UpgradeInfo:
    plan = upgrade_of(meta.features, meta.brokers.features)
    return UpgradeInfo(
        on=tuple(FeatureInfo(feature=name, says=says) for name, says in meta.features.on.items()),
        ready=tuple(FeatureInfo(feature=name, says=says) for name, says in plan.ready.items()),
        waiting=tuple(
            FeatureInfo(feature=name, says="", lacking=tuple(lacking)) for name, lacking in plan.waiting.items()
        ),
    )
