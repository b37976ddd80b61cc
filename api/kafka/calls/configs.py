"""The settings of topics that have a counterpart in Kafka: what they are, and their changes.

    retention.ms                                    the topic's own; -1 is the longest time
    deltamq.partitioner                             lp or kafka: set when a topic is made, shown, and never changed
    cleanup.policy, compression.type, ...           have one possible value, which is shown
    segment.*, flush.*, index.*, ...                how Kafka stores a topic: taken when a topic is made, and not kept

`IncrementalAlterConfigs` changes what it names; the older `AlterConfigs` puts all that it does not name back to its
default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from api.audit import Audit
from api.auth import permit_put
from api.host import Topics
from api.kafka.access import Asker
from api.kafka.calls.acts import recorded
from api.kafka.calls.places import Places
from api.kafka.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    AlteringConfig,
    ConfigEntry,
    ConfigResource,
    ConfigResult,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ErrorCode,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    NamedValue,
    error_code_of,
)
from mq.errors import DeltaMQError, Refused, Unprocessable
from mq.limits import MESSAGE_BYTES_MAX, RETENTION_MS_MAX, RETENTION_MS_MIN
from mq.meta import TopicRequest, TopicSettings, check_partitioner
from mq.names import check_client_topic
from mq.partitioners import Partitioner

__all__ = ["TopicConfigs", "settings_of"]

_TOPIC: Final = 2
#: Where a value comes from: set for the topic, or a default.
_SET: Final = 1
_DEFAULT: Final = 5
_FOR_EVER: Final = -1
#: Kinds of incremental changes; the others are for values that are lists, which no setting here is.
_PUT: Final = 0
_RESET: Final = 1
_RETENTION: Final = "retention.ms"
_PARTITIONER: Final = "deltamq.partitioner"
_PARTITIONERS: Final[Mapping[str, Partitioner]] = {"lp": "lp", "kafka": "kafka"}
#: Settings with one possible value here.
_FIXED: Final = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", "compression.type": "producer"}
#: Settings about how Kafka stores a topic, which nothing here depends on.
_IGNORED: Final = ("segment.", "flush.", "index.", "min.insync.replicas", "unclean.", "file.delete.", "preallocate")


class TopicConfigs:
    """The calls about settings; used on the event loop."""

    def __init__(self, places: Places, topics: Topics, audit: Audit | None) -> None:
        self._places = places
        self._topics = topics
        self._audit = audit

    async def describe(self, request: DescribeConfigsRequest, asker: Asker) -> DescribeConfigsResponse:
        """Return the settings of topics; nodes show none."""
        return DescribeConfigsResponse(results=[await self._described(one, asker) for one in request.resources])

    async def _described(self, asked: ConfigResource, asker: Asker) -> ConfigResult:
        kind, name = asked.resource_type, asked.resource_name
        if kind != _TOPIC:
            return ConfigResult(ErrorCode.NONE, None, kind, name)
        try:
            asker.check(DescribeConfigsRequest, topic=name)
            topic = await self._places.topic(check_client_topic(name))
        except DeltaMQError as error:
            return ConfigResult(error_code_of(error), error.detail, kind, name)
        entries = [one for one in _entries(topic.settings) if asked.keys is None or one.name in asked.keys]
        return ConfigResult(ErrorCode.NONE, None, kind, name, entries)

    async def replace(self, request: AlterConfigsRequest, asker: Asker) -> AlterConfigsResponse:
        """Give topics these settings, and the others their defaults."""
        done = []
        for one in request.resources:
            asked = [AlteringConfig(config.name, _PUT, config.value) for config in one.configs]
            if all(config.name != _RETENTION for config in asked):
                asked.append(AlteringConfig(_RETENTION, _RESET, None))
            done.append(await self._altered(request, one.resource_type, one.resource_name, asked, asker))
        return AlterConfigsResponse(responses=done)

    async def alter(self, request: IncrementalAlterConfigsRequest, asker: Asker) -> IncrementalAlterConfigsResponse:
        """Change the settings that are named."""
        done = [
            await self._altered(request, one.resource_type, one.resource_name, one.configs, asker)
            for one in request.resources
        ]
        return IncrementalAlterConfigsResponse(responses=done)

    async def _altered(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        kind: int,
        name: str,
        asked: Iterable[AlteringConfig],
        asker: Asker,
    ) -> AlteredConfigs:
        try:
            if kind != _TOPIC:
                raise Refused("only settings of topics can be changed here; the service has its own in its settings")
            asker.check(type(request), topic=name)
            topic = await self._places.topic(check_client_topic(name))
            retention_ms = _changed_retention(name, asked, topic.settings)
            if retention_ms not in (None, topic.settings.retention_ms) and not request.validate_only:
                permit = permit_put(asker.caller, name)
                async with recorded(self._audit, asker, "topic", name, {"retention_ms": retention_ms}):
                    await self._topics.put(name, TopicRequest(retention_ms=retention_ms), permit=permit)
        except DeltaMQError as error:
            return AlteredConfigs(error_code_of(error), error.detail, kind, name)
        return AlteredConfigs(ErrorCode.NONE, None, kind, name)


def settings_of(configs: Iterable[NamedValue]) -> TopicRequest:
    """Return what the configs of a new topic ask for.

    Raises
    ------
    Unprocessable
        `invalid_config`: the topic could not keep to one of them.
    """
    found = TopicRequest()
    for config in configs:
        if config.name == _RETENTION:
            found = replace(found, retention_ms=_retention(config.value))
        elif config.name == _PARTITIONER:
            found = replace(found, partitioner=_partitioner(config.value))
        elif not config.name.startswith(_IGNORED):
            _check_fixed(config.name, config.value)
    return found


def _changed_retention(name: str, asked: Iterable[AlteringConfig], settings: TopicSettings) -> int | None:
    """Return the new retention time of a topic; None if it stays.

    Raises
    ------
    Unprocessable
        `invalid_config`.
    Conflict
        `partitioner_fixed`: another partitioner than that of the topic's `settings`.
    """
    found = None
    for config in asked:
        if config.operation not in (_PUT, _RESET):
            raise _invalid(f"{config.name} is no list: it can be set, or deleted, which means its default")
        if config.name == _RETENTION:
            found = TopicSettings().retention_ms if config.operation == _RESET else _retention(config.value)
        elif config.name == _PARTITIONER:
            wanted = TopicSettings().partitioner if config.operation == _RESET else _partitioner(config.value)
            check_partitioner(name, settings, wanted)
        elif config.name.startswith(_IGNORED):
            raise _invalid(f"{config.name} says how Kafka stores a topic, and means nothing here")
        elif config.name not in _FIXED or config.operation == _PUT:
            _check_fixed(config.name, config.value)
    return found


def _check_fixed(name: str, value: str | None) -> None:
    if name not in _FIXED:
        raise _invalid(f"{name} is no setting of a topic here")
    if value != _FIXED[name]:
        raise _invalid(f"{name} can only be {_FIXED[name]}")


def _partitioner(value: str | None) -> Partitioner:
    found = _PARTITIONERS.get(value or "")
    if found is None:
        raise _invalid(f"{_PARTITIONER} is lp or kafka, not {value}")
    return found


def _retention(value: str | None) -> int:
    try:
        ms = int(value or "")
    except ValueError:
        raise _invalid("retention.ms must be a whole number") from None
    if ms == _FOR_EVER:
        return RETENTION_MS_MAX
    if not RETENTION_MS_MIN <= ms <= RETENTION_MS_MAX:
        raise _invalid(f"retention.ms must be from {RETENTION_MS_MIN} to {RETENTION_MS_MAX}, or -1 for the longest")
    return ms


def _invalid(detail: str) -> Unprocessable:
    return Unprocessable(detail, code="invalid_config")


def _entries(settings: TopicSettings) -> list[ConfigEntry]:
    source = _DEFAULT if settings.retention_ms == TopicSettings().retention_ms else _SET
    fixed = [ConfigEntry(name, value, True, _DEFAULT) for name, value in _FIXED.items()]
    by_hash = _DEFAULT if settings.partitioner == TopicSettings().partitioner else _SET
    return [
        ConfigEntry(_RETENTION, str(settings.retention_ms), False, source),
        ConfigEntry(_PARTITIONER, settings.partitioner, True, by_hash),
        ConfigEntry("max.message.bytes", str(MESSAGE_BYTES_MAX), True, _DEFAULT),
        *fixed,
    ]
