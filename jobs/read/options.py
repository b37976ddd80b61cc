"""The options of a read; names and meanings are as in Spark's Kafka source (SPEC SPARK-1).

A partition is named `NAME@BROKER`; for jobs that come from Kafka, its number in the topic (0, 1, ...) works as well.
Options that concern only a Kafka client (`kafka.*` and a few more) are accepted and ignored, so that a job moves by
changing the format. A batch read also ignores the options about a stream's batches. Any other unknown option is
refused: a misspelt bound would read the wrong rows.

Time travel (SPEC SPARK-4) is `asOfOffset` or `asOfTime` in place of an end: the topic as it was. Unlike
`endingOffsets` and `endingTimestamp`, which read the stored messages up to a bound, they promise one fixed state. So a
bound in the future is refused, since the answer would change, and so is a state of which messages are missing.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from deltamq.mq.errors import Refused
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.names import check_group
from deltamq.mq.request_values import zoned_time
from deltamq.mq.streams import TriggerLimits

#: Kafka's numbers for the first stored offset and for the end offset.
EARLIEST: Final = -2
LATEST: Final = -1

OPTIONS: Final = (
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "except",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "asOfOffset",
    "asOfTime",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "group",
    "includeHeaders",
    "failOnDataLoss",
    "rowFormat",
    "columns",
    "filter",
    "typed",
    "quarantined",
    "warehouse",
)
_OF_KAFKA_CLIENTS: Final = re.compile(r"kafka\..*|kafkaconsumer\..*|fetchoffset\..*|groupidprefix")
#: Options that Spark gives a source for `CREATE TABLE ... USING`, and for a path.
_OF_TABLES: Final = ("owner", "path", "location", "provider")
_NO_TABLES: Final = (
    "topics have no paths: name one with the option topic. A table cannot be made with USING mq, since Spark would "
    "keep a copy of its columns: make a view (CREATE TEMPORARY VIEW v USING mq OPTIONS (topic 'orders')), or tables of "
    "all topics (jobs.sql.register_tables)"
)
#: Delta's names for time travel, and ours. Delta's reaches only as far back as the log's commits are kept.
_OF_TIME_TRAVEL: Final = {"versionasof": "asOfOffset", "timestampasof": "asOfTime"}
#: Options that a stream cannot have, because it has no end.
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "asOfOffset", "asOfTime")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Mode(enum.Enum):
    """The kind of read; some options are refused in one of the two modes, or have another default there."""

    BATCH = "batch"
    STREAM = "stream"
    EITHER = "either"  #: not known yet: only errors of both modes are refused


class RowFormat(enum.Enum):
    """The columns of a read."""

    MESSAGE = "message"  #: the message row, `topic`, `partition`
    KAFKA = "kafka"  #: the columns of Spark's Kafka source


class Strategy(enum.Enum):
    """How the options name the partitions."""

    SUBSCRIBE = "subscribe"  #: all partitions of the named topics
    PATTERN = "subscribePattern"  #: all partitions of the topics that match
    ASSIGN = "assign"  #: these partitions


#: An offset or a time for each partition (a name, or a number as text) of each topic.
PerPartition = Mapping[str, Mapping[str, int]]


class Bound(msgspec.Struct, frozen=True):
    """Where a read starts or ends: one offset or time for all partitions, or one for each."""

    everywhere: int | None = None
    each: PerPartition = msgspec.field(default_factory=dict)
    by_time: bool = False  #: values are times in microseconds since 1970, not offsets

    def of(self, topic: str, names: tuple[str, str]) -> int | None:
        """Return the value for a partition that goes by any of `names`; None if it has none."""
        if self.everywhere is not None:
            return self.everywhere
        values = self.each.get(topic, {})
        return next((values[name] for name in names if name in values), None)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a read."""

    warehouse: str
    strategy: Strategy
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    #: The folders of tables that are not read, because they are read by other means.
    excepted: frozenset[str] = frozenset()
    start: Bound
    end: Bound
    start_latest_when_no_match: bool = False
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    headers: bool = True
    fail_on_data_loss: bool = True
    row_format: RowFormat = RowFormat.MESSAGE
    #: Only these columns, in this order; empty: all.
    columns: tuple[str, ...] = ()
    #: A condition of SQL (CONS-9); other rows never reach Spark. Empty: all rows.
    filter: str = ""
    #: Whether rows have the columns of the topic's schema, too (SPEC TYPE-41).
    typed: bool = False
    #: Whether messages that do not fit the topic's schema are among the rows.
    quarantined: bool = False
    #: Whether the end is an earlier state of the topic (`asOfOffset`, `asOfTime`), which must be complete.
    as_of: bool = False
    #: For streams: the limits of a batch.
    limits: TriggerLimits = msgspec.field(default_factory=TriggerLimits)
    #: For streams: the group to which progress is committed.
    group: str | None = None


