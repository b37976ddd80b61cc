"""Kafka's own tools against the Kafka door and against Kafka, in turns: producers, a consumer, waiting clients.

Ours acknowledges after an fsync. Kafka is measured as it comes, from the page cache, and with a topic that syncs each
batch (`flush.messages=1`). Both servers are up all the time.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tests.bench.figure import Figure
from tests.bench.kafka.door import PARTITIONS, kafka_service
from tests.bench.load import LoadError
from tests.bench.peers import Kafka
from tests.bench.registry import bench
from tests.bench.session import Session

__all__: list[str] = []

_SYNCED: Final = ("--config", "flush.messages=1")
_LARGE: Final = ("linger.ms=5", "batch.size=262144")
_SAID: Final = {"ours": "ours", "synced": "Kafka, fsynced", "theirs": "Kafka, page cache"}
_TIMEOUT_S: Final = 600
#: The topic of 16 partitions.
_WIDE: Final = "wide"
_PRODUCED: Final = re.compile(r"records sent, ([\d.]+) records/sec")
_CONSUMED: Final = re.compile(r"^\d{4}-\d\d-\d\d.*, ([\d.]+)$", re.MULTILINE)
_RESULT: Final = re.compile(r"^RESULT (\{.*\})$", re.MULTILINE)


class _Tools:
    """The tools against the topics of one kind on one server; `kind` begins the topics' names."""

    def __init__(self, kafka: Kafka, address: str, kind: str, settings: tuple[str, ...] = ()) -> None:
        self._kafka = kafka
        self._address = address
        self._kind = kind
        self._settings = settings

    def _run(self, *command: str) -> str:
        environment = {**self._kafka.environment, "KAFKA_PORT": self._address.rpartition(":")[2]}
        done = subprocess.run(
            [*self._kafka.java, *command], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        if done.returncode:
            raise LoadError(f"{command[0]} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return done.stdout

    def make_topics(self) -> None:
        """Create the topics for records of 100 B and 1 KiB, and one of 16 partitions."""
        for name, partitions in (("100", PARTITIONS), ("1024", PARTITIONS), (_WIDE, 16)):
            asked = ("--create", "--topic", f"{self._kind}{name}", "--partitions", str(partitions), *self._settings)
            self._run("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self._address, *asked)

    def produce(self, records: int, size: int, settings: tuple[str, ...]) -> float:
        """Return the rate of records, behind a warm-up of a fifth."""
        topic = f"{self._kind}{size}"
        asked = ["--topic", topic, "--num-records", str(records), "--warmup-records", str(records // 5)]
        asked += ["--record-size", str(size), "--throughput", "-1", "--bootstrap-server", self._address]
        written = self._run(
            "org.apache.kafka.tools.ProducerPerformance", *asked, "--command-property", "acks=all", *settings
        )
        return float(_found(_PRODUCED, written.replace("steady state records", "records")))

    def consume(self, records: int) -> float:
        """Return the rate of records of 100 B without the time of joining the group."""
        topic = f"{self._kind}100"
        asked = ("--topic", topic, "--num-records", str(records), "--bootstrap-server", self._address)
        group = ("--group", uuid.uuid4().hex, "--hide-header", "--timeout", "60000")
        return float(_found(_CONSUMED, self._run("org.apache.kafka.tools.ConsumerPerformance", *asked, *group)))

    def waiting(self, clients: int, seconds: tuple[float, float], topic: str = "100") -> dict[str, float]:
        """Return rate and latency of clients that wait for each record."""
        warmup, window = (f"{one:g}" for one in seconds)
        written = self._run("KafkaBench", "sync", f"{self._kind}{topic}", "100", str(clients), warmup, window)
        found: dict[str, float] = json.loads(_found(_RESULT, written))
        return found


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    if not found:
        raise LoadError(f"no result in {text[-500:]!r}")
    return str(found[-1])


@bench("kafka.java")
def beside(session: Session) -> Iterator[Figure]:
    """Rates of ours and of Kafka's, and their ratios."""
    if session.peers is None:
        session.say("no kafka.java figures: they need the peers (PEERS=DIR)")
        return
    effort = session.effort
    records = max(50_000, effort.history_messages // 4)
    with kafka_service(session, "kafka.java") as (_, address), session.peers.kafka() as kafka:
        servers = {
            "ours": _Tools(kafka, address, "bench"),
            "synced": _Tools(kafka, kafka.server, "synced", _SYNCED),
            "theirs": _Tools(kafka, kafka.server, "bench"),
        }
        for tools in servers.values():
            tools.make_topics()

        def compared(name: str, text: str, measure: Callable[[_Tools], float], unit: str = "msg/s") -> Iterator[Figure]:
            found: dict[str, list[float]] = {who: [] for who in servers}
            for _ in range(effort.peer_repeats):
                for who, tools in servers.items():
                    found[who].append(measure(tools))
            for who, samples in found.items():
                yield session.figure(f"kafka.java.{name}.{who}", f"{text}: {_SAID[who]}", unit, samples)
            for who in ("synced", "theirs"):
                ratio = float(np.median(found["ours"]) / np.median(found[who]))
                yield session.figure(f"kafka.java.{name}.to_{who}", f"{text}: ours to {_SAID[who]}", "x", [ratio])

        text = f"kafka-producer-perf-test, acks=all, {PARTITIONS} partitions"
        yield from compared("produce", f"{text}, 100 B, defaults", lambda tools: tools.produce(records, 100, ()))
        yield from compared(
            "large", f"{text}, 100 B, {' '.join(_LARGE)}", lambda tools: tools.produce(records, 100, _LARGE)
        )
        yield from compared("1KiB", f"{text}, 1 KiB, defaults", lambda tools: tools.produce(records // 5, 1_024, ()))
        yield from compared("consume", "kafka-consumer-perf-test, 100 B", lambda tools: tools.consume(records))
        seconds = (effort.peer_warmup_s, effort.peer_window_s)
        yield from compared(
            "sync1", "one client that waits", lambda tools: tools.waiting(1, seconds)["send_p50_us"], "us"
        )
        yield from compared("sync16", "16 clients that wait", lambda tools: tools.waiting(16, seconds)["msgs_s"])
        text = "16 clients that wait, 16 partitions"
        yield from compared("sync16wide", text, lambda tools: tools.waiting(16, seconds, _WIDE)["msgs_s"])
