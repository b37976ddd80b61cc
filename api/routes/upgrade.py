"""Switching on what not every release knows, once every process of the cluster does (SPEC META-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from deltamq.api.service.dependencies import Running
from deltamq.api.wire.openapi_parts import problems
from deltamq.mq.meta.features import decide_upgrade, upgrade_of
from deltamq.mq.meta.fold import Meta

router = APIRouter(prefix="/v1/cluster/upgrade", tags=["service"])


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


@router.get("", summary="Features that are on, and what an upgrade would do", response_model=UpgradeView)
async def upgrade(service: Running) -> Any:
    return _view(await service.meta.refresh())


@router.post(
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
