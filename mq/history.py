"""Samples of gauges and rates over a day, in bounded space, for plots and SQL (SPEC CONS-13).

    a sample every 15 s --> `Ring` of 15 s steps, an hour
                        '-> `Ring` of a minute's last values, a day --every 5 min--> `HistoryRecord`s --> table, SQL

Each process samples what it serves, so a value of the whole warehouse is a sum over processes: `merged` adds series
with the same labels. A series has a history for each process, its `origin`, which is new with each start: what an
earlier process of the same brokers sampled is another origin, and counts for the time when that one lived.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from deltamq.mq.statistics import MINUTE_MS
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

Metric = Literal["lag", "oldest_s", "in_flight", "clients", "dead_letters", "delayed", "sent", "sent_bytes", "consumed"]
METRICS: Final[tuple[str, ...]] = get_args(Metric)
#: Metrics of which the sum over processes says nothing: the highest counts.
_HIGHEST: Final = frozenset({"oldest_s"})

SAMPLE_MS: Final = 15_000
#: Numbers of steps that the rings keep: an hour, and a day.
_SAMPLES: Final = 240
_MINUTES: Final = 1_440
KEPT_MS: Final = _MINUTES * MINUTE_MS
#: Series that one process keeps, with those of other origins: 13 KiB each. A series beyond is not kept.
SERIES_MAX: Final = 2_000
#: The most points of one series in an answer.
POINTS_MAX: Final = 1_440

Point = tuple[int, float]


class Series(NamedTuple):
    """What is sampled; `group` and `topic` are empty where the metric has no such label."""

    metric: str
    group: str = ""
    topic: str = ""


class HistoryRecord(msgspec.Struct, frozen=True):
    """Minutes of one series as a process sampled them, from `start_ms` on; null where it had no value."""

    metric: str
    group: str
    topic: str
    process: str
    start_ms: int
    step_ms: int
    values: list[float | None]

    def to_json(self) -> bytes:
        return to_json(self)

    @classmethod
    def from_json(cls, body: bytes) -> HistoryRecord:
        """Return the record; raises `Corrupt`."""
        with corrupt_when_damaged("history", code="record_corrupt"):
            return msgspec.json.decode(body, type=cls)


class Ring:
    """The values of the last steps; NaN where there is none."""

    __slots__ = ("_newest", "_step_ms", "_values")

    def __init__(self, steps: int, step_ms: int) -> None:
        self._values = array("d", [nan]) * steps
        self._step_ms = step_ms
        self._newest = -1

    def put(self, time_ms: int, value: float) -> None:
        """Set the value of the step that this time is in; a time that is no longer kept is left out."""
        step, kept = time_ms // self._step_ms, len(self._values)
        if self._newest < 0:
            self._newest = step
        for empty in range(max(self._newest + 1, step - kept + 1), step):
            self._values[empty % kept] = nan
        if step > self._newest - kept:
            self._values[step % kept] = value
        self._newest = max(self._newest, step)

    def between(self, from_ms: int, to_ms: int) -> Iterator[Point]:
        """Yield the steps that begin in [from_ms, to_ms), each with its time."""
        first = max(self._newest - len(self._values) + 1, -(-from_ms // self._step_ms), 0)
        for step in range(first, min(self._newest + 1, -(-to_ms // self._step_ms))):
            value = self._values[step % len(self._values)]
            if not isnan(value):
                yield step * self._step_ms, value

    @property
    def newest_ms(self) -> int:
        """When the newest step begins; negative without one."""
        return self._newest * self._step_ms

    @property
    def oldest_ms(self) -> int:
        """When the oldest step that is kept begins."""
        return (self._newest - len(self._values) + 1) * self._step_ms


class Kept(NamedTuple):
    """The rings of one series of one origin."""

    samples: Ring
    minutes: Ring


class History:
    """The series of all origins that a process knows."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Series], Kept] = {}

    def put(self, origin: str, series: Series, time_ms: int, value: float) -> None:
        """Add a sample; a new series beyond `SERIES_MAX` is left out."""
        kept = self._kept.get((origin, series))
        if kept is None:
            if len(self._kept) >= SERIES_MAX:
                return
            kept = self._kept[origin, series] = Kept(Ring(_SAMPLES, SAMPLE_MS), Ring(_MINUTES, MINUTE_MS))
        kept.samples.put(time_ms, value)
        kept.minutes.put(time_ms, value)

    def load(self, records: Iterable[HistoryRecord], *, but: str) -> None:
        """Add what processes have stored, except the process `but`."""
        for record in records:
            if record.process != but:
                series = Series(record.metric, record.group, record.topic)
                for step, value in enumerate(record.values):
                    if value is not None:
                        self.put(record.process, series, record.start_ms + step * record.step_ms, value)

    def records(self, origin: str, from_ms: int, to_ms: int) -> list[HistoryRecord]:
        """Return the minutes in [from_ms, to_ms) of an origin's series, for storing."""
        start_ms = from_ms - from_ms % MINUTE_MS
        found = []
        for (of, series), kept in self._kept.items():
            points = dict(kept.minutes.between(start_ms, to_ms)) if of == origin else {}
            if points:
                values = [points.get(time_ms) for time_ms in range(start_ms, to_ms, MINUTE_MS)]
                found.append(HistoryRecord(*series, origin, start_ms, MINUTE_MS, values))
        return found

    def forget_old(self, now_ms: int) -> None:
        """Forget series without a value in the last day."""
        for key in [key for key, kept in self._kept.items() if kept.minutes.newest_ms < now_ms - KEPT_MS]:
            del self._kept[key]

    def add(self, other: History) -> None:
        """Add the samples of another history, all of which are newer, or of other series."""
        for (origin, series), kept in other._kept.items():
            known = self._kept.get((origin, series))
            if known is not None:
                for time_ms, value in kept.minutes.between(0, kept.minutes.newest_ms + 1):
                    self.put(origin, series, time_ms, value)
            elif len(self._kept) < SERIES_MAX:
                self._kept[origin, series] = kept

    def of(self, metric: str, group: str | None, topic: str | None) -> Iterator[tuple[str, Series, Kept]]:
        """Yield the series of a metric with their origins; `group` and `topic` None for all."""
        for (origin, series), kept in self._kept.items():
            if series.metric == metric and group in (None, series.group) and topic in (None, series.topic):
                yield origin, series, kept


