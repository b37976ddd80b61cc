"""The end of a run: five witnesses of what is there when everything is healed (README.md).

the service reads each partition; pyarrow reads the files; groups are drained; dead letters are listed
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.history.checker.record import Recorder
from tests.history.clients.bodies import check_value
from tests.history.clients.door import Door, NeverSent, NoAnswer
from tests.history.clients.poppers import Popper, PopSettings
from tests.history.clients.readers import jumps_of, pages, partitions_of, reads_of, topic_of
from tests.witness import testify

__all__ = ["Calm", "drain", "is_done", "list_dead", "scan_files", "scan_service", "wait_until"]

_PAUSE_S: Final = 0.02
_CALM_S: Final = 1.5
_SAID_MAX: Final = 300


def wait_until(condition: Callable[[], bool], *, within_s: float, left: Callable[[], int] | None = None) -> bool:
    """Whether it became true in that time; a service that does not answer has not made it true.

    Parameters
    ----------
    left
        How much there is still to do; each time that it is less than ever, the time begins again.
    """
    deadline, pause = time.monotonic() + within_s, threading.Event()
    least: float = math.inf
    while True:
        try:
            if condition():
                return True
            if left is not None and ((now := left()) < least):
                least, deadline = now, time.monotonic() + within_s
        except (NoAnswer, NeverSent, KeyError, TypeError):
            pass
        if time.monotonic() > deadline:
            return False
        pause.wait(_PAUSE_S)


def scan_service(door: Door, recorder: Recorder, topic: str) -> None:
    """Everything as the service reads it, from the first offset to the end."""
    process = recorder.process()
    for one in partitions_of(door, topic):
        with recorder.begin(process, "scan", witness="api", partition=one["partition"]) as op:
            reads: list[tuple[int, str, int]] = []
            try:
                for answer in pages(door, topic, one["partition"], one["min_offset"] or 0):
                    reads += reads_of(answer)
            except (AssertionError, NoAnswer, NeverSent) as error:
                op.ok(reads=reads, wrong=str(error)[:_SAID_MAX], jumps=jumps_of(one))
            else:
                op.ok(reads=reads, jumps=jumps_of(one))


def scan_files(door: Door, recorder: Recorder, topic: str, table_of: Callable[[str], Path] = Path) -> None:
    """Everything as the files have it; `table_of` gives the folder of a partition's location."""
    process, body = recorder.process(), topic_of(door, topic)
    location = {one["partition"]: table_of(one["location"]) for one in body["partitions"]}
    for one in partitions_of(door, topic):
        segments = one.get("segments", [{"partition": one["partition"], "logic_offset": 0}])
        with recorder.begin(process, "scan", witness="files", partition=one["partition"]) as op:
            reads: list[tuple[int, str, int]] = []
            try:
                for segment in segments:
                    typed = body.get("schema") is not None
                    reads += _reads_in(location[segment["partition"]], segment["logic_offset"], typed=typed)
            except (AssertionError, KeyError, OSError) as error:
                op.ok(wrong=f"{type(error).__name__}: {error}"[:_SAID_MAX])
            else:
                op.ok(reads=reads, jumps=jumps_of(one))


def _reads_in(location: Path, logic_offset: int, *, typed: bool) -> list[tuple[int, str, int]]:
    """What the files of one partition have; its first message has this offset."""
    columns = ("offset", "message_id", "body", "append_time")
    rows = testify(location, (*columns, "value") if typed else columns).rows
    for row in rows.values() if typed else ():
        check_value(row)
    _check_times(rows)
    return [_read(logic_offset + offset, row) for offset, row in sorted(rows.items())]


def _check_times(rows: dict[int, dict[str, Any]]) -> None:
    """Along offsets the append times never go back, whatever clocks do."""
    times = [row["append_time"] for _, row in sorted(rows.items())]
    for offset, (before, after) in enumerate(pairwise(times), start=min(rows, default=0)):
        assert before <= after, f"the append time goes back behind offset {offset}: {before}, {after}"


def _read(offset: int, row: dict[str, Any]) -> tuple[int, str, int]:
    return offset, str(row["message_id"]), zlib.crc32(bytes(row["body"]))


def drain(urls: Sequence[str], recorder: Recorder, settings: PopSettings, *, within_s: float) -> None:
    """Consume the group until the service says that nothing is left, and nothing in flight.

    Parameters
    ----------
    within_s
        How long it may go on without progress.
    """
    stop = threading.Event()
    diligent = PopSettings(
        group=settings.group, topic=settings.topic, order=settings.order, invisible_ms=(3_000,),
        forget=0, nack=0, renew=0, late=0, give_up=0, with_pop=0,
    )  # fmt: skip
    consumers = [Popper(Door(urls), recorder, diligent, seed, stop) for seed in range(2)]
    with recorder.begin(recorder.process(), "drained", group=settings.group) as op:
        for consumer in consumers:
            consumer.start()
        with closing(Door(urls)) as door:
            done = wait_until(
                Calm(partial(is_done, door, settings.group, settings.topic)),
                within_s=within_s,
                left=partial(_lag, door, settings.group),
            )
        stop.set()
        for consumer in consumers:
            consumer.join(30)
            if consumer.failure is not None:
                raise consumer.failure
        op.ok() if done else op.info()


class Calm:
    """Whether something has been true for long enough.

    A message whose time is over is in no lease and in no partition until the revive job has appended it again.
    """

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._since_s: float | None = None

    def __call__(self) -> bool:
        if not self._condition():
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = time.monotonic()
        return time.monotonic() - self._since_s >= _CALM_S


def is_done(door: Door, group: str, topic: str) -> bool:
    """Whether the service says that the group has nothing left of the topic, and nothing in flight.

    A partition that no process serves, as when leases were lost, is not among those that are listed.
    """
    progress = _progress(door, group)
    listed = sum(not one["retry"] for one in progress)
    is_whole = listed >= len(partitions_of(door, topic))
    return is_whole and all(one["lag"] == 0 and one["in_flight"] == 0 for one in progress)


def _lag(door: Door, group: str) -> int:
    return sum(one["lag"] for one in _progress(door, group))


def _progress(door: Door, group: str) -> list[dict[str, Any]]:
    topics = door.call("GET", f"/v1/groups/{quote(group, safe='')}").body["topics"]
    return [one for topic in topics for one in topic["partitions"]]


def list_dead(door: Door, recorder: Recorder, group: str) -> None:
    """The group's dead letters."""
    with recorder.begin(recorder.process(), "dead", group=group) as op:
        letters: list[tuple[str, int, str]] = []
        offset: int | None = 0
        while offset is not None:
            path = f"/v1/groups/{quote(group, safe='')}/dead-letters?limit=1000&offset={offset}"
            found = door.call("GET", path).body
            letters += [(one["message_id"], one["attempts"], one["reason"]) for one in found["messages"]]
            offset = found["next_offset"]
        op.ok(letters=letters)
