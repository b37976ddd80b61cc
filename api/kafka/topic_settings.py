"""Kafka's settings of topics, all that Kafka 4.3 has, and some of ours: values, defaults, changes (KAFKA-15). Pure.

Two decide how long messages are kept (`mq/meta/topic_settings.py`), `deltamq.partitioner` by which hash keys are
placed, `deltamq.commit.window.ms` is `commit_window_ms`, `deltamq.schema.*` says what values are written in. The others
mean nothing here: they are kept as they were given, and shown. A value that Kafka does not take is refused, and so is
one that promises what this service does not do. Changes are taken name by name: a refused one does not keep the others
from being made.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec

from deltamq.api.kafka.records.batch import Compression
from deltamq.mq.limits import (
    COMMIT_WINDOW_MS_MAX,
    LARGE_MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MIN,
)
from deltamq.mq.meta.topic_settings import (
    CLEANUP_POLICY,
    COMMIT_WINDOW,
    NO_LIMIT,
    RETENTION,
    RETENTION_BYTES,
    TopicSettings,
    limit_of,
    removes_by_time,
    schema_of,
    window_of,
)
from deltamq.mq.partitioners import Partitioner

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_BOOLEANS: Final = ("true", "false")
_REPLICAS_MAX: Final = 4_096

#: Returns a value as Kafka shows it; raises `ValueError` with what it must be.
Read: TypeAlias = Callable[[str], str]


class Kind(enum.IntEnum):
    """Kafka's numbers for the types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(enum.IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    NODE = 4
    DEFAULT = 5


class Setting(NamedTuple):
    """A setting of topics."""

    kind: Kind
    default: str
    read: Read
    #: The setting of nodes that says the default.
    of_node: str | None
    says: str
    is_fixed: bool = False


class Shown(NamedTuple):
    """A setting of a topic or of a node, with its value."""

    name: str
    value: str | None
    source: Source
    kind: Kind
    says: str
    is_read_only: bool = False
    #: The setting of nodes that says the default, and the default.
    of_node: tuple[str, str] | None = None

    @property
    def synonyms(self) -> list[tuple[str, str | None, Source]]:
        """Name, value and source of each setting that says the value; the first one counts."""
        synonyms: list[tuple[str, str | None, Source]] = []
        if self.of_node is None or self.source != Source.DEFAULT:
            synonyms.append((self.name, self.value, self.source))
        if self.of_node is not None:
            synonyms.append((*self.of_node, Source.DEFAULT))
        return synonyms


def whole(low: int, high: int, *others: int, must: str = "") -> Read:
    """Take whole numbers from `low` to `high`, and others; `must` is the error text."""
    must = must or f"must be a whole number from {low} to {high}" + "".join(f" or {other}" for other in others)

    def read(text: str) -> str:
        if not _WHOLE.fullmatch(text):
            raise ValueError(must)
        number = int(text)
        if not low <= number <= high and number not in others:
            raise ValueError(must)
        return str(number)

    return read


_long = whole(-(2**63), 2**63 - 1, must="must be a whole number of bytes, or -1 for no limit")


def _bytes_kept(text: str) -> str:
    """Take the bytes that are kept; every negative number is no limit, as in Kafka."""
    if (given := _long(text)) == "0":
        raise ValueError("must not be 0: the newest messages of a partition are always kept")
    return given


def decimal(low: float, high: float) -> Read:
    """Take numbers from `low` to `high`."""
    must = f"must be a number from {low:g} to {high:g}"

    def read(text: str) -> str:
        try:
            number = math.nan if "_" in text else float(text)
        except ValueError:
            raise ValueError(must) from None
        if not low <= number <= high:
            raise ValueError(must)
        return str(number)

    return read


def either(text: str) -> str:
    """Take true and false."""
    if text.lower() not in _BOOLEANS:
        raise ValueError("must be true or false")
    return text.lower()


