"""The service itself over REST: cluster, health, metrics, console."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from api.openapi import problems
from api.topics import Running
from mq.errors import Unavailable

__all__ = ["router"]

router = APIRouter(tags=["service"])

_CONSOLE: Final = files("api").joinpath("console.html").read_text(encoding="utf-8")


class BrokerView(BaseModel):
    """A broker group and what it hosts."""

    broker: str
    roles: list[str]
    epoch: int
    partitions: int


class ClusterView(BaseModel):
    """Brokers, epochs, roles and where the tables are."""

    warehouse: str
    version: str
    routes_epoch: int
    topics: int
    brokers: list[BrokerView]


class Health(BaseModel):
    """The state of this process."""

    status: str


@router.get("/v1/cluster", summary="Brokers, roles and warehouse", response_model=ClusterView, responses=problems(500))
async def cluster(service: Running, request: Request) -> Any:
    state = service.topics.state
    hosted = [name for topic in state.topics.values() for name in topic.route.partitions]
    return {
        "warehouse": service.warehouse.uri,
        "version": request.app.version,
        "routes_epoch": state.routes_epoch,
        "topics": len(state.topics),
        "brokers": [
            {
                "broker": broker,
                "roles": ["broker", "meta"] if at == 0 else ["broker"],
                "epoch": service.epoch,
                "partitions": sum(name.endswith(f"@{broker}") for name in hosted),
            }
            for at, broker in enumerate(service.settings.brokers)
        ],
    }


@router.get("/healthz", summary="Alive", response_model=Health)
async def alive() -> Any:
    return {"status": "alive"}


@router.get("/readyz", summary="Serving", response_model=Health, responses=problems(503))
async def ready(service: Running) -> Any:
    if service.stopping:
        raise Unavailable("the service is stopping", code="stopping")
    return {"status": "serving"}


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}},
)
async def metrics(service: Running) -> Response:
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/", summary="The console", response_class=HTMLResponse)
async def console() -> HTMLResponse:
    return HTMLResponse(_CONSOLE, headers={"content-security-policy": _CONSOLE_POLICY})


#: The page is one file: nothing is loaded from anywhere else.
_CONSOLE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
