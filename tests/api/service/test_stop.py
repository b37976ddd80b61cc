"""The stop of a service, one of whose parts fails, and its watch (SPEC META-1)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from deltamq.api.service import background
from deltamq.api.service.service import Service
from tests.api.running import config_for, running, until


def test_meta_01_a_part_that_cannot_be_stopped_keeps_no_other_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roles are left, and what was counted is stored, although two parts before them fail."""

    async def fail() -> None:
        raise RuntimeError("first")

    async def fail_again() -> None:
        raise RuntimeError("second")

    async def stopped() -> Service:
        service = await Service.start(config_for(tmp_path / "warehouse"))
        assert service.hosting.id in service.meta.now.brokers.hosts
        monkeypatch.setattr(service.global_copies, "stop", fail)
        monkeypatch.setattr(service.lanes, "stop", fail_again)
        with pytest.raises(RuntimeError, match="first"):
            await service.stop()
        return service

    service = asyncio.run(stopped())
    assert service.hosting.id not in service.meta.now.brokers.hosts


def test_meta_01_an_unexpected_error_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def fail(*_: object) -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("unexpected")

    monkeypatch.setattr(background, "settle_overdue", fail)
    with running(config_for(tmp_path / "warehouse", refresh_ms=20)):
        until(lambda: looks >= 3)


def test_meta_01_a_timer_of_upkeep_that_ends_after_the_threads_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[dict[str, object]] = []
    with running(config_for(tmp_path / "warehouse")) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", "a")
        (name,) = api.partitions("orders")
        partition, loop = api.hosted("orders", name), api.service.loop
        loop.call_soon_threadsafe(loop.set_exception_handler, lambda _, context: errors.append(context))
        close, fired = api.service.warehouse.close, threading.Event()

        def fire() -> None:
            loop.call_soon(fired.set)
            partition._begin_upkeep()

        def fire_and_close() -> None:
            loop.call_soon_threadsafe(fire)
            assert fired.wait(30)
            close()

        monkeypatch.setattr(api.service.warehouse, "close", fire_and_close)
    assert errors == []
