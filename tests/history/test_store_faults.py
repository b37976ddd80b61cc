"""Services, jobs and clients on an object store that fails (fault F20), each run judged by the checker.

Eight producers that repeat by sequence, two consumers that pop and acknowledge, a reader, and the jobs, on an S3 server
behind a proxy that makes the faults. The end is judged on a store that works again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from tests.history.checker.check import Reach
from tests.history.clients.poppers import PopSettings
from tests.history.conftest import Valid
from tests.history.runs.clock import program, set_clock
from tests.history.runs.nemesis import Fault as Struck
from tests.history.runs.nemesis import JumpClock, KillInTrouble, TroubleStore
from tests.history.runs.run import GroupPlan, Plan, System
from tests.store_proxy import WRITES, Fault, StoreProxy

_MEMORY_MIB: Final = 600.0
_LEASES: Final = {
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
}
BILLING: Final = PopSettings(group="billing", topic="orders", invisible_ms=(2_000, 4_000))
ON_A_STORE: Final = Plan(
    groups=(GroupPlan(pops=BILLING),),
    senders=8,
    plain_senders=1,
    sdk_senders=1,
    send_pause_s=0.08,
    drain_s=120,
)

FAULTS: Final[Mapping[str, Sequence[Fault]]] = {
    "answers lost": [Fault(probability=0.05, acts=True, reset=True)],
    "500 after acting": [Fault(probability=0.05, acts=True, status=500, code="InternalError")],
    "reset before acting": [Fault(probability=0.1, reset=True)],
    "500 and 503 before acting": [
        Fault(probability=0.05, status=500, code="InternalError"),
        Fault(probability=0.05, status=503, code="SlowDown"),
    ],
    "throttled below a prefix": [
        Fault(probability=0.5, prefix="{run}/topics/", operations=WRITES, status=503, code="SlowDown", retry_after="1"),
        Fault(probability=0.2, prefix="{run}/topics/", status=503, code="SlowDown"),
    ],
    "409": [Fault(probability=0.1, operations=("CONDITIONAL_PUT",), status=409, code="ConditionalRequestConflict")],
    "hangs": [Fault(probability=0.004, delay_s=20)],
    "long tail": [Fault(probability=0.1, tail_s=0.5)],
    "stale lists": [Fault(stale_s=3)],
    "credentials that have expired": [Fault(probability=0.2, status=403, code="ExpiredToken")],
    "a clock that is off, as the store sees it": [Fault(probability=0.2, status=403, code="RequestTimeTooSkewed")],
}
#: Fifteen of a hundred calls.
ALL_TOGETHER: Final = [
    Fault(probability=0.03, acts=True, reset=True),
    Fault(probability=0.03, acts=True, status=500, code="InternalError"),
    Fault(probability=0.03, reset=True),
    Fault(probability=0.03, status=503, code="SlowDown"),
    Fault(probability=0.03, operations=("CONDITIONAL_PUT",), status=409, code="ConditionalRequestConflict"),
    Fault(probability=0.03, tail_s=0.3),
    Fault(stale_s=1),
]
GONE: Final = [Fault(reset=True)]
#: What is felt within two seconds, too.
SHORTLY: Final[Mapping[str, Sequence[Fault]]] = {
    "all": ALL_TOGETHER,
    "throttled below a prefix": FAULTS["throttled below a prefix"],
    "hangs": [Fault(probability=0.1, delay_s=5)],
    "credentials that have expired, and are renewed": [Fault(status=403, code="ExpiredToken")],
    "a region that is gone": GONE,
}


def _play(
    valid: Valid, plan: Plan, faults: Mapping[str, Sequence[Fault]], for_s: tuple[float, float], *, kills: bool = False
) -> None:
    """Play a plan whose store has these faults, one after the other, and whose services may be killed meanwhile."""
    store, troubles = plan.server, list[TroubleStore]()
    assert isinstance(store, StoreProxy)
    run = f"run-{plan.seed}"
    here = {n: [replace(f, prefix=f.prefix.format(run=run)) for f in several] for n, several in faults.items()}

    def hurt(system: System) -> Sequence[Struck]:
        troubles.append(TroubleStore(store, here, system.services, for_s=for_s))
        return [KillInTrouble(troubles[0], system.services, down_s=(0, 4))] if kills else troubles

    valid(plan, hurt)
    hurt_by = [name for name, calls in troubles[0].hurt.items() if calls > 0]
    assert len(hurt_by) >= min(plan.strikes, len(faults)), f"of {', '.join(faults)} only {hurt_by} hurt a call"
    assert troubles[0].rss_mib < _MEMORY_MIB


@pytest.mark.long
@pytest.mark.timeout(240)
def test_f20_faults_of_a_store_lose_and_repeat_nothing(valid: Valid, proxied_store: StoreProxy) -> None:
    plan = replace(ON_A_STORE, seed=2001, server=proxied_store, strikes=len(SHORTLY), rest_s=(0.3, 0.6), seconds=0)
    soon = GroupPlan(pops=replace(BILLING, invisible_ms=(600, 1_500)))
    plan = replace(plan, groups=(soon,), senders=4, sdk_senders=0, jobs=("revive",), upkeep=(), delayed_percent=0)
    _play(valid, replace(plan, reach=Reach(sends=30, faults=len(SHORTLY))), SHORTLY, (1, 2))


@pytest.mark.promise("LOAD-8")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_f20_each_fault_of_a_store(valid: Valid, proxied_store: StoreProxy, fault: str) -> None:
    plan = replace(ON_A_STORE, seed=2010 + list(FAULTS).index(fault), server=proxied_store, strikes=1)
    _play(valid, replace(plan, reach=Reach(sends=300, faults=1)), {fault: FAULTS[fault]}, (15, 15))


@pytest.mark.promise("LOAD-8")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_f20_all_faults_of_a_store_together_and_in_turn(valid: Valid, proxied_store: StoreProxy) -> None:
    plan = replace(ON_A_STORE, seed=2040, server=proxied_store, strikes=8, reach=Reach(sends=1_000, faults=8))
    _play(valid, plan, {**FAULTS, "all": ALL_TOGETHER}, (4, 8))


@pytest.mark.promise("LOAD-8")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_f20_a_region_that_is_gone_for_a_minute(valid: Valid, proxied_store: StoreProxy) -> None:
    plan = replace(ON_A_STORE, seed=2050, server=proxied_store, strikes=1, seconds=10, patience_s=150)
    _play(valid, replace(plan, reach=Reach(sends=20, faults=1)), {"gone": GONE}, (60, 60))


@pytest.mark.promise("LOAD-8")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("minutes", [7, -7])
def test_f20_a_clock_that_is_off_by_minutes(
    valid: Valid, proxied_store: StoreProxy, tmp_path: Path, minutes: int
) -> None:
    """The clock of the service and the jobs, beside a store whose clock is right."""
    path, seed = tmp_path / "clock", 2055 + (minutes < 0)
    set_clock(path)
    # What is in flight when minutes are taken back stays so for minutes: nobody leaves anything unanswered.
    diligent = replace(BILLING, forget=0, nack=0, renew=0, late=0, give_up=0, with_pop=0)
    plan = replace(
        ON_A_STORE, seed=seed, server=proxied_store, strikes=4, upkeep=(), delayed_percent=0, program=program(path),
        clocked_jobs=True, groups=(GroupPlan(pops=diligent),), reach=Reach(sends=100, faults=4),
    )  # fmt: skip
    valid(plan, lambda _: [JumpClock(path, offset_s=60.0 * minutes, for_s=(2, 4))])


@pytest.mark.promise("LOAD-8")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["long tail", "all"])
def test_f20_one_of_two_services_on_a_store_is_killed_again_and_again(
    valid: Valid, proxied_store: StoreProxy, fault: str
) -> None:
    seed = 2060 + (fault == "all")
    plan = replace(ON_A_STORE, seed=seed, server=proxied_store, environment=_LEASES, rest_s=(1, 4))
    plan = replace(plan, hosts=(("broker-a",), ("broker-b",)), strikes=10, reach=Reach(sends=300, faults=10))
    _play(valid, plan, {fault: {**FAULTS, "all": ALL_TOGETHER}[fault]}, (2, 5), kills=True)
