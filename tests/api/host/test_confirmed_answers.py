"""What is only in a process's memory is answered after a look at the metadata that is fresh (SPEC META-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from deltamq.api.host.hosting import Hosting
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.brokers import OwnLease
from tests.api.running import Api, config_for, running

_LEASE = {"lease_ms": 3_000, "lease_renew_ms": 1_000, "lease_margin_ms": 500}


def _confirmed(api: Api, monkeypatch: pytest.MonkeyPatch, may_be_fresh: Callable[[], bool]) -> None:
    """Confirm a role while each answer to whether the last look is fresh enough comes from `may_be_fresh`."""
    hosting: Hosting = api.service.hosting
    role = api.service.config.service.brokers[0]
    monkeypatch.setattr(OwnLease, "is_fresh", lambda *_: may_be_fresh())
    confirming = hosting.confirm(role, hosting.epoch(role))
    asyncio.run_coroutine_threadsafe(confirming, api.service.loop).result(30)


def test_meta_08_an_answer_waits_for_a_read_that_is_quick_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(config_for(tmp_path / "warehouse", **_LEASE)) as api:
        looks: list[bool] = []

        def third() -> bool:
            looks.append(len(looks) == 3)
            return looks[-1]

        _confirmed(api, monkeypatch, third)
        assert looks == [False, False, False, True]
        with pytest.raises(Unavailable, match="too slowly"):
            _confirmed(api, monkeypatch, lambda: False)
