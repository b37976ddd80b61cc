"""Kafka's settings of topics, all that Kafka 4.3 has, and one of ours (SPEC KAFKA-15).

Two decide how long messages are kept (`mq/meta/topic_settings.py`), `deltamq.partitioner` by which hash keys are
placed. The others mean nothing here: they are kept as they were given, and shown. A value that Kafka does not take is
refused, and one that promises what is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltamq.api.kafka.records.compression import Compression
from deltamq.api.kafka.settings.values import (
    INT_MAX,
    LONG_MAX,
    Kind,
    Read,
    Setting,
    Shown,
    Source,
    decimal,
    either,
    one_of,
    some_of,
    throttled,
    whole,
)
from deltamq.mq.limits import MESSAGE_BYTES_MAX, RETENTION_MS_DEFAULT, RETENTION_MS_MIN
from deltamq.mq.meta.topic_settings import CLEANUP_POLICY, RETENTION, TopicSettings, removes_by_time

PARTITIONER: Final = "deltamq.partitioner"
_KEPT: Final = "Kept and shown. Nothing here depends on it."
_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"
_COMPRESSION: Final = "compression.type"
_COMPRESSIONS: Final = {
    "zstd": Compression.ZSTD,
    "lz4": Compression.LZ4,
    "snappy": Compression.SNAPPY,
    "gzip": Compression.GZIP,
    "uncompressed": Compression.NONE,
    # The tables do not keep how records came.
    "producer": Compression.NONE,
}


def _ints(default: int, read: Read, of_node: str | None = None) -> Setting:
    return Setting(Kind.INT, str(default), read, of_node, _KEPT)


def _longs(default: int, low: int = 0, of_node: str | None = None) -> Setting:
    return Setting(Kind.LONG, str(default), whole(low, LONG_MAX), of_node, _KEPT)


def _booleans(of_node: str | None = None, read: Read = either, says: str = _KEPT) -> Setting:
    return Setting(Kind.BOOLEAN, "false", read, of_node, says)


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
    "retention.bytes": Setting(
        Kind.LONG,
        "-1",
        whole(-(2**63), -1, must="must be -1: nothing is removed by size"),
        "log.retention.bytes",
        "Messages are not removed by size.",
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
    "max.message.bytes": Setting(
        Kind.INT,
        str(MESSAGE_BYTES_MAX),
        whole(0, INT_MAX),
        "message.max.bytes",
        f"Kept and shown. A value has at most {MESSAGE_BYTES_MAX} bytes, in every topic.",
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
        "How records go out to Kafka's clients; with producer as with uncompressed. The tables have their own.",
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


def compression_of(kept: Mapping[str, str]) -> Compression:
    """Return how the records of a topic go out that keeps these settings of Kafka's."""
    return _COMPRESSIONS[kept.get(_COMPRESSION, "producer")]


def shown_of_topic(settings: TopicSettings, kept: Mapping[str, str]) -> list[Shown]:
    """Return all settings of a topic that has these, and keeps these of Kafka's."""
    values = dict(kept)
    if removes_by_time(kept) and settings.retention_ms != RETENTION_MS_DEFAULT:
        values.setdefault(RETENTION, str(settings.retention_ms))
    if settings.partitioner != TopicSettings().partitioner:
        values[PARTITIONER] = settings.partitioner
    return [_shown(name, values.get(name), one) for name, one in TOPIC_SETTINGS.items()]


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