def one_of(*values: str, why: str = "") -> Read:
    """Take only these values; `why` is added to the error text."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be {' or '.join(values)}{why}")
        return text

    return read


def some_of(*values: str) -> Read:
    """Take lists of some values, which may be empty."""

    def read(text: str) -> str:
        items = _items(text)
        if not set(items) <= set(values):
            raise ValueError(f"must be a list of {' and '.join(values)}")
        return ",".join(items)

    return read


def throttled(text: str) -> str:
    """Take lists of replicas, each a partition and a broker, or all."""
    items = _items(text)
    if items != ["*"] and not all(map(_REPLICA.fullmatch, items)):
        raise ValueError("must be * or a list of PARTITION:BROKER")
    if len(items) > _REPLICAS_MAX:
        raise ValueError(f"must have at most {_REPLICAS_MAX} replicas")
    return ",".join(items)


def _items(text: str) -> Sequence[str]:
    """Return the items of a list, each once."""
    return [*dict.fromkeys(item.strip() for item in text.split(","))] if text else []


PARTITIONER: Final = "deltamq.partitioner"
_KEPT: Final = "Kept and shown. Nothing here depends on it."
_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"
_COMPRESSION: Final = "compression.type"
_MESSAGE_BYTES: Final = "max.message.bytes"
_COMPRESSIONS: Final[Mapping[str, Compression | None]] = {
    "zstd": Compression.ZSTD,
    "lz4": Compression.LZ4,
    "snappy": Compression.SNAPPY,
    "gzip": Compression.GZIP,
    "uncompressed": Compression.NONE,
    "producer": None,
}


def _ints(default: int, read: Read, of_node: str | None = None) -> Setting:
    return Setting(Kind.INT, str(default), read, of_node, _KEPT)


def _longs(default: int, low: int = 0, of_node: str | None = None) -> Setting:
    return Setting(Kind.LONG, str(default), whole(low, LONG_MAX), of_node, _KEPT)


def _booleans(of_node: str | None = None, read: Read = either, says: str = _KEPT) -> Setting:
    return Setting(Kind.BOOLEAN, "false", read, of_node, says)


#: What comes before the names of what a topic's messages are written in (SPEC TYPE-1).
SCHEMA: Final = "deltamq.schema."


def _of_schema(default: str, read: Read, says: str) -> Setting:
    return Setting(Kind.STRING, default, read, None, says)


SCHEMA_SETTINGS: Final[Mapping[str, Setting]] = {
    f"{SCHEMA}format": _of_schema(
        "", one_of("", "avro", "json", "protobuf", "columns"), "What values are written in; empty: bytes. It stays."
    ),
    f"{SCHEMA}subject": _of_schema("", str, "The subject of the registry; empty: the topic's name and -value."),
    f"{SCHEMA}schema": _of_schema("", str, "The text of the next version of the subject; read it from the registry."),
    f"{SCHEMA}message": _of_schema("", str, "The name of a Protobuf schema's message; empty: the first one."),
    f"{SCHEMA}wire": _of_schema(
        "none", one_of("none", "confluent"), "Whether values begin with the schema's id, as Confluent's serializers do."
    ),
    f"{SCHEMA}on_invalid": _of_schema(
        "reject",
        one_of("reject", "quarantine", "rescue"),
        "A value that does not fit: its batch is refused, or it is stored for no consumer, or what fits is delivered.",
    ),
    f"{SCHEMA}unwrap": _of_schema("", one_of("", "debezium"), "The envelope that is taken off the value."),
}

#: By name. The defaults are Kafka's, but where this service does something else.
TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {
    RETENTION: Setting(
        Kind.LONG,
        str(RETENTION_MS_DEFAULT),
        whole(
            RETENTION_MS_MIN,
            LONG_MAX,
            -1,
            must=f"must be -1, or a whole number: messages are kept for {RETENTION_MS_MIN} ms at least",
        ),
        "log.retention.ms",
        "How long messages are kept; -1 is for ever. It means nothing while cleanup.policy has no delete.",
    ),
    RETENTION_BYTES: Setting(
        Kind.LONG,
        str(NO_LIMIT),
        _bytes_kept,
        "log.retention.bytes",
        "Older messages also go while each partition keeps so many bytes. It means nothing without delete.",
    ),
    CLEANUP_POLICY: Setting(
        Kind.LIST,
        "delete",
        some_of("compact", "delete"),
        "log.cleanup.policy",
        "With delete messages are removed by retention.ms, without it never. With compact older values of a key stay.",
    ),
    PARTITIONER: Setting(
        Kind.STRING,
        "lp",
        one_of("lp", "kafka"),
        None,
        "By which hash keys go to partitions: of 1,024 logical partitions (lp), or Kafka's. A topic keeps its own.",
        is_fixed=True,
    ),
    COMMIT_WINDOW: Setting(
        Kind.INT,
        "0",
        whole(0, COMMIT_WINDOW_MS_MAX),
        None,
        "How long batches wait for others that share their commit. Topics without it have service.commit_window_ms.",
    ),
    **SCHEMA_SETTINGS,
    "message.timestamp.type": Setting(
        Kind.STRING,
        "CreateTime",
        one_of("CreateTime", why=": records keep the time that their producer gave them"),
        "log.message.timestamp.type",
        "Records keep the time that their producer gave them.",
    ),
    "remote.storage.enable": _booleans(
        read=one_of("false", why=": the warehouse is the only store"), says="There is no second store."
    ),
    _MESSAGE_BYTES: Setting(
        Kind.INT,
        str(MESSAGE_BYTES_MAX),
        whole(0, INT_MAX),
        "message.max.bytes",
        f"Most bytes of a value from Kafka's clients, at most {LARGE_MESSAGE_BYTES_MAX}. A batch has no limit.",
    ),
    "min.insync.replicas": Setting(
        Kind.INT,
        "1",
        whole(1, INT_MAX),
        "min.insync.replicas",
        "Kept and shown. What is acknowledged is in the table; the store keeps the copies.",
    ),
    _COMPRESSION: Setting(
        Kind.STRING,
        "producer",
        one_of(*_COMPRESSIONS),
        "compression.type",
        "How records go out to Kafka's clients; with producer as the newest batch came. The tables have their own.",
    ),
    "compression.gzip.level": _ints(-1, whole(1, 9, -1), "compression.gzip.level"),
    "compression.lz4.level": _ints(9, whole(1, 17), "compression.lz4.level"),
    "compression.zstd.level": _ints(3, whole(-131_072, 22), "compression.zstd.level"),
    "message.timestamp.before.max.ms": _longs(LONG_MAX, 0, "log.message.timestamp.before.max.ms"),
    "message.timestamp.after.max.ms": _longs(LONG_MAX, 0, "log.message.timestamp.after.max.ms"),
    "segment.bytes": _ints(1024**3, whole(1024**2, INT_MAX), "log.segment.bytes"),
    "segment.ms": _longs(604_800_000, 1, "log.roll.ms"),
    "segment.jitter.ms": _longs(0, 0, "log.roll.jitter.ms"),
    "segment.index.bytes": _ints(10 * 1024**2, whole(4, INT_MAX), "log.index.size.max.bytes"),
    "index.interval.bytes": _ints(4096, whole(0, INT_MAX), "log.index.interval.bytes"),
    "flush.messages": _longs(LONG_MAX, 1, "log.flush.interval.messages"),
    "flush.ms": _longs(LONG_MAX, 0, "log.flush.interval.ms"),
    "file.delete.delay.ms": _longs(60_000, 0, "log.segment.delete.delay.ms"),
    "delete.retention.ms": _longs(86_400_000, 0, "log.cleaner.delete.retention.ms"),
    _MIN_LAG: _longs(0, 0, "log.cleaner.min.compaction.lag.ms"),
    _MAX_LAG: _longs(LONG_MAX, 1, "log.cleaner.max.compaction.lag.ms"),
    "min.cleanable.dirty.ratio": Setting(Kind.DOUBLE, "0.5", decimal(0, 1), "log.cleaner.min.cleanable.ratio", _KEPT),
    "preallocate": _booleans("log.preallocate"),
    "unclean.leader.election.enable": _booleans("unclean.leader.election.enable"),
    "leader.replication.throttled.replicas": Setting(Kind.LIST, "", throttled, None, _KEPT),
    "follower.replication.throttled.replicas": Setting(Kind.LIST, "", throttled, None, _KEPT),
    "local.retention.ms": _longs(-2, -2, "log.local.retention.ms"),
    "local.retention.bytes": _longs(-2, -2, "log.local.retention.bytes"),
    "remote.log.copy.disable": _booleans(),
    "remote.log.delete.on.disable": _booleans(),
}


def clash(kept: Mapping[str, str]) -> tuple[str, str] | None:
    """Return two settings that contradict each other, as Kafka sees it; None if there are none."""
    low, high = (int(kept.get(name, TOPIC_SETTINGS[name].default)) for name in (_MIN_LAG, _MAX_LAG))
    return (_MIN_LAG, _MAX_LAG) if low > high else None


def compression_of(kept: Mapping[str, str]) -> Compression | None:
    """Return how clients get the records of a topic that keeps these settings of Kafka's; None for as they came."""
    return _COMPRESSIONS[kept.get(_COMPRESSION, "producer")]


