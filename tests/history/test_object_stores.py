"""Mixed loads on each object store, while processes are killed and take over, judged by the checker (SPEC RELY-16)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.history.checker.check import Reach
from tests.history.conftest import Valid
from tests.history.runs.nemesis import KillJobs, KillService
from tests.history.test_faults import TWO
from tests.object_servers import SERVERS, running


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", SERVERS)
def test_rely_16_histories_on_object_stores_are_valid(valid: Valid, tmp_path: Path, store: str) -> None:
    with running(SERVERS[store], tmp_path / store) as server:
        plan = replace(TWO, seed=140, server=server, strikes=4, rest_s=(1.0, 4.0), reach=Reach(sends=100, faults=4))
        valid(plan, lambda system: [KillService(system.services, down_s=(0, 4)), KillJobs(system.jobs)])