def parse_options(given: Mapping[str, str], *, warehouse: str | None = None, mode: Mode = Mode.BATCH) -> ReadOptions:
    """Return the checked options; names are case-insensitive, as everywhere in Spark.

    Raises
    ------
    Refused
        An option is unknown, missing, contradicts another one, or has an invalid value; the message names it.
    """
    options = {key.lower(): value for key, value in given.items()}
    for key in given:
        if key.lower() in _OF_TABLES:
            raise wrong_option(key, _NO_TABLES)
        if ours := _OF_TIME_TRAVEL.get(key.lower()):
            raise wrong_option(key, f"is of Delta's tables; a topic is read as it was with the option {ours}")
    check_known(given, OPTIONS, _OF_KAFKA_CLIENTS, "source")
    where = options.get("warehouse") or warehouse
    if not where:
        raise wrong_option("warehouse", "must name a folder or URL: no default is set in this session")
    strategy, topics, pattern, assigned = _selection(options)
    _check_mode(options, mode)
    return ReadOptions(
        warehouse=where,
        strategy=strategy,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        excepted=_excepted(options.get("except")),
        start=_start(options, mode),
        end=_end(options, mode),
        start_latest_when_no_match=_choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        partitions_min=_count(options, "minPartitions"),
        records_per_partition_max=_count(options, "maxRecordsPerPartition"),
        headers=_flag(options, "includeHeaders", default=True),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        row_format=RowFormat(_choice(options, "rowFormat", ("message", "kafka"))),
        columns=_columns(options),
        filter=_filter(options),
        typed=_typed(options),
        quarantined=_flag(options, "quarantined", default=False),
        as_of=any(name in options for name in ("asofoffset", "asoftime")),
        limits=TriggerLimits() if mode is Mode.BATCH else _limits(options),
        group=_group(options),
    )


def _check_mode(options: Mapping[str, str], mode: Mode) -> None:
    if mode is Mode.STREAM:
        for name in _ENDS:
            if name.lower() in options:
                raise wrong_option(name, "cannot be given to a stream, which has no end; batch reads take it")
    if mode is Mode.BATCH and "group" in options:
        raise wrong_option("group", "is for streams: a batch read commits no progress")
    as_of = [name for name in ("asOfOffset", "asOfTime") if name.lower() in options]
    ends = [name for name in _ENDS[:3] if name.lower() in options]
    if len(as_of + ends) > 1 and as_of:
        raise wrong_option(as_of[0], f"contradicts {(as_of + ends)[1]}: both set the end of the read; give only one")


def check_known(given: Iterable[str], options: Sequence[str], ignored: re.Pattern[str], what: str) -> None:
    """Refuse an option that is neither among these nor ignored; `what` has the options, a source or a sink."""
    known = {name.lower(): name for name in options}
    for key in given:
        if key.lower() not in known and not ignored.fullmatch(key.lower()):
            close = difflib.get_close_matches(key.lower(), known, n=1)
            meant = f"; did you mean {known[close[0]]}?" if close else f"; known are {', '.join(options)}"
            raise wrong_option(key, f"is not an option of this {what}{meant}")


