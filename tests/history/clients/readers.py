"""Readers of partitions: they follow every partition, jump sometimes, and ask for the ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from tests.history.checker.record import Recorder
from tests.history.clients.bodies import crc_of_answer
from tests.history.clients.door import Answer, Door, NeverSent, NoAnswer

__all__ = ["Reader", "jumps_of", "pages", "partitions_of", "reads_of", "topic_of"]


def partitions_of(door: Door, topic: str) -> list[dict[str, Any]]:
    """The partitions of a topic as the service describes them to clients: of a static topic its logical queues."""
    body = topic_of(door, topic)
    found: list[dict[str, Any]] = body["logical_queues"] if body.get("static") else body["partitions"]
    return found


def topic_of(door: Door, topic: str) -> dict[str, Any]:
    """A topic as the service describes it."""
    answer = door.call("GET", f"/v1/topics/{quote(topic, safe='')}")
    if not answer.ok:
        raise NoAnswer(str(answer.status))
    found: dict[str, Any] = answer.body
    return found


def fetch(door: Door, topic: str, partition: str, offset: int, *, messages: int = 500, wait_ms: int = 0) -> Answer:
    """Messages of a partition."""
    path = f"/v1/topics/{quote(topic, safe='')}/partitions/{quote(partition, safe='')}/messages"
    return door.call("GET", f"{path}?offset={offset}&max_messages={messages}&max_bytes=8388608&wait_ms={wait_ms}")


def pages(door: Door, topic: str, partition: str, offset: int) -> Iterator[Answer]:
    """What a partition holds from an offset on. Only a fetch at its end knows what other processes appended."""
    while True:
        answer = fetch(door, topic, partition, offset)
        assert answer.ok, answer
        if answer.body["status"] != "found":
            assert answer.body["status"] == "no_new_message", answer.body
            return
        yield answer
        assert answer.body["next_offset"] > offset, answer.body["next_offset"]
        offset = answer.body["next_offset"]


def reads_of(answer: Answer) -> list[tuple[int, str, int]]:
    """What a fetch brought."""
    return [(one["offset"], one["message_id"], crc_of_answer(one)) for one in answer.body["messages"]]


def jumps_of(partition: dict[str, Any]) -> list[tuple[int, int]]:
    """The logical offsets that remappings left out in a logical queue, as the service describes its segments."""
    decided = [one for one in partition.get("segments", ()) if one["logic_offset"] >= 0]
    return [
        (before["logic_offset"] + before["end_offset"], after["logic_offset"])
        for before, after in pairwise(decided)
        if before["logic_offset"] + before["end_offset"] < after["logic_offset"]
    ]


class Reader(threading.Thread):
    """One reader of all partitions of a topic, until it is told to stop."""

    def __init__(self, door: Door, recorder: Recorder, topic: str, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"reader-{seed}", daemon=True)
        self._door = door
        self._recorder = recorder
        self._topic = topic
        self._drawn = random.Random(seed)
        self._stopping = stop
        self._process = recorder.process()
        self._positions: dict[str, int] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._round(partitions_of(self._door, self._topic))
                except (NoAnswer, NeverSent, KeyError, TypeError):
                    self._stopping.wait(0.05)
        except BaseException as error:
            self.failure = error
        finally:
            self._door.close()

    def _round(self, partitions: Sequence[dict[str, Any]]) -> None:
        for one in partitions:
            name = one["partition"]
            if name not in self._positions or self._drawn.random() < 0.01:
                self._positions[name] = self._drawn.randint(0, self._positions.get(name, 0))
                self._recorder.moment(self._process, "assign", partition=name, offset=self._positions[name])
            self._poll(name)
        self._ask_ends()
        self._stopping.wait(0.02)

    def _poll(self, partition: str) -> None:
        with self._recorder.begin(self._process, "poll", partition=partition) as op:
            at = self._positions[partition]
            answer = fetch(self._door, self._topic, partition, at, messages=self._drawn.choice((1, 20, 500)))
            if not answer.ok:
                op.fail(error=str(answer.status))
                return
            op.ok(reads=reads_of(answer))
            self._positions[partition] = answer.body["next_offset"]

    def _ask_ends(self) -> None:
        """The ends of all partitions, as one request tells them."""
        ops = {name: self._recorder.begin(self._process, "end", partition=name) for name in self._positions}
        found: dict[str, int] = {}
        try:
            found = {one["partition"]: one["max_offset"] for one in partitions_of(self._door, self._topic)}
        finally:
            for name, op in ops.items():
                offset = found.get(name)
                op.fail() if offset is None else op.ok(offset=offset)
