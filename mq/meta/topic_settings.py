"""A topic's settings, and the request that sets them.

A setting is checked when it is requested (`PUT /v1/topics/{topic}`). Stored settings are read without a check of their
bounds, so that a release with other bounds can still start.

Kafka's clients give a topic their own settings. These are kept as given and mean nothing here, except
`deltamq.commit.window.ms`, which is `commit_window_ms`, and three that together decide how long and how much is kept
(SPEC KAFKA-15):

    cleanup.policy            retention.ms        retention_ms             retention.bytes    retention_bytes
    delete, compact,delete    60000               60000                    1000000            1000000
                              -1                  the longest              -1, (not given)    no limit
                              (not given)         the default
    compact, or empty         anything            the longest: nothing     anything           no limit
                                                  is removed by time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from deltamq.mq.limits import JSON_INTEGER_MAX, RETENTION_MS_DEFAULT, RETENTION_MS_MAX
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.schemas.setting import SchemaSetting

#: Kafka's names of the settings that mean something here.
CLEANUP_POLICY: Final = "cleanup.policy"
RETENTION: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
#: The name of `commit_window_ms` for Kafka's clients.
COMMIT_WINDOW: Final = "deltamq.commit.window.ms"
#: The `retention_bytes` of a topic without a limit.
NO_LIMIT: Final = -1
_DELETE: Final = "delete"
_COMPACT: Final = "compact"

OrderStrategy = Literal["best_tried", "strict"]
FlushMode = Literal["sync", "async"]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic that users may change; a field that is not stored has its default."""

    #: Whether a failed send may break the order (SPEC SEND-2).
    order_strategy: OrderStrategy = "best_tried"
    #: How long messages are kept (SPEC RETRY-6).
    retention_ms: int = RETENTION_MS_DEFAULT
    #: How many bytes of each partition are kept at least, when older ones are removed; unset, and not stored, without a
    #: limit (SPEC RETRY-9).
    retention_bytes: int | UnsetType = UNSET
    #: The users' own word for the messages of the topic; DeltaMQ only shows it.
    message_type: str = "normal"
    #: What an acknowledgement waits for; None means the setting of the service.
    flush: FlushMode | None = None
    #: How long messages wait for others that share their commit; unset, and not stored, for the service's own setting
    #: (SPEC SEND-14).
    commit_window_ms: int | UnsetType = UNSET
    #: The hash by which keys go to partitions (SPEC KAFKA-12); set when the topic is made, and never changed.
    partitioner: Partitioner = "lp"
    #: What messages are written in; unset, and not stored, for a topic whose bodies are bytes (SPEC TYPE-1).
    schema: SchemaSetting | UnsetType = UNSET


class TopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for topic settings. None leaves a setting unchanged; a new topic gets the default."""

    partitions: int | None = None
    #: All partitions in route order, given by hand (SPEC ROUTE-8).
    routes: tuple[str, ...] | None = None
    order_strategy: OrderStrategy | None = None
    retention_ms: int | None = None
    #: `NO_LIMIT` ends a limit.
    retention_bytes: int | None = None
    message_type: str | None = None
    flush: FlushMode | None = None
    commit_window_ms: int | None = None
    partitioner: Partitioner | None = None
    schema: SchemaSetting | None = None
    #: Settings by Kafka's names, valid ones; None puts one back to its default.
    kafka: Mapping[str, str | None] = msgspec.field(default_factory=dict)

    def over(self, settings: TopicSettings) -> TopicSettings:
        """Return `settings` with the changes of this request."""
        return TopicSettings(
            order_strategy=self.order_strategy or settings.order_strategy,
            retention_ms=self.retention_ms or settings.retention_ms,
            retention_bytes=settings.retention_bytes if self.retention_bytes is None else _limit(self.retention_bytes),
            message_type=self.message_type or settings.message_type,
            flush=self.flush or settings.flush,
            commit_window_ms=settings.commit_window_ms if self.commit_window_ms is None else self.commit_window_ms,
            partitioner=self.partitioner or settings.partitioner,
            schema=settings.schema if self.schema is None else self.schema,
        )


def is_compacted(kafka: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings of Kafka's keeps the newest message of each key at least."""
    return _COMPACT in kafka.get(CLEANUP_POLICY, "").split(",")


