"""The ASGI application: FastAPI for what is rare, `Front` before it for what is hot, one service behind both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI

from api import cluster, topics
from api.front import Front
from api.openapi import describe
from api.problems import install
from api.service import Service
from tables.config import Config

__all__ = ["App", "create_app"]


class App(Front):
    """What uvicorn runs. `service` is there while the lifespan is."""

    def __init__(self, fastapi: FastAPI) -> None:
        super().__init__(fastapi, lambda: self.service)
        self.fastapi = fastapi

    @property
    def service(self) -> Service | None:
        service: Service | None = self.fastapi.state.service
        return service


def create_app(config: Config) -> App:
    """The service of `config`, not started yet: the server's lifespan starts and stops it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = await Service.start(config)
        try:
            yield
        finally:
            await service.stop()
            app.state.service = None

    app = FastAPI(
        title="DeltaMQ",
        version=_version(),
        description="A message log whose partitions are Delta tables: an acknowledgement is a Delta commit.",
        lifespan=lifespan,
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = None
    app.include_router(topics.router)
    app.include_router(cluster.router)
    install(app)

    def openapi() -> dict[str, Any]:
        return describe(app)

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's own way to extend the document
    return App(app)


def _version() -> str:
    try:
        return version("deltamq")
    except PackageNotFoundError:  # run from a source tree
        return "0"
