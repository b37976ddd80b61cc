"""Compares the accounts of producer, workers, service and Spark line by line; without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from deltamq.jobs.flights.account import Account, PartitionCount
from deltamq.jobs.flights.events import KINDS
from deltamq.jobs.flights.group_account import GroupAccount
from deltamq.jobs.flights.streaming import StreamAccount

#: The number of aircraft out of order that are named.
NAMED_MAX: Final = 10

_PLURALS: Final = {"arrival": "arrivals", "departure": "departures", "cancellation": "cancellations"}


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One compared number, as text: of the topic, of a `group`, or of the streams; each has sides of its own."""

    what: str
    agree: bool
    group: str = ""
    producer: str = ""
    workers: str = ""
    service: str = ""
    spark: str = ""
    flights: str = ""
    hours: str = ""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    lines: tuple[Line, ...]
    #: Some of the aircraft whose events are not in the produced order.
    out_of_order: tuple[str, ...]
    #: The lines of the groups.
    groups: tuple[Line, ...] = ()
    #: The lines of the streams.
    streams: tuple[Line, ...] = ()

    @property
    def agreed(self) -> bool:
        """Whether every line agrees."""
        return all(line.agree for line in (*self.lines, *self.groups, *self.streams))

    @property
    def exit_status(self) -> int:
        """The exit status of the process."""
        return 0 if self.agreed else 1


def compare(producer: Account, service: Account, spark: Account) -> Agreement:
    """Return the report's lines; a line agrees only if all three sides have the same, right number."""
    sides = (producer, service, spark)
    wrong = {key for side in (service, spark) for key in _differing(producer, side)}
    return Agreement(
        lines=(*_counts(sides), *_partitions(sides), *_contents(sides)),
        out_of_order=tuple(sorted(wrong)[:NAMED_MAX]),
    )


def compare_groups(
    producer: Sequence[GroupAccount],
    workers: Sequence[GroupAccount],
    service: Sequence[GroupAccount],
    spark: Sequence[GroupAccount],
) -> tuple[Line, ...]:
    """Return the lines of the report's second table; the accounts of each side are in the order of the groups.

    The producer's side is the expected one, so a line agrees if all sides are equal.
    """
    lines = []
    for sides in zip(producer, workers, service, spark, strict=True):
        name = sides[0].group
        assert {side.group for side in sides} == {name}, "each side in the order of the groups"
        for what, shown, number in _GROUP_LINES:
            numbers = dict(zip(("producer", "workers", "service", "spark"), map(number, sides), strict=True))
            lines.append(_line(what, numbers, shown=shown, group=name))
    return tuple(lines)


_GROUP_LINES: Final[tuple[tuple[str, str, Callable[[GroupAccount], int]], ...]] = (
    ("consumed", "{:,}", lambda side: side.consumed),
    ("acknowledged", "{:,}", lambda side: side.acknowledged),
    ("delivered again", "{:,}", lambda side: side.retried),
    ("dead letters", "{:,}", lambda side: side.dead),
    ("distinct origins", "{:,}", lambda side: side.dead_distinct),
    ("checksum of dead", "{:x}", lambda side: side.dead_crc),
    ("left over", "{:,}", lambda side: side.left),
)


def compare_streams(producer: StreamAccount, flights: StreamAccount, hours: StreamAccount) -> tuple[Line, ...]:
    """Return the lines of the third table, for sent events, the typed table, and the table by carrier and hour."""
    return tuple(
        _line(what, {"producer": number(producer), "flights": number(flights), "hours": number(hours)}, shown=shown)
        for what, shown, number in _STREAM_LINES
    )


_STREAM_LINES: Final[tuple[tuple[str, str, Callable[[StreamAccount], int]], ...]] = (
    ("events", "{:,}", lambda side: side.events),
    ("arrivals", "{:,}", lambda side: side.arrivals),
    ("departures", "{:,}", lambda side: side.departures),
    ("cancellations", "{:,}", lambda side: side.cancellations),
    ("minutes of delay", "{:,}", lambda side: side.delay_min),
    ("carriers", "{:,}", lambda side: side.carriers),
    ("hours of carriers", "{:,}", lambda side: side.carrier_hours),
    ("checksum of hours", "{:x}", lambda side: side.hours_crc),
)


Sides = tuple[Account, Account, Account]


def _counts(sides: Sides) -> Iterator[Line]:
    yield _topic_line("messages", [side.messages for side in sides])
    for kind in dict.fromkeys((*KINDS, *(kind for side in sides for kind in side.kinds))):
        yield _topic_line(_PLURALS.get(kind, f"tag {kind}"), [side.kinds.get(kind, 0) for side in sides])


def _partitions(sides: Sides) -> Iterator[Line]:
    names = sorted({name for side in sides for name in side.partitions})
    for name in names:
        yield _topic_line(name, [_partition(side, name).messages for side in sides])
    dense = [sum(_partition(side, name).dense for name in names) for side in sides]
    yield _topic_line("gapless partitions", dense, right=len(names))


def _contents(sides: Sides) -> Iterator[Line]:
    producer = sides[0]
    aircraft = len(producer.sequences)
    yield _topic_line("aircraft", [len(side.sequences) for side in sides])
    yield _topic_line(
        "aircraft kept together", [len(side.sequences) - side.scattered for side in sides], right=aircraft
    )
    in_order = [len(side.sequences.keys() - _differing(producer, side)) for side in sides]
    yield _topic_line("aircraft in order", in_order, right=aircraft)
    yield _topic_line("checksum of bodies", [side.bodies_crc for side in sides], shown="{:x}")


def _differing(producer: Account, side: Account) -> set[str]:
    keys = producer.sequences.keys() | side.sequences.keys()
    return {key for key in keys if producer.sequences.get(key) != side.sequences.get(key)}


def _partition(side: Account, name: str) -> PartitionCount:
    """Spark's account lacks empty partitions."""
    return side.partitions.get(name) or PartitionCount()


def _topic_line(what: str, numbers: Sequence[int], *, right: int | None = None, shown: str = "{:,}") -> Line:
    return _line(what, dict(zip(("producer", "service", "spark"), numbers, strict=True)), right=right, shown=shown)


def _line(what: str, numbers: Mapping[str, int], *, shown: str, right: int | None = None, group: str = "") -> Line:
    """`right` is the number that all sides must have; None: they must only be equal."""
    agree = len({*numbers.values(), *([] if right is None else [right])}) == 1
    texts = {side: shown.format(number) for side, number in numbers.items()}
    return Line(what=what, agree=agree, group=group, **texts)