def value_bytes_of(kept: Mapping[str, str]) -> int:
    """Return how many bytes a value from Kafka's clients may have, in a topic that keeps these settings of Kafka's."""
    return min(int(kept.get(_MESSAGE_BYTES, MESSAGE_BYTES_MAX)), LARGE_MESSAGE_BYTES_MAX)


def shown_of_topic(settings: TopicSettings, kept: Mapping[str, str]) -> list[Shown]:
    """Return all settings of a topic; `kept` are its settings of Kafka's."""
    values = dict(kept)
    if removes_by_time(kept) and settings.retention_ms != RETENTION_MS_DEFAULT:
        values.setdefault(RETENTION, str(settings.retention_ms))
    if limit_of(settings) != NO_LIMIT:
        values.setdefault(RETENTION_BYTES, str(limit_of(settings)))
    if settings.partitioner != TopicSettings().partitioner:
        values[PARTITIONER] = settings.partitioner
    window_ms = window_of(settings)
    if window_ms is not None:
        values[COMMIT_WINDOW] = str(window_ms)
    schema = schema_of(settings)
    for name, setting in SCHEMA_SETTINGS.items() if schema is not None else ():
        value = getattr(schema, name.removeprefix(SCHEMA), "")
        if value != setting.default:
            values[name] = value
    return [_shown(name, values.get(name), setting) for name, setting in TOPIC_SETTINGS.items()]


