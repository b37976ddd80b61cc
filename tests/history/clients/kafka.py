"""Clients of librdkafka in a run: idempotent producers, and a reader; what they were told is recorded.

A record has no id that a client could give, so the message's id stands in its body, and readers take it from there.
Each record is a `send` of its own: several are under way, as librdkafka sends them.
"""

from __future__ import annotations

import base64
import contextlib
import random
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.history.checker.record import OpenOp, Recorder
from tests.history.clients.bodies import body_of, draw_size
from tests.history.clients.door import Door, NeverSent, NoAnswer
from tests.history.clients.readers import pages, partitions_of, topic_of
from tests.history.runs.final import wait_until
from tests.witness import testify

__all__ = ["KafkaReader", "KafkaSender", "PartitionNames", "end_of"]

_TIMEOUT_S: Final = 90
#: So many records of one producer are under way at most.
_UNDER_WAY: Final = 200
_QUIET: Final = {"log_level": 0, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1_000}


def marked(id_: str, size: int) -> bytes:
    """Return the body of a message, which begins with its id."""
    return id_.encode() + b"|" + body_of(id_, size)


def _read(offset: int, body: bytes) -> tuple[int, str, int]:
    """Return what was read at an offset, as histories have it."""
    return offset, body.partition(b"|")[0].decode("ascii", "replace"), zlib.crc32(body)


class PartitionNames:
    """The names of a topic's partitions in their order, of which clients may know sooner. Safe for threads."""

    def __init__(self, urls: Sequence[str], topic: str) -> None:
        self._urls = urls
        self._topic = topic
        self.known = self._found()

    def __getitem__(self, index: int) -> str:
        """Return the name of the partition that Kafka's clients know by this number."""
        if index >= len(self.known):
            assert wait_until(lambda: index < len(self._look()), within_s=_TIMEOUT_S), f"there is no partition {index}"
        return self.known[index]

    def _look(self) -> tuple[str, ...]:
        with contextlib.suppress(NoAnswer, NeverSent):
            self.known = max(self.known, self._found(), key=len)
        return self.known

    def _found(self) -> tuple[str, ...]:
        with closing(Door(self._urls)) as door:
            return tuple(one["partition"] for one in partitions_of(door, self._topic))


class KafkaSender(threading.Thread):
    """One idempotent producer, until it is told to stop; then it waits for all answers."""

    def __init__(
        self, servers: str, recorder: Recorder, topic: str, partitions: PartitionNames, seed: int, stop: threading.Event
    ) -> None:
        super().__init__(name=f"kafka-sender-{seed}", daemon=True)
        settings = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "retry.backoff.ms": 50,
            "message.timeout.ms": _TIMEOUT_S * 1_000,
            "socket.timeout.ms": 3_000,
            **_QUIET,
        }
        self._producer = Producer(settings)
        self._recorder = recorder
        self._topic = topic
        self._partitions = partitions
        self._drawn = random.Random(seed)
        self._stopping = stop
        self._process = recorder.process()
        self._sent = 0
        self.answered = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                for _ in range(self._drawn.choice((1, 1, 5, 30))):
                    self._send()
                self._producer.poll(self._drawn.uniform(0, 0.02))
                while len(self._producer) > _UNDER_WAY and not self._stopping.is_set():
                    self._producer.poll(0.05)
            self._producer.flush(_TIMEOUT_S)
        except BaseException as error:
            self.failure = error

    def _send(self) -> None:
        drawn = self._drawn
        number = self._sent
        id_ = f"{self._process}-{number:06d}"
        self._sent += 1
        key = f"{self._process}.{drawn.randrange(8)}" if drawn.random() < 0.7 else None
        body = marked(id_, draw_size(drawn))
        op = self._recorder.begin(
            self._process,
            "send",
            topic=self._topic,
            ids=[id_],
            keys=[key],
            crcs=[zlib.crc32(body)],
            producer=str(self._process),
            number=number,
        )
        self._producer.produce(self._topic, body, key=key, on_delivery=partial(self._told, op))

    def _told(self, op: OpenOp, error: object, message: Any) -> None:
        if error is not None:
            op.info(error=str(error))
            return
        op.ok(placed=[(self._partitions[message.partition()], message.offset())])
        self.answered += 1


class KafkaReader(threading.Thread):
    """A consumer without a group that follows all partitions; each batch of records is a `poll` of its partition."""

    def __init__(
        self, servers: str, recorder: Recorder, topic: str, partitions: PartitionNames, stop: threading.Event
    ) -> None:
        super().__init__(name="kafka-reader", daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, **_QUIET}
        )
        self._recorder = recorder
        self._topic = topic
        self._partitions = partitions
        self._assigned: tuple[str, ...] = ()
        self._stopping = stop
        self._process = recorder.process()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._assign()
                self._poll()
        except BaseException as error:
            self.failure = error
        finally:
            self._consumer.close()

    def _assign(self) -> None:
        """Read the partitions that are new, too, from their beginning."""
        begun, self._assigned = len(self._assigned), self._partitions.known
        new = self._assigned[begun:]
        if new:
            numbers = range(begun, len(self._assigned))
            self._consumer.incremental_assign([TopicPartition(self._topic, number, 0) for number in numbers])
        for name in new:
            self._recorder.moment(self._process, "assign", partition=name, offset=0)

    def _poll(self) -> None:
        found: dict[str, list[tuple[int, str, int]]] = {}
        ops = {name: self._recorder.begin(self._process, "poll", partition=name) for name in self._assigned}
        try:
            for one in self._consumer.consume(200, 0.1):
                partition, offset, body = one.partition(), one.offset(), one.value()
                if one.error() is None and partition is not None and offset is not None and body is not None:
                    found.setdefault(self._assigned[partition], []).append(_read(offset, body))
        except KafkaException as error:
            for op in ops.values():
                op.fail(error=str(error))
            return
        for name, op in ops.items():
            op.ok(reads=found.get(name, []))


def end_of(door: Door, recorder: Recorder, topic: str) -> None:
    """Everything at the end: as the service reads it, and as the files have it; ids are those in the bodies."""
    process = recorder.process()
    folders: Mapping[str, Path] = {
        one["partition"]: Path(one["location"]) for one in topic_of(door, topic)["partitions"]
    }
    for one in partitions_of(door, topic):
        name = one["partition"]
        with recorder.begin(process, "scan", witness="api", partition=name) as op:
            reads = []
            for answer in pages(door, topic, name, one["min_offset"] or 0):
                reads += [_read(message["offset"], _body(message)) for message in answer.body["messages"]]
            op.ok(reads=reads, jumps=[])
        with recorder.begin(process, "scan", witness="files", partition=name) as op:
            rows = testify(folders[name], ("offset", "body")).rows
            op.ok(reads=[_read(offset, bytes(row["body"])) for offset, row in sorted(rows.items())], jumps=[])


def _body(message: Mapping[str, Any]) -> bytes:
    encoded = message.get("body_base64")
    return base64.b64decode(encoded) if encoded is not None else str(message.get("body", "")).encode()