def stepped(kept: Kept, from_ms: int, to_ms: int, step_ms: int) -> dict[int, float]:
    """Return the last value in each step of a series, by the time when the step begins."""
    ring = kept.samples if from_ms >= kept.samples.oldest_ms else kept.minutes
    return {time_ms - time_ms % step_ms: value for time_ms, value in ring.between(from_ms, to_ms)}


def merged(metric: str, parts: Iterable[tuple[Series, Mapping[int, float]]]) -> dict[Series, list[Point]]:
    """Return each series over all origins, by time; where an origin has no value, the others count."""
    found: dict[Series, dict[int, float]] = {}
    for series, points in parts:
        summed = found.setdefault(series, {})
        for time_ms, value in points.items():
            before = summed.get(time_ms)
            if before is None:
                summed[time_ms] = value
            else:
                summed[time_ms] = max(before, value) if metric in _HIGHEST else before + value
    return {series: sorted(points.items()) for series, points in sorted(found.items())}


def default_step_ms(from_ms: int, to_ms: int) -> int:
    """Return the step with which a range has 240 points at most: samples, or whole minutes."""
    steps: Sequence[int] = (SAMPLE_MS, *(MINUTE_MS * minutes for minutes in (1, 2, 3, 5, 6, 10)))
    return next((step for step in steps if (to_ms - from_ms) <= 240 * step), steps[-1])
