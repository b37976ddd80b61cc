"""Kafka's idempotent producers under faults of two services, judged by the checker (SPEC KAFKA-3, KAFKA-8)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.api.kafka.door import free_port
from tests.e2e.service_process import ServiceProcess
from tests.history.check import Reach, Verdict, check
from tests.history.conftest import keep
from tests.history.door import Door
from tests.history.kafka_clients import KafkaReader, KafkaSender, end_of
from tests.history.nemesis import Fault, KillService, Nemesis, PauseService
from tests.history.ops import TopicRules
from tests.history.readers import partitions_of
from tests.history.record import Recorder, read_history
from tests.history.report import in_words

_TOPIC = "orders"
_PARTITIONS = 4
#: A process that stands still loses its brokers soon, and wakes up as one that has lost them.
_SHORT_LEASES = {
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
}

Hurt = Callable[[Sequence[ServiceProcess]], Sequence[Fault]]


def _play(folder: Path, hurt: Hurt, *, strikes: int, rest_s: tuple[float, float], reach: Reach, seed: int) -> None:
    """Two services, three producers and a reader of Kafka's, the faults, and the witnesses."""
    with ExitStack() as stack:
        recorder = Recorder(folder / "history.jsonl")
        stack.callback(recorder.close)
        services, servers = [], []
        for broker in ("broker-a", "broker-b"):
            port = free_port()
            service = ServiceProcess(folder / "warehouse", "--broker", broker, "--kafka-port", str(port))
            stack.callback(service.close)
            services.append(service)
            servers.append(f"127.0.0.1:{port}")
        urls = [one.url for one in services]
        with closing(Door(urls)) as door:
            assert door.call("PUT", f"/v1/topics/{_TOPIC}", {"partitions": _PARTITIONS}).ok
            names = [one["partition"] for one in partitions_of(door, _TOPIC)]
        recorder.rules(TopicRules(topic=_TOPIC))
        stop = threading.Event()
        address = ",".join(servers)
        senders = [KafkaSender(address, recorder, _TOPIC, names, seed * 10 + at, stop) for at in range(3)]
        workers: list[Any] = [*senders, KafkaReader(address, recorder, _TOPIC, names, stop)]
        nemesis = Nemesis(
            recorder,
            hurt(services),
            count=strikes,
            rest_s=rest_s,
            seed=seed,
            stop=stop,
            enough=lambda: sum(one.answered for one in senders) >= reach.sends,
        )
        for worker in (*workers, nemesis):
            worker.start()
        nemesis.join()
        stop.wait(2)
        stop.set()
        for worker in workers:
            worker.join(150)
            assert not worker.is_alive(), f"{worker.name} does not end"
        for worker in (*workers, nemesis):
            if worker.failure is not None:
                raise worker.failure
        end_of(urls, recorder, _TOPIC)


@pytest.fixture
def played(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., None]:
    """Play a run, and fail the test unless the verdict is "valid"; a red run's history is kept."""
    for name, value in _SHORT_LEASES.items():
        monkeypatch.setenv(name, value)

    def play(hurt: Hurt, *, strikes: int, rest_s: tuple[float, float], reach: Reach, seed: int) -> None:
        folder = tmp_path / f"run-{seed}"
        folder.mkdir()
        try:
            _play(folder, hurt, strikes=strikes, rest_s=rest_s, reach=reach, seed=seed)
        except BaseException:
            keep(folder, request.node.name)
            raise
        history = read_history([folder / "history.jsonl"])
        checked = check(history, reach)
        acknowledged = sum(send.ok for send in history.sends)
        for name, value in (("acknowledged", acknowledged), ("faults", len(history.faults)), ("runs", 1)):
            record_property(name, value)
        # Every record was acknowledged in the end: idempotent producers repeat until they know.
        unknown = len(history.sends) - acknowledged
        if checked.verdict is not Verdict.VALID or unknown:
            kept = keep(folder, request.node.name)
            pytest.fail(f"{unknown} records are unknown; kept in {kept}\n{in_words(history, checked)}")
        shutil.rmtree(folder)

    return play


@pytest.mark.timeout(300)
def test_kafka_03_a_killed_and_a_stopped_process_lose_and_repeat_nothing_of_kafkas_producers(played) -> None:
    played(
        lambda services: [KillService(services), PauseService(services, pause_s=(3.5, 4.5))],
        strikes=2,
        rest_s=(0.3, 1),
        reach=Reach(sends=300, faults=2),
        seed=1,
    )


@pytest.mark.promise("KAFKA-1")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [2, 3])
def test_kafka_03_processes_that_are_killed_and_stopped_again_and_again(played, seed) -> None:
    played(
        lambda services: [KillService(services, down_s=(0, 4)), PauseService(services, pause_s=(1, 5))],
        strikes=16,
        rest_s=(0.3, 3),
        reach=Reach(sends=5_000, faults=16),
        seed=seed,
    )
