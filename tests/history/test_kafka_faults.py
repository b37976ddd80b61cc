"""Kafka's idempotent producers under faults of two services, judged by the checker (SPEC KAFKA-3, KAFKA-8)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.history.checker.check import Reach, Verdict
from tests.history.conftest import keep
from tests.history.runs.kafka_run import TOPIC, Hurt, KafkaPlan, run_kafka
from tests.history.runs.nemesis import Expand, Fault, KillService, PauseService


@pytest.fixture
def played(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[KafkaPlan, Hurt], None]:
    """Play a run, and fail the test unless the verdict is "valid"; a red run's history is kept."""

    def play(plan: KafkaPlan, hurt: Hurt) -> None:
        folder = tmp_path / f"run-{plan.seed}"
        try:
            found = run_kafka(folder, plan, hurt)
        except BaseException:
            keep(folder, request.node.name)
            raise
        record_property("seed", plan.seed)
        for name, value in (*found.figures.items(), ("runs", 1)):
            record_property(name, value)
        # Every record was acknowledged in the end: idempotent producers repeat until they know.
        if found.checked.verdict is not Verdict.VALID or found.unknown:
            kept = keep(folder, request.node.name)
            pytest.fail(f"{found.unknown} records are unknown; kept in {kept}\n{found}")
        shutil.rmtree(folder)

    return play


def _kills_and_stops(services: Sequence[ServiceProcess]) -> Sequence[Fault]:
    return [KillService(services, down_s=(0, 4)), PauseService(services, pause_s=(1, 5))]


def _expansions_too(services: Sequence[ServiceProcess]) -> Sequence[Fault]:
    return [*_kills_and_stops(services), Expand([one.url for one in services], TOPIC, most=24)]


@pytest.mark.timeout(300)
def test_kafka_03_a_killed_and_a_stopped_process_lose_and_repeat_nothing_of_kafkas_producers(played) -> None:
    plan = KafkaPlan(seed=1, strikes=2, rest_s=(0.3, 1), reach=Reach(sends=300, faults=2))
    played(plan, lambda services: [KillService(services), PauseService(services, pause_s=(3.5, 4.5))])


@pytest.mark.promise("PORT-1")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [2, 3])
def test_kafka_03_processes_that_are_killed_and_stopped_again_and_again(played, seed) -> None:
    plan = KafkaPlan(seed=seed, strikes=16, rest_s=(0.3, 3), reach=Reach(sends=5_000, faults=16), takeovers=8)
    played(plan, _kills_and_stops)


@pytest.mark.promise("PORT-1")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("seed", "verifiable"), [(6, ()), (7, ("2.8", "4.3"))])
def test_kafka_08_partitions_that_come_meanwhile_lose_and_repeat_nothing(played, seed, verifiable) -> None:
    """Keys move to new partitions while Kafka's producers, which choose partitions by themselves, learn of these."""
    reach = Reach(sends=5_000, faults=16)
    plan = KafkaPlan(
        seed=seed, partitions=2, verifiable=verifiable, strikes=16, rest_s=(0.3, 3), reach=reach, takeovers=4
    )
    played(plan, _expansions_too)


@pytest.mark.promise("PORT-1")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [4, 5])
def test_kafka_03_kafkas_verifiable_producers_lose_and_repeat_nothing_under_kills_and_stops(played, seed) -> None:
    """One of each generation of Kafka's clients in Java: sequences are intact across takeovers."""
    plan = KafkaPlan(
        seed=seed,
        senders=0,
        verifiable=("2.8", "3.9", "4.3"),
        strikes=16,
        rest_s=(0.3, 3),
        reach=Reach(sends=5_000, faults=16),
        takeovers=8,
    )
    played(plan, _kills_and_stops)
