"""A run against a service that is broken on purpose is red, for the right reason (README.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.history.broken import BUILDS, program
from tests.history.checker.check import Reach
from tests.history.clients.poppers import PopSettings
from tests.history.runs.kafka_run import KafkaPlan, run_kafka
from tests.history.runs.nemesis import Expand, Fault, KillService, LeaveClient, PauseService, Remap
from tests.history.runs.run import GroupPlan, Plan, System, run
from tests.history.test_orderly import QUICK

#: Nothing is waited for long: the anomaly is there, or it is not.
LOG = Plan(
    jobs=(),
    upkeep=(),
    senders=3,
    plain_senders=0,
    delayed_percent=0,
    seconds=1.0,
    rest_s=(0.4, 0.8),
    drain_s=5,
    patience_s=5,
)
FREE = PopSettings(group="billing", topic="orders", forget=0, nack=0, renew=0, late=0, give_up=0)
#: An exclusive group of a strict topic, with more to do than it gets done at once.
ORDERLY = replace(LOG, strict=True, orderlies=3, partitions=2, senders=4, environment=QUICK)
#: Logical queues over two processes.
STATIC = replace(
    LOG, static=True, partitions=2, hosts=(("broker-a",), ("broker-b",)), plain_senders=2, strikes=5, send_pause_s=0
)
#: Much is in nobody's hands for long.
FORGETFUL = replace(FREE, forget=0.4, invisible_ms=(5_000,))
KEYED = replace(FORGETFUL, group="keyed", order="key")


def _kills(system: System) -> Sequence[Fault]:
    return [KillService(system.services)]


def _handovers(system: System) -> Sequence[Fault]:
    assert system.orderlies is not None
    return [LeaveClient(system.orderlies)]


def _growth(system: System) -> Sequence[Fault]:
    return [Expand(system.urls, "orders", most=12)]


def _remaps(system: System) -> Sequence[Fault]:
    return [Remap(system.urls, "orders", ("broker-a", "broker-b"))]


def _moves(system: System) -> Sequence[Fault]:
    """All queues go from one broker to the other and back: their chains grow."""
    return [Remap(system.urls, "orders", ("broker-a", "broker-b"), in_turn=True)]


def _moves_until_noticed(system: System) -> Sequence[Fault]:
    """Until a remapping meets a mapping that lacks segments, which the service refuses by name (SPEC STATIC-12)."""
    return [Remap(system.urls, "orders", ("broker-a", "broker-b"), in_turn=True, refusal="mapping_incomplete")]


def _nothing(_: System) -> Sequence[Fault]:
    return ()


class Case(msgspec.Struct, frozen=True):
    """What shows that a build is broken, and what it is accused of then: one of these at least."""

    plan: Plan
    accused: set[str]
    hurt: Callable[[System], Sequence[Fault]] = _nothing


CASES = {
    "ack-before-commit": Case(replace(LOG, strikes=3), {"unseen", "lost-write"}, _kills),
    "blind-append": Case(
        replace(LOG, hosts=(("broker-a",), ("broker-b",))), {"lost-write", "unseen", "inconsistent-offset"}
    ),
    "drop-last-commit": Case(replace(LOG, strikes=2), {"unseen", "lost-write"}, _kills),
    "no-duplicate-window": Case(replace(LOG, loss=0.2), {"duplicate"}),
    "fetch-skips": Case(LOG, {"api-hides", "poll-skip"}),
    "deliver-without-lease": Case(replace(LOG, drain_s=1, groups=(GroupPlan(pops=FORGETFUL),)), {"double-lease"}),
    "ack-ignored": Case(
        replace(LOG, jobs=("revive",), drain_s=15, groups=(GroupPlan(pops=replace(FREE, invisible_ms=(300,))),)),
        {"redelivered-after-ack"},
    ),
    # More partitions than clients: one that joins takes some from a client that is at work.
    "locks-for-all": Case(replace(ORDERLY, partitions=6, strikes=6), {"two-consumers", "processed-twice"}, _handovers),
    "moves-ignored": Case(replace(ORDERLY, strikes=4, send_pause_s=0, orderly_ms=40), {"key-order"}, _growth),
    "order-ignored": Case(replace(LOG, drain_s=1, groups=(GroupPlan(pops=KEYED, consumers=3),)), {"order-break"}),
    "undecided-as-zero": Case(
        replace(STATIC, strikes=6), {"inconsistent-offset", "duplicate", "realtime-order", "lost-write"}, _moves
    ),
    "two-leaders": Case(STATIC, {"lost-write", "unseen", "inconsistent-offset", "duplicate"}, _remaps),
    "sealed-short": Case(STATIC, {"lost-write", "unseen", "inconsistent-offset", "duplicate"}, _remaps),
    "lost-copy": Case(replace(STATIC, strikes=8), {"lost-write", "unseen", "poll-skip"}, _moves_until_noticed),
    "leases-forgotten": Case(
        replace(LOG, strikes=3, drain_s=1, groups=(GroupPlan(pops=KEYED, consumers=3),)), {"double-lease"}, _kills
    ),
}


#: Those that `make test` plays; the others take longer, or are found by rules that these are found by, too.
SHORT = ("order-ignored",)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "build", [build if build in SHORT else pytest.param(build, marks=pytest.mark.long) for build in CASES]
)
def test_a_broken_service_is_found(tmp_path: Path, build: str) -> None:
    case = CASES[build]
    found = run(tmp_path / "run", replace(case.plan, program=program(build)), case.hurt)
    assert found.checked.findings.names & case.accused, f"{build} stays green\n{found}"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_service_that_forgets_the_sequences_of_kafkas_producers_is_found(tmp_path: Path) -> None:
    """A process that is stopped loses its broker; when it goes on, it stores what its producers have sent elsewhere."""
    plan = KafkaPlan(
        seed=1, strikes=3, rest_s=(0.4, 0.8), reach=Reach(sends=300), program=program("no-duplicate-window")
    )
    found = run_kafka(tmp_path / "run", plan, lambda services: [PauseService(services, pause_s=(3.5, 4.5))])
    assert "duplicate" in found.checked.findings.names, f"it stays green\n{found}"


def test_every_broken_build_is_run() -> None:
    assert set(CASES) == set(BUILDS)