def removes_by_time(kafka: Mapping[str, str]) -> bool:
    """Whether messages of a topic with these settings of Kafka's are removed when they are old."""
    return _DELETE in kafka.get(CLEANUP_POLICY, _DELETE).split(",")


def limit_of(settings: TopicSettings) -> int:
    """Return a topic's `retention_bytes`; `NO_LIMIT` without one."""
    return NO_LIMIT if settings.retention_bytes is UNSET else settings.retention_bytes


def window_of(settings: TopicSettings) -> int | None:
    """Return a topic's `commit_window_ms`; None for the service's own setting."""
    return None if settings.commit_window_ms is UNSET else settings.commit_window_ms


def schema_of(settings: TopicSettings) -> SchemaSetting | None:
    """Return what messages of a topic are written in; None for bytes."""
    return None if settings.schema is UNSET else settings.schema


def settings_after(
    request: TopicRequest, settings: TopicSettings, kafka: Mapping[str, str]
) -> tuple[TopicSettings, Mapping[str, str]]:
    """Return a topic's settings, and what it keeps of Kafka's, after `request`.

    A time or size that is requested outside of Kafka's settings counts under any cleanup policy: the policy then
    becomes one that removes messages.
    """
    # What was set outside of Kafka's settings counts again when a policy that ignores it ends.
    given = {**_named(settings), **kafka} if removes_by_time(kafka) else dict(kafka)
    asked = request.over(settings)
    named = _named(asked)
    for name, value in ((RETENTION, request.retention_ms), (RETENTION_BYTES, request.retention_bytes)):
        if value is not None:
            given.pop(name, None)
            if name in named:
                given[name] = named[name]
            if not removes_by_time(given):
                given[CLEANUP_POLICY] = ",".join(filter(None, (given[CLEANUP_POLICY], _DELETE)))
    changed = {**given, **request.kafka}
    if COMMIT_WINDOW in changed:
        window_ms = changed.pop(COMMIT_WINDOW)
        asked = replace(asked, commit_window_ms=UNSET if window_ms is None else int(window_ms))
    kept = {name: text for name, text in changed.items() if text is not None}
    retention_ms, limit = RETENTION_MS_MAX, NO_LIMIT
    if removes_by_time(kept):
        retention_ms = _retention_ms(kept.get(RETENTION))
        limit = min(max(int(kept.get(RETENTION_BYTES, NO_LIMIT)), NO_LIMIT), JSON_INTEGER_MAX)
        if kept.get(RETENTION) == str(retention_ms) != str(RETENTION_MS_DEFAULT):
            del kept[RETENTION]  # `retention_ms` says it
        if kept.get(RETENTION_BYTES) == str(limit) != str(NO_LIMIT):
            del kept[RETENTION_BYTES]
    return replace(asked, retention_ms=retention_ms, retention_bytes=_limit(limit)), kept


def _limit(size: int) -> int | UnsetType:
    return UNSET if size == NO_LIMIT else size


def _named(settings: TopicSettings) -> dict[str, str]:
    """Return what settings say by Kafka's names, as far as they are not the defaults."""
    named = {} if settings.retention_ms == RETENTION_MS_DEFAULT else {RETENTION: str(settings.retention_ms)}
    return named if settings.retention_bytes is UNSET else {**named, RETENTION_BYTES: str(settings.retention_bytes)}


def _retention_ms(given: str | None) -> int:
    ms = RETENTION_MS_DEFAULT if given is None else int(given)
    return RETENTION_MS_MAX if ms < 0 else min(ms, RETENTION_MS_MAX)
