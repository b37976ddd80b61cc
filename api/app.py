"""The ASGI application: `Front` takes the hot calls, FastAPI all others; one service is behind both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from deltamq.api.auth.caller import Certificates
from deltamq.api.auth.calls import check_complete
from deltamq.api.front import HOT_CALLS, Front, Guard, HotCalls
from deltamq.api.host.clusters import ClusterHandles
from deltamq.api.inspection import INSPECTION_ROUTERS
from deltamq.api.measured import Traces, traces_of
from deltamq.api.openapi.document import describe, operation_id
from deltamq.api.order.pull_gate import Gates
from deltamq.api.ports import REAL, Ports
from deltamq.api.principals import AUTH_ROUTERS
from deltamq.api.reading.global_reader import GlobalReader
from deltamq.api.routes import ROUTERS
from deltamq.api.routes.fetch import FetchEndpoint
from deltamq.api.routes.handles import HandlesEndpoint
from deltamq.api.routes.pop import PopEndpoint
from deltamq.api.routes.pop_elsewhere import PopForwarder
from deltamq.api.routes.produce import ProduceEndpoint
from deltamq.api.schemas.endpoint import CALLS as SCHEMA_CALLS
from deltamq.api.schemas.endpoint import SchemasEndpoint
from deltamq.api.sending.commit_defaults import CommitDefaults
from deltamq.api.sending.global_sender import GlobalSender
from deltamq.api.sending.request_appender import RequestAppender
from deltamq.api.service.service import Service
from deltamq.api.wire.answer import install
from deltamq.api.wire.request import Receive, Scope, Send
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.release import release
from deltamq.tables.config import Config, settings_of

log = logging.getLogger("deltamq.api")

#: All routers, in the order of the OpenAPI document.
_ROUTERS: Final = (*ROUTERS, *INSPECTION_ROUTERS, *AUTH_ROUTERS)


class App(Front):
    """The application that uvicorn runs. Its service exists from the lifespan's startup to its shutdown."""

    def __init__(self, fastapi: FastAPI, config: Config, ports: Ports, traces: Traces | None) -> None:
        super().__init__(fastapi, within_ms=config.service.request_ms, is_guarded=config.service.auth)
        self.fastapi = fastapi
        self._config = config
        self.ports = ports
        #: What traces requests; None if no collector is set.
        self.traces = traces
        #: The URL under which clients and other processes reach it, unless the settings name one; set by the server.
        self.address = ""

    @property
    def service(self) -> Service | None:
        service: Service | None = self.fastapi.state.service
        return service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        listener = None
        try:
            if self._config.service.kafka_port:
                # A service without this port does not load its forty modules.
                from deltamq.api.kafka.server.server import KafkaServer, bind_kafka

                listener = bind_kafka(self._config.service)
            kafka = "" if listener is None else listener.advertised
            service = await Service.start(self._config, self.ports, address=self.address, kafka=kafka)
        except (DeltaMQError, OSError) as error:
            log.error("event=start_failed code=%s detail=%r", getattr(error, "code", "os_error"), str(error))
            if listener is not None:
                listener.close()
            await send({"type": "lifespan.startup.failed"})
            return
        door = None if listener is None else await KafkaServer.start(service, listener, self.traces)
        self.fastapi.state.service = service
        self.calls = _hot_calls(service)
        if self.traces is not None:
            service.metrics.counters += self.traces.counters()
        _log_start(service, self.fastapi.version)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            if door is not None:
                await door.stop()
        finally:
            await service.stop()
            if self.traces is not None:
                await asyncio.to_thread(self.traces.close)
        self.fastapi.state.service = self.calls = None
        await send({"type": "lifespan.shutdown.complete"})


def _log_start(service: Service, version: str) -> None:
    meta = service.meta.now
    log.info(
        "event=started version=%s host=%s address=%s brokers=%s topics=%d groups=%d principals=%d",
        version,
        service.hosting.id,
        service.hosting.address,
        ",".join(service.settings.brokers),
        len(meta.topics.topics),
        len(meta.groups.groups),
        len(meta.auth.principals),
    )


