"""Mixed loads on each object store, while one of two processes is killed again and again (SPEC RELY-16)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.history.checker.check import Reach
from tests.history.conftest import Valid
from tests.history.runs.nemesis import KillJobs, KillService
from tests.history.test_faults import MIXED
from tests.object_servers import SERVERS, running

#: Less than on a disk, since the server takes its share of the machine; with leases as users have them.
PLAN = replace(
    MIXED,
    seed=160,
    hosts=(("broker-a",), ("broker-b",)),
    senders=2,
    sdk_senders=1,
    send_pause_s=0.05,
    upkeep=(),
    strikes=4,
    rest_s=(1.0, 4.0),
    drain_s=120,
    reach=Reach(sends=60, faults=4),
)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", SERVERS)
def test_rely_16_histories_on_object_stores_are_valid(valid: Valid, tmp_path: Path, store: str) -> None:
    with running(SERVERS[store], tmp_path / store) as server:
        plan = replace(PLAN, server=server)
        valid(plan, lambda system: [KillService(system.services, down_s=(0, 4)), KillJobs(system.jobs)])