def _selection(
    options: Mapping[str, str],
) -> tuple[Strategy, tuple[str, ...], str, Mapping[str, tuple[str, ...]]]:
    ways = [name for name in ("topic", "subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(ways) != 1:
        problem = f"not {' and '.join(ways)}" if ways else "none is given"
        raise wrong_option(
            ways[-1] if ways else "topic",
            f"give exactly one of topic, subscribe, subscribePattern, assign; {problem}",
        )
    text = options[ways[0].lower()]
    if ways[0] == "assign":
        return Strategy.ASSIGN, (), "", _assigned(text)
    if ways[0] == "subscribePattern":
        return Strategy.PATTERN, (), _pattern(text), {}
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise wrong_option(ways[0], "must name at least one topic")
    return Strategy.SUBSCRIBE, topics, "", {}


def _assigned(text: str) -> Mapping[str, tuple[str, ...]]:
    example = '{"orders": ["orders@broker-a", 1]}'
    read = _object("assign", text, example)
    for partitions in read.values():
        if not isinstance(partitions, list) or not all(isinstance(p, str | int) for p in partitions):
            raise wrong_option("assign", f"must be JSON like {example}")
    assigned = {topic: tuple(str(p) for p in partitions) for topic, partitions in read.items()}
    if not any(assigned.values()):
        raise wrong_option("assign", "must name at least one partition")
    return assigned


def _excepted(text: str | None) -> frozenset[str]:
    try:
        read = json.loads(text or "[]")
    except ValueError:
        read = None
    if not isinstance(read, list) or not all(isinstance(folder, str) for folder in read):
        raise wrong_option("except", "must be a JSON list of the folders of tables")
    return frozenset(read)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise wrong_option("subscribePattern", f"is not a regular expression: {error}") from error
    if not text:
        raise wrong_option("subscribePattern", "must not be empty")
    return text


def _start(options: Mapping[str, str], mode: Mode) -> Bound:
    timed = _timed(options, "startingTimestamp", "startingOffsetsByTimestamp")
    if timed is not None:
        return timed
    bound = _offsets(options, "startingOffsets", default="latest" if mode is Mode.STREAM else "earliest")
    if mode is Mode.BATCH and LATEST in _values(bound):
        raise wrong_option("startingOffsets", "cannot be latest (-1) in a batch read: it would read nothing")
    return bound


def _end(options: Mapping[str, str], mode: Mode) -> Bound:
    if "asofoffset" in options:
        return _as_of_offset(options["asofoffset"].strip())
    if "asoftime" in options:
        return Bound(everywhere=_as_of_time(options["asoftime"].strip()), by_time=True)
    timed = _timed(options, "endingTimestamp", "endingOffsetsByTimestamp")
    if timed is not None:
        return timed
    bound = _offsets(options, "endingOffsets", default="latest")
    if mode is Mode.BATCH and EARLIEST in _values(bound):
        raise wrong_option("endingOffsets", "cannot be earliest (-2) in a batch read: it would read nothing")
    return bound


def _as_of_offset(text: str) -> Bound:
    """The end offset of each partition at that state, which is its number of messages then."""
    if text.isdigit() and int(text) <= OFFSET_MAX:
        return Bound(everywhere=int(text))
    return Bound(each=_per_partition("asOfOffset", text, low=0))


def _as_of_time(text: str) -> int:
    """In microseconds, from milliseconds or from a time written out with its zone."""
    if text.isdigit() and int(text) <= OFFSET_MAX // 1_000:
        return int(text) * 1_000
    moment = zoned_time(text)
    if moment is None:
        expected = "must be a time with its zone (2026-01-31T12:00:00Z) or in milliseconds since 1970"
        raise wrong_option("asOfTime", f"{expected}, not {text!r}")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return ()
    names = tuple(name.strip() for name in options["columns"].split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise wrong_option("columns", 'must name columns, each once, like "offset, key"')
    return names


def _filter(options: Mapping[str, str]) -> str:
    text = options.get("filter")
    if text is None:
        return ""
    try:
        parse_filter(text)
    except Refused as error:
        raise wrong_option("filter", error.detail.removeprefix("filter: ")) from error
    return text


def _typed(options: Mapping[str, str]) -> bool:
    typed = _flag(options, "typed", default=False)
    if typed and options.get("rowformat", "").strip().lower() == RowFormat.KAFKA.value:
        raise wrong_option("typed", "is for the message row: in rowFormat=kafka, value is the body")
    return typed


def _limits(options: Mapping[str, str]) -> TriggerLimits:
    most, least = _count(options, "maxOffsetsPerTrigger"), _count(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise wrong_option("minOffsetsPerTrigger", f"({least}) must not be greater than maxOffsetsPerTrigger ({most})")
    if "maxtriggerdelay" not in options:
        return TriggerLimits(messages_max=most, messages_min=least)
    delay_ms = _duration_ms("maxTriggerDelay", options["maxtriggerdelay"])
    return TriggerLimits(messages_max=most, messages_min=least, delay_ms_max=delay_ms)


def _duration_ms(name: str, text: str) -> int:
    parsed = re.fullmatch(r"\s*(\d{1,12})\s*([a-z]*)\s*", text.lower())
    unit = _UNITS_MS.get(parsed[2] or "ms") if parsed else None
    if parsed is None or unit is None:
        raise wrong_option(name, f"must be a duration like 30s, 15m or 500ms, not {text!r}")
    return int(parsed[1]) * unit


def _group(options: Mapping[str, str]) -> str | None:
    name = options.get("group")
    if name is None:
        return None
    try:
        return check_group(name.strip())
    except Refused as error:
        raise wrong_option("group", f"is not a valid group name: {error.detail}") from error


def _values(bound: Bound) -> set[int]:
    each = {value for values in bound.each.values() for value in values.values()}
    return each if bound.everywhere is None else {bound.everywhere}


def _timed(options: Mapping[str, str], everywhere: str, each: str) -> Bound | None:
    """None: there is no bound by time. As in Kafka, one time for all partitions wins over times by partition."""
    if everywhere.lower() in options:
        text = options[everywhere.lower()].strip()
        if not text.isdigit() or int(text) > OFFSET_MAX:
            raise wrong_option(everywhere, f"must be a time in milliseconds since 1970, not {text!r}")
        return Bound(everywhere=int(text) * 1_000, by_time=True)
    if each.lower() in options:
        times_ms = _per_partition(each, options[each.lower()], low=0)
        times_us = {topic: {name: ms * 1_000 for name, ms in values.items()} for topic, values in times_ms.items()}
        return Bound(each=times_us, by_time=True)
    return None


def _offsets(options: Mapping[str, str], name: str, *, default: str) -> Bound:
    text = options.get(name.lower(), default).strip()
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Bound(everywhere=words[text.lower()])
    return Bound(each=_per_partition(name, text, low=EARLIEST))


def _per_partition(name: str, text: str, *, low: int) -> PerPartition:
    example = '{"orders": {"orders@broker-a": 120}}'
    read = _object(name, text, example)
    for values in read.values():
        if not isinstance(values, dict) or not all(_is_long(v, low) for v in values.values()):
            raise wrong_option(name, f"must be JSON like {example}, with whole numbers from {low} on")
    return read


def _is_long(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= OFFSET_MAX


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise wrong_option(name, f"must be JSON like {example}: {error}") from error
    if not isinstance(read, dict) or not read:
        raise wrong_option(name, f"must be a JSON object like {example}")
    return read


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise wrong_option(name, f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise wrong_option(name, f"must be true or false, not {text!r}")
    return text == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = options.get(name.lower(), choices[0]).strip().lower()
    if text not in choices:
        raise wrong_option(name, f"must be one of {', '.join(choices)}, not {text!r}")
    return text


def wrong_option(option: str, what: str) -> Refused:
    """Return the error for an option; `what` is the predicate of its sentence."""
    return Refused(f"option {option}: {what}", code="invalid_option", field=option)
