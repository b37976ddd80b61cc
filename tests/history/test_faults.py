"""Mixed loads under faults, each judged by the checker: short in `make test`, at their full size in `make faults`.

Producers (idempotent and plain, with delayed messages), consumers of two groups (one ordered by key), readers, the
revive, delay and retain jobs, and in the long ones merge; see `tests.history.runs.run`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from tests.history.checker.check import Reach
from tests.history.clients.poppers import PopSettings
from tests.history.conftest import Valid
from tests.history.runs.clock import program, set_clock
from tests.history.runs.nemesis import JumpClock, KillJobs, KillService, KillTasks, PauseService, Remap, StopService
from tests.history.runs.run import GroupPlan, Plan, System

FREE = PopSettings(group="billing", topic="orders", invisible_ms=(600, 2_000))
#: Renewals of single messages make no sense where they come in order.
KEYED = PopSettings(group="keyed", topic="orders", order="key", renew=0, invisible_ms=(600, 2_000))
GROUPS = (GroupPlan(pops=FREE), GroupPlan(pops=KEYED))
MIXED = Plan(groups=GROUPS)
#: With everything that runs beside a service for weeks; Spark takes its time to start.
WHOLE = replace(MIXED, upkeep=("merge", "retain"), drain_s=180)
#: Two processes, with leases so short that a test can wait for them.
TWO = replace(
    MIXED,
    hosts=(("broker-a",), ("broker-b",)),
    environment={
        "DELTAMQ_SERVICE_LEASE_MS": "3000",
        "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
        "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
    },
    drain_s=90,
)
#: The jobs' work is done in tasks of Spark, which Spark repeats when they die.
IN_TASKS = replace(
    WHOLE,
    environment={"DELTAMQ_JOBS_ENGINE": "spark", "DELTAMQ_JOBS_MASTER": "local[2,8]"},
    upkeep=("merge", "retain", "compact"),
    drain_s=240,
)
_SERVING_AGAIN_S = 5.0


@pytest.mark.timeout(240)
def test_f1_a_killed_service_under_a_mixed_load(valid: Valid) -> None:
    plan = replace(MIXED, seed=11, strikes=2, reach=Reach(sends=60, faults=2))
    valid(plan, lambda system: [KillService(system.services)])


@pytest.mark.long
@pytest.mark.timeout(240)
def test_f1_a_killed_service_under_a_load_of_typed_messages(valid: Valid) -> None:
    """Each stored row has the columns of its body, whoever stored it: also what was delayed, and comes by a job."""
    plan = replace(MIXED, typed=True, delayed_percent=10, seed=12, strikes=2, reach=Reach(sends=60, faults=2))
    valid(plan, lambda system: [KillService(system.services)])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_f1_one_of_two_processes_is_killed_under_a_load_of_typed_messages(valid: Valid) -> None:
    plan = replace(TWO, typed=True, delayed_percent=10, seed=121, strikes=12, rest_s=(0.3, 4))
    plan = replace(plan, reach=Reach(sends=500, faults=12))
    valid(plan, lambda s: [KillService(s.services, down_s=(0, 5)), StopService(s.services), KillJobs(s.jobs)])


@pytest.mark.promise("LOAD-1")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durable", [False, True])
def test_f1_fifty_kills_of_a_service_under_a_mixed_load(valid: Valid, durable: bool) -> None:
    reach = Reach(sends=1_000, faults=25, redeliveries=1, unknown_stored=1, unknown_absent=1)
    plan = replace(WHOLE, seed=110 + durable, durable=durable, strikes=25, rest_s=(0.05, 0.9), reach=reach)
    plan = replace(plan, plain_senders=6, send_pause_s=0.01)
    found = valid(plan, lambda system: [KillService(system.services)])
    assert median(found.recovery_s) < _SERVING_AGAIN_S, "the worst one is in the table: it tells of the machine"


@pytest.mark.promise("LOAD-2")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_f1_one_of_two_processes_is_killed_or_stopped_again_and_again(valid: Valid) -> None:
    plan = replace(TWO, seed=120, strikes=12, rest_s=(0.3, 4), reach=Reach(sends=500, faults=12))
    valid(plan, lambda s: [KillService(s.services, down_s=(0, 5)), StopService(s.services), KillJobs(s.jobs)])


@pytest.mark.long
@pytest.mark.timeout(240)
def test_f3_an_owner_that_was_stopped_for_longer_than_its_lease(valid: Valid) -> None:
    plan = replace(TWO, seed=31, strikes=1, reach=Reach(sends=100, faults=1))
    valid(plan, lambda system: [PauseService(system.services, pause_s=(4, 5))])


@pytest.mark.promise("LOAD-2")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("durable", [False, True])
def test_f3_owners_that_are_stopped_twenty_times(valid: Valid, durable: bool) -> None:
    plan = replace(TWO, seed=310 + durable, durable=durable, strikes=10, rest_s=(0.5, 3))
    plan = replace(plan, reach=Reach(sends=500, faults=10, redeliveries=1))
    valid(plan, lambda system: [PauseService(system.services, pause_s=(2, 7))])


#: What clocks do, by seconds of the wall clock and by their rate.
CLOCKS = {
    "an hour ahead": (3_600.0, 1.0),
    "an hour behind": (-3_600.0, 1.0),
    "ten years behind": (-315_360_000.0, 1.0),
    "standing still": (0.0, 0.0),
    "twice as fast": (0.0, 2.0),
    "half as fast": (0.0, 0.5),
}


def _clocked(valid: Valid, folder: Path, clock: str, plan: Plan) -> None:
    """The service and the jobs of one machine, whose clock is set. Leases are as long as its clock says."""
    offset_s, rate = CLOCKS[clock]
    path = folder / "clock"
    set_clock(path)
    # By a clock that jumps by years all is old enough to go.
    # What is in flight when an hour is taken back stays so for an hour: nobody leaves anything unanswered.
    diligent = replace(FREE, forget=0, nack=0, renew=0, late=0, give_up=0, with_pop=0)
    plan = replace(
        plan, delayed_percent=0, program=program(path), clocked_jobs=True,
        groups=(GroupPlan(pops=diligent),), reach=Reach(sends=50, faults=plan.strikes),
    )  # fmt: skip
    valid(plan, lambda _: [JumpClock(path, offset_s=offset_s, rate=rate, for_s=(0.5, 1.5))])


@pytest.mark.promise("LOAD-3")
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("clock", CLOCKS)
def test_f8_offsets_and_order_do_not_know_what_time_it_is(valid: Valid, tmp_path: Path, clock: str) -> None:
    plan = replace(MIXED, seed=810 + list(CLOCKS).index(clock), strikes=4, upkeep=())
    _clocked(valid, tmp_path, clock, plan)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("clock", ["an hour ahead", "an hour behind", "standing still"])
def test_f8_drivers_of_spark_do_not_know_what_time_it_is(valid: Valid, tmp_path: Path, clock: str) -> None:
    # The clocks of Spark's own processes, and of the tasks in them, stay as they are.
    plan = replace(IN_TASKS, seed=820 + list(CLOCKS).index(clock), strikes=4, rest_s=(2.0, 4.0), upkeep=("merge",))
    _clocked(valid, tmp_path, clock, plan)


def _remaps(system: System) -> Remap:
    return Remap(system.urls, "orders", ("broker-a", "broker-b"))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_f19_logical_queues_go_from_process_to_process_under_a_mixed_load(valid: Valid) -> None:
    plan = replace(TWO, static=True, seed=191, strikes=4, reach=Reach(sends=100, faults=4))
    valid(plan, lambda system: [_remaps(system)])


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [192, 193])
def test_f19_logical_queues_are_remapped_while_processes_die_and_stand_still(valid: Valid, seed: int) -> None:
    plan = replace(TWO, static=True, seed=seed, strikes=24, rest_s=(0.2, 2), reach=Reach(sends=500, faults=24))
    valid(
        plan,
        lambda system: [
            _remaps(system),
            _remaps(system),
            KillService(system.services),
            PauseService(system.services, pause_s=(2, 5)),
            KillJobs(system.jobs),
        ],
    )


@pytest.mark.promise("LOAD-1")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_f12_jobs_killed_under_a_mixed_load(valid: Valid) -> None:
    plan = replace(WHOLE, seed=121, strikes=20, rest_s=(0.2, 1.0), reach=Reach(sends=500, faults=20, redeliveries=10))
    valid(plan, lambda system: [KillJobs(system.jobs), KillJobs(system.upkeep)])


@pytest.mark.promise("LOAD-6")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", [0.05, 0.3])
def test_f15_hundreds_of_lost_answers_under_a_mixed_load(valid: Valid, loss: float) -> None:
    plan = replace(MIXED, seed=1510 + round(loss * 100), loss=loss, seconds=15, plain_senders=3)
    valid(replace(plan, drain_s=120, reach=Reach(sends=200, unknown_stored=5, redeliveries=5)))


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_f12_tasks_and_drivers_of_spark_killed_under_a_mixed_load(valid: Valid) -> None:
    reach = Reach(sends=500, faults=20, redeliveries=10)
    # A driver needs 20 s to be back. A load at its full pace would send more meanwhile than the groups drain in time.
    plan = replace(IN_TASKS, seed=122, strikes=20, rest_s=(0.5, 3.0), send_pause_s=0.5, reach=reach)
    valid(
        plan,
        lambda system: [
            KillTasks(system.jobs),
            KillTasks(system.upkeep),
            KillJobs(system.jobs),
            KillJobs(system.upkeep),
            KillService(system.services),
        ],
    )