def create_app(config: Config, ports: Ports = REAL) -> App:
    """Return the application of `config`. The server's lifespan starts and stops its service.

    Raises
    ------
    Refused
        `config` asks for traces, and OpenTelemetry is not installed.
    """
    app = FastAPI(
        title="DeltaMQ",
        version=release(),
        description="A message log whose partitions are Delta tables: an acknowledgement is a Delta commit.\n\n"
        "Integers are at most 2^53 - 1, which JavaScript's numbers hold, but for a producer's number of a request.",
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=operation_id,
        redirect_slashes=False,  # else a path with a slash too many gets an empty 307
    )
    app.state.service = None
    app.state.settings = settings_of(config)
    app.state.is_guarded = config.service.auth
    app.router.routes.extend(_routes())
    install(app)

    def openapi() -> dict[str, Any]:
        return describe(app)

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's own way to extend the document
    check_complete(_served(app))
    return App(app, config, ports, traces_of(config))


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes, which FastAPI prepares at their first request: the same for every application."""
    router = APIRouter(generate_unique_id_function=operation_id)
    for part in _ROUTERS:
        router.include_router(part)
    return router.routes


def _served(app: FastAPI) -> list[str]:
    served = [f"HEAD {app.openapi_url}", f"GET {app.openapi_url}"]
    for router in _ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute), "our routers have nothing else"
            served += [f"{method} {route.path}" for method in route.methods or ()]
    return [*served, *HOT_CALLS, *SCHEMA_CALLS]


def _hot_calls(service: Service) -> HotCalls:
    guard = None
    if service.gate is not None:
        certificates = Certificates(service.settings.tls_principal)
        guard = Guard(service.gate, service.prover, service.quotas, certificates, service.cluster_proofs)
    return HotCalls(
        _produce(service),
        _fetch(service),
        _pop(service),
        _handles(service),
        SchemasEndpoint(service.registry),
        service.meta,
        service.metrics,
        guard,
        service.audit,
    )


def _produce(service: Service) -> ProduceEndpoint:
    appender = RequestAppender(
        service.topics,
        service.partitions,
        service.delays,
        meta=service.meta,
        hosting=service.hosting,
        fencing=service.fencing,
        sealer=service.sealer,
        defaults=CommitDefaults.of(service.config, service.partitions, service.admission),
    )
    return ProduceEndpoint(
        service.topics,
        appender,
        service.partitions,
        service.metrics,
        admission=service.admission,
        bytes_max=service.settings.request_bytes_max,
        within_ms=service.settings.request_ms,
        now_ms=service.now_ms,
        global_sender=GlobalSender(appender, service.global_copies),
        codecs=service.codecs,
    )


def _fetch(service: Service) -> FetchEndpoint:
    return FetchEndpoint(
        service.topics,
        service.groups,
        service.reader,
        service.queue_reader,
        Gates(service.locks, service.lanes, service.moved, service.statistics),
        GlobalReader(service.queue_reader, service.global_copies),
        peers=service.peers,
        partitions=service.partitions,
        metrics=service.metrics,
        admission=service.answers,
        values=service.values,
    )


def _pop(service: Service) -> PopEndpoint:
    return PopEndpoint(
        service.topics,
        service.groups,
        service.popper,
        service.handles,
        hosting=service.hosting,
        forwarder=PopForwarder(
            service.owners,
            service.peers,
            service.handles,
            hosting=service.hosting,
            lanes=service.lanes,
            progress=service.moved,
            clusters=ClusterHandles(service.global_copies.clusters),
            is_stopping=lambda: service.stopping,
            answers=service.answers,
        ),
        copies=service.global_copies,
        seen=service.seen,
        partitions=service.partitions,
        metrics=service.metrics,
        statistics=service.statistics,
        admission=service.pops,
        answers=service.answers,
        invisible=service.invisible,
        values=service.values,
        within_ms=service.settings.request_ms,
        now_ms=service.now_ms,
    )


def _handles(service: Service) -> HandlesEndpoint:
    return HandlesEndpoint(
        service.groups,
        service.handles,
        service.owners,
        service.lanes,
        service.global_copies.clusters,
        service.metrics,
        admission=service.pops,
        invisible=service.invisible,
        within_ms=service.settings.request_ms,
    )
