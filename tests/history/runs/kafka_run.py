"""One run of Kafka's clients: two services on one warehouse, producers, a reader, a nemesis, the end, the verdict."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

from tests.e2e.service_process import DELTAMQ, ServiceProcess
from tests.free_ports import free_port
from tests.history.checker.check import Checked, Reach, check
from tests.history.checker.ops import History, Outcome, TopicRules
from tests.history.checker.record import Recorder, read_history
from tests.history.checker.report import in_words
from tests.history.clients.door import Door
from tests.history.clients.kafka import KafkaReader, KafkaSender, PartitionNames, end_of
from tests.history.clients.kafka_java import Sayings, VerifiableSender
from tests.history.runs.final import wait_until
from tests.history.runs.nemesis import Fault, Nemesis

__all__ = ["TOPIC", "Hurt", "KafkaPlan", "KafkaRun", "run_kafka"]

TOPIC: Final = "orders"
#: A process that stands still loses its brokers soon, and wakes up as one that has lost them.
_SHORT_LEASES: Final = {
    "DELTAMQ_SERVICE_LEASE_MS": "3000",
    "DELTAMQ_SERVICE_LEASE_RENEW_MS": "700",
    "DELTAMQ_SERVICE_LEASE_MARGIN_MS": "500",
}
#: Programs in Java start slowly, on a machine that has other things to do, too.
_STARTED_S: Final = 90
_ENDED_S: Final = 150

Hurt = Callable[[Sequence[ServiceProcess]], Sequence[Fault]]


class KafkaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run does."""

    seed: int
    partitions: int = 4
    #: Producers of librdkafka.
    senders: int = 3
    #: The generations of Kafka's verifiable producers, one of each, and how many messages each sends in a second.
    verifiable: tuple[str, ...] = ()
    per_second: int = 150
    strikes: int
    rest_s: tuple[float, float]
    reach: Reach
    #: So often at least a process must have taken a role, a broker or the meta role.
    takeovers: int = 0
    #: What is started as a service.
    program: tuple[str, ...] = tuple(DELTAMQ)


class KafkaRun(msgspec.Struct, frozen=True):
    """What a run showed."""

    plan: KafkaPlan
    history: History
    checked: Checked
    #: How often a process took a broker or the meta role: after a fault, and back.
    takeovers: int

    @property
    def acknowledged(self) -> int:
        """Number of records that were acknowledged."""
        return sum(send.ok for send in self.history.sends)

    @property
    def unknown(self) -> int:
        """Number of records of which nobody knows what became."""
        return sum(send.outcome is Outcome.INFO for send in self.history.sends)

    @property
    def figures(self) -> dict[str, int]:
        """What goes into the table of faults."""
        return {
            "acknowledged": self.acknowledged,
            "faults": len(self.history.faults),
            "takeovers": self.takeovers,
            "anomalies": self.checked.findings.count,
        }

    def __str__(self) -> str:
        return f"{self.takeovers} takeovers\n{in_words(self.history, self.checked)}"


def run_kafka(folder: Path, plan: KafkaPlan, hurt: Hurt) -> KafkaRun:
    """Play a plan in a folder that is its own; the history stays there."""
    folder.mkdir(parents=True, exist_ok=True)
    with patch.dict(os.environ, _SHORT_LEASES):
        takeovers = _play(folder, plan, hurt)
    history = read_history([folder / "history.jsonl"])
    checked = check(history, plan.reach)
    if takeovers < plan.takeovers:
        checked.missed.append(f"takeovers: {takeovers}, at least {plan.takeovers} were meant")
    found = KafkaRun(plan, history, checked, takeovers)
    (folder / "report.txt").write_text(str(found), encoding="utf-8")
    return found


def _play(folder: Path, plan: KafkaPlan, hurt: Hurt) -> int:
    """Play all but the verdict; return the number of takeovers."""
    with ExitStack() as stack:
        recorder = Recorder(folder / "history.jsonl")
        stack.callback(recorder.close)
        services, servers = [], []
        for broker in ("broker-a", "broker-b"):
            port = free_port()
            flags = ("--broker", broker, "--kafka-port", str(port))
            service = ServiceProcess(folder / "warehouse", *flags, program=plan.program)
            stack.callback(service.close)
            services.append(service)
            servers.append(f"127.0.0.1:{port}")
        urls = [one.url for one in services]
        with closing(Door(urls)) as door:
            made = door.call("PUT", f"/v1/topics/{TOPIC}", {"partitions": plan.partitions})
            assert made.ok, made
            began = _newest_epoch(door)
        names = PartitionNames(urls, TOPIC)
        recorder.rules(TopicRules(topic=TOPIC))
        _load(stack, folder, plan, recorder, ",".join(servers), names, hurt(services))
        with closing(Door(urls, timeout_s=30)) as door:
            end_of(door, recorder, TOPIC)
            return _newest_epoch(door) - began


def _newest_epoch(door: Door) -> int:
    """The newest epoch of all roles: they are counted together, by one whenever a process takes a role."""
    answer = door.call("GET", "/v1/cluster")
    assert answer.ok, answer
    roles = [*answer.body["brokers"], *filter(None, [answer.body["meta"]])]
    newest: int = max(one["epoch"] for one in roles)
    return newest


def _load(
    stack: ExitStack,
    folder: Path,
    plan: KafkaPlan,
    recorder: Recorder,
    address: str,
    names: PartitionNames,
    faults: Sequence[Fault],
) -> None:
    """Everybody works until the nemesis is through."""
    stop = threading.Event()
    stack.callback(stop.set)
    senders: list[KafkaSender | VerifiableSender] = [
        KafkaSender(address, recorder, TOPIC, names, plan.seed * 10 + at, stop) for at in range(plan.senders)
    ]
    for at, generation in enumerate(plan.verifiable):
        sayings = Sayings(recorder, TOPIC, names)
        program = VerifiableSender(
            generation, folder, address, sayings, TOPIC, stop, keyed=at > 0, per_second=plan.per_second
        )
        stack.callback(program.close)
        senders.append(program)
    workers: list[Any] = [*senders, KafkaReader(address, recorder, TOPIC, names, stop)]
    nemesis = Nemesis(
        recorder,
        faults,
        count=plan.strikes,
        rest_s=plan.rest_s,
        seed=plan.seed,
        stop=stop,
        enough=lambda: sum(one.answered for one in senders) >= plan.reach.sends,
    )
    for worker in workers:
        worker.start()
    assert wait_until(lambda: all(one.answered or one.failure for one in senders), within_s=_STARTED_S), "no answers"
    nemesis.start()
    nemesis.join()
    before = [one.answered for one in senders]
    wait_until(
        lambda: all(one.failure or one.answered > had for one, had in zip(senders, before, strict=True)), within_s=30
    )
    stop.set()
    for worker in workers:
        worker.join(_ENDED_S)
        assert not worker.is_alive(), f"{worker.name} does not end"
    for worker in (*workers, nemesis):
        if worker.failure is not None:
            raise worker.failure
