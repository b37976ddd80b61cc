"""Exclusive clients under faults: one for a partition, nothing repeated but by a crash, keys in order (SPEC ORDER).

Each client is a process of its own. Producers send to keys of their own, one request after another, so that the order
of a key is known; the rules are `two-consumers`, `processed-twice`, `key-order`, `unprocessed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from tests.history.checker.check import Reach
from tests.history.clients.poppers import PopSettings
from tests.history.conftest import Valid
from tests.history.runs.nemesis import Expand, Fault, KillClient, KillService, LeaveClient, PauseClient, PauseService
from tests.history.runs.run import GroupPlan, Plan, System

#: How many seeds the longest test plays (make faults RUNS=100).
RUNS = int(os.environ.get("HISTORY_RUNS", "6"))
#: Lengths in the same proportions as by default, but for the pull locks', which are what they are.
QUICK = {
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
    "DELTAMQ_SERVICE_AUTHORIZATION_MS": "6000",
}
TWO_HOSTS = (("broker-a",), ("broker-b",))
ORDERLY = Plan(
    strict=True, orderlies=3, jobs=(), plain_senders=0, delayed_percent=0, environment=QUICK, drain_s=120, seconds=2
)
TWO = replace(ORDERLY, hosts=TWO_HOSTS)
#: A group that pops from the same ordered topic.
POPS = GroupPlan(pops=PopSettings(group="billing", topic="orders", invisible_ms=(600, 2_000)))


def _clients(system: System) -> list[Fault]:
    assert system.orderlies is not None
    return [KillClient(system.orderlies), LeaveClient(system.orderlies)]


def _everything(system: System) -> Sequence[Fault]:
    assert system.orderlies is not None
    return [
        *_clients(system),
        PauseClient(system.orderlies, pause_s=(1, 9)),
        KillService(system.services, down_s=(0, 5)),
        PauseService(system.services, pause_s=(1, 6)),
        Expand(system.urls, "orders", most=16),
    ]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_order_05_clients_come_and_go_and_repeat_nothing(valid: Valid) -> None:
    """Without a crash a handover repeats nothing: there is no excuse in this run."""
    plan = replace(ORDERLY, seed=51, strikes=3, reach=Reach(handled=100, faults=3))

    def leave(system: System) -> Sequence[Fault]:
        assert system.orderlies is not None
        return [LeaveClient(system.orderlies)]

    found = valid(plan, leave)
    assert found.checked.findings.allowed["processed-again-after-loss"] == 0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_f19_a_strict_topic_grows_under_load(valid: Valid) -> None:
    plan = replace(TWO, seed=191, partitions=2, strikes=3, reach=Reach(handled=100, faults=3))
    found = valid(plan, lambda system: [Expand(system.urls, "orders", most=12)])
    assert found.checked.findings.allowed["processed-again-after-loss"] == 0


@pytest.mark.promise("LOAD-7")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1_910, 1_912))
def test_f19_a_strict_topic_grows_ten_times_while_processes_die(valid: Valid, seed: int) -> None:
    plan = replace(TWO, seed=seed, partitions=2, strikes=12, rest_s=(0.3, 2), reach=Reach(handled=500, faults=12))
    plan = replace(plan, groups=(POPS,), jobs=("revive",))

    def hurt(system: System) -> Sequence[Fault]:
        grow = Expand(system.urls, "orders", most=32)
        return [grow, grow, grow, grow, grow, KillService(system.services, down_s=(0, 4)), *_clients(system)]

    valid(plan, hurt)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_order_03_clients_that_are_killed_and_cut_off(valid: Valid) -> None:
    plan = replace(ORDERLY, seed=31, strikes=12, rest_s=(0.3, 3), reach=Reach(handled=500, faults=12))

    def hurt(system: System) -> Sequence[Fault]:
        assert system.orderlies is not None
        return [*_clients(system), PauseClient(system.orderlies, pause_s=(1, 10))]

    valid(plan, hurt)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_f3_an_owner_that_was_stopped_gives_no_partition_to_two_clients(valid: Valid) -> None:
    plan = replace(TWO, seed=32, strikes=10, rest_s=(0.5, 3), reach=Reach(handled=500, faults=10))
    valid(plan, lambda system: [PauseService(system.services, pause_s=(2, 7))])


@pytest.mark.promise("LOAD-7")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(RUNS))
def test_order_02_everything_goes_wrong_with_two_processes(valid: Valid, seed: int) -> None:
    hurt: Callable[[System], Sequence[Fault]] = _everything
    plan = replace(TWO, seed=200 + seed, strikes=8, rest_s=(0.3, 3), groups=(POPS,), jobs=("revive",))
    valid(replace(plan, reach=Reach(handled=300, faults=8)), hurt)