def _shown(name: str, value: str | None, setting: Setting) -> Shown:
    return Shown(
        name,
        setting.default if value is None else value,
        Source.DEFAULT if value is None else Source.TOPIC,
        setting.kind,
        setting.says,
        setting.is_fixed,
        None if setting.of_node is None else (setting.of_node, setting.default),
    )


_SHOWN_CHARS: Final = 100


class Operation(enum.IntEnum):
    """Kafka's numbers for what is done with a setting."""

    SET = 0
    RESET = 1
    ADD = 2
    TAKE = 3


_OF_LISTS: Final = (Operation.ADD, Operation.TAKE)


class Change(NamedTuple):
    """A change of one setting; the operation is any number that a client sends."""

    name: str
    operation: int
    value: str | None


class Changes(msgspec.Struct):
    """The changes that can be made, and the problems of the others by name."""

    kafka: dict[str, str | None] = msgspec.field(default_factory=dict)
    partitioner: Partitioner | None = None
    #: Settings of the schema, by their names without the prefix; empty for their defaults.
    schema: dict[str, str] = msgspec.field(default_factory=dict)
    problems: dict[str, str] = msgspec.field(default_factory=dict)

    def refuse(self, name: str, why: str) -> None:
        """Make no change of this setting."""
        self.kafka.pop(name, None)
        self.schema.pop(name.removeprefix(SCHEMA), None)
        if name == PARTITIONER:
            self.partitioner = None
        self.problems[name] = f"{name[:_SHOWN_CHARS]} {why}"


def changes_of(asked: Iterable[Change], kept: Mapping[str, str]) -> Changes:
    """Return the changes of a topic that keeps these settings of Kafka's."""
    changes = Changes()
    seen: set[str] = set()
    for change in asked:
        if change.name in seen:
            changes.refuse(change.name, "is named twice")
        seen.add(change.name)
        if change.name not in changes.problems:
            _take(changes, change, kept)
    pair = clash({name: value for name, value in {**kept, **changes.kafka}.items() if value is not None})
    for name in pair or ():
        if name in changes.kafka:
            changes.refuse(name, "would make the smallest compaction lag greater than the largest")
    return changes


def _take(changes: Changes, change: Change, kept: Mapping[str, str]) -> None:
    setting = TOPIC_SETTINGS.get(change.name)
    if change.operation == Operation.RESET:
        if change.name in SCHEMA_SETTINGS:
            changes.schema[change.name.removeprefix(SCHEMA)] = SCHEMA_SETTINGS[change.name].default
        elif change.name == PARTITIONER and setting is not None:
            changes.partitioner = cast(Partitioner, setting.default)
        elif setting is not None:  # Kafka puts back what it does not know, too
            changes.kafka[change.name] = None
    elif setting is None:
        changes.refuse(change.name, "is no setting of a topic")
    elif change.value is None:
        changes.refuse(change.name, "has no value")
    elif change.operation != Operation.SET and (change.operation not in _OF_LISTS or setting.kind is not Kind.LIST):
        changes.refuse(change.name, "is no list: it can be set, or deleted, which means its default")
    else:
        try:
            value = setting.read(_whole(change, kept.get(change.name, setting.default)))
        except ValueError as error:
            changes.refuse(change.name, f"{error}, and was {change.value[:_SHOWN_CHARS]!r}")
        else:
            if change.name == PARTITIONER:
                changes.partitioner = cast(Partitioner, value)
            elif change.name in SCHEMA_SETTINGS:
                changes.schema[change.name.removeprefix(SCHEMA)] = value
            else:
                changes.kafka[change.name] = value


def _whole(change: Change, present: str) -> str:
    """Return the whole value that a setting has after a change."""
    value = (change.value or "").strip()
    there, named = ([part.strip() for part in text.split(",") if part.strip()] for text in (present, value))
    if change.operation == Operation.ADD:
        return ",".join([*there, *named])
    if change.operation == Operation.TAKE:
        return ",".join(part for part in there if part not in named)
    return value
