"""The settings of topics and nodes: what they are, and the changes of topics' (SPEC KAFKA-15).

`IncrementalAlterConfigs` changes what it names; the older `AlterConfigs` puts all that it does not name back to its
default. What the first names and a topic cannot have is refused by its name, and the rest is changed; Kafka's brokers
change nothing of the topic then, so that one setting of a later or earlier release keeps a mirror from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deltamq.api.audit.audit import Audit
from deltamq.api.auth.caller import permit_put
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.acts import recorded
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.cluster_messages import (
    CLIENT_METRICS,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredConfigs,
    ConfigEntry,
    ConfigResource,
    ConfigResult,
    ConfigSynonym,
    CreatedConfig,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedResource,
    NamedValue,
)
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.settings.changes import Change, Changes, Operation, changes_of
from deltamq.api.kafka.settings.topics import PARTITIONER, TOPIC_SETTINGS, shown_of_topic
from deltamq.api.kafka.settings.values import Shown
from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unprocessable
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings, settings_after
from deltamq.mq.meta.topics import check_partitioner
from deltamq.mq.names import check_client_topic

_TOPIC: Final = 2
_NODE: Final = 4
_LOGGERS: Final = 8
_GROUPS: Final = 32
#: What Kafka has settings of, and here has none.
_WITHOUT: Final = (_LOGGERS, CLIENT_METRICS, _GROUPS)
#: What the list of resources can be of.
_LISTED: Final = (_TOPIC, _NODE, *_WITHOUT)
#: Most settings of which an error says what is wrong.
_SAID_MAX: Final = 16


class Configs:
    """The calls about settings; used on the event loop."""

    def __init__(self, places: Places, topics: Topics, audit: Audit | None, node: Sequence[Shown]) -> None:
        """`node` are the settings of this process."""
        self._places = places
        self._topics = topics
        self._audit = audit
        self._node = node

    async def describe(self, request: DescribeConfigsRequest, asker: Asker) -> DescribeConfigsResponse:
        """Return the settings of topics and of this process."""
        return DescribeConfigsResponse(
            results=[await self._described(one, request, asker) for one in request.resources]
        )

    async def _described(self, asked: ConfigResource, request: DescribeConfigsRequest, asker: Asker) -> ConfigResult:
        kind, name = asked.resource_type, asked.resource_name
        try:
            shown = await self._shown(kind, name, asker)
        except DeltaMQError as error:
            return ConfigResult(error_code_of(error), error.detail, kind, name)
        entries = [_entry(one, request) for one in shown if not asked.keys or one.name in asked.keys]
        return ConfigResult(ErrorCode.NONE, None, kind, name, entries)

    async def _shown(self, kind: int, name: str, asker: Asker) -> Sequence[Shown]:
        if kind == _TOPIC:
            asker.check(DescribeConfigsRequest, topic=name)
            topic = await self._places.topic(check_client_topic(name))
            return shown_of_topic(topic.settings, topic.topic.kafka)
        asker.check(DescribeClusterRequest)
        if kind in _WITHOUT or (kind == _NODE and not name):  # no name: what was set for all nodes by Kafka's calls
            return []
        if kind != _NODE:
            raise Refused(f"there are no settings of resources of type {kind}")
        if name != str(self._places.here.id):
            raise Refused(f"this is node {self._places.here.id}: ask node {name} itself for its settings")
        return self._node

    def resources(self, request: ListConfigResourcesRequest, version: int, asker: Asker) -> ListConfigResourcesResponse:
        """Return what has settings, of the types that are asked for: all if none is, in version 0 one type alone."""
        kinds = request.resource_types or (_LISTED if version else [CLIENT_METRICS])
        try:
            asker.check(ListConfigResourcesRequest)
            if unknown := sorted(set(kinds) - set(_LISTED)):
                raise Unprocessable(f"there are no resources of type {unknown[0]}", code="resource_type_unknown")
        except DeltaMQError as error:
            return ListConfigResourcesResponse(error_code=error_code_of(error), resources=[])
        is_shown, nodes = asker.shown("topic"), [str(node.id) for node in self._places.nodes()]
        topics = [one.name for one in self._topics.state.topics.values() if self._places.served(one)]
        names = {_TOPIC: [name for name in topics if is_shown(name)], _NODE: nodes, _LOGGERS: nodes}
        listed = [ListedResource(name, kind) for kind in dict.fromkeys(kinds) for name in names.get(kind, ())]
        return ListConfigResourcesResponse(resources=listed)

    async def replace(self, request: AlterConfigsRequest, asker: Asker) -> AlterConfigsResponse:
        """Give topics these settings, and the others their defaults."""
        done = []
        for one in request.resources:
            asked = [Change(config.name, Operation.SET, config.value) for config in one.configs]
            done.append(await self._altered(request, one.resource_type, one.resource_name, asked, asker))
        return AlterConfigsResponse(responses=done)

    async def alter(self, request: IncrementalAlterConfigsRequest, asker: Asker) -> IncrementalAlterConfigsResponse:
        """Change the settings that are named."""
        done = []
        for one in request.resources:
            asked = [Change(config.name, config.operation, config.value) for config in one.configs]
            done.append(await self._altered(request, one.resource_type, one.resource_name, asked, asker))
        return IncrementalAlterConfigsResponse(responses=done)

    async def _altered(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        kind: int,
        name: str,
        asked: Sequence[Change],
        asker: Asker,
    ) -> AlteredConfigs:
        try:
            if kind != _TOPIC:
                raise Refused("only settings of topics can be changed here; the service has its own in its settings")
            asker.check(type(request), topic=name)
            topic = await self._places.topic(check_client_topic(name))
            is_whole = isinstance(request, AlterConfigsRequest)
            changes = _changes(topic, asked, {} if is_whole else topic.topic.kafka)
            if is_whole:
                _check(changes)
                named = {one.name for one in asked} | {PARTITIONER}
                changes.kafka |= dict.fromkeys(TOPIC_SETTINGS.keys() - named)
            wanted = TopicRequest(kafka=changes.kafka)
            is_change = settings_after(wanted, topic.settings, topic.topic.kafka) != (topic.settings, topic.topic.kafka)
            if is_change and not request.validate_only:
                permit = permit_put(asker.caller, name)
                configs = {one.name: one.value for one in asked if one.name not in changes.problems}
                async with recorded(self._audit, asker, "topic", name, {"configs": configs}):
                    await self._topics.put(name, wanted, permit=permit)
            _check(changes, of=len(asked))
        except DeltaMQError as error:
            return AlteredConfigs(error_code_of(error), error.detail, kind, name)
        return AlteredConfigs(ErrorCode.NONE, None, kind, name)


def settings_of(configs: Iterable[NamedValue]) -> TopicRequest:
    """Return what the configs of a new topic ask for.

    Raises
    ------
    Unprocessable
        `invalid_config`: it names the settings that no topic can have.
    """
    changes = changes_of([Change(one.name, Operation.SET, one.value) for one in configs], {})
    _check(changes)
    return TopicRequest(partitioner=changes.partitioner, kafka=changes.kafka)


def created_configs(wanted: TopicRequest) -> list[CreatedConfig]:
    """Return the settings that a new topic has after this request."""
    shown = shown_of_topic(*settings_after(wanted, TopicSettings(), {}))
    return [CreatedConfig(one.name, one.value, one.is_read_only, one.source, False) for one in shown]


def _changes(topic: HostedTopic, asked: Iterable[Change], kept: Mapping[str, str]) -> Changes:
    """Return the changes of a topic that keeps these of Kafka's settings, unless they are named."""
    changes = changes_of(asked, kept)
    if changes.partitioner is not None:
        try:
            check_partitioner(topic.name, topic.settings, changes.partitioner)
        except Conflict as error:
            changes.refuse(PARTITIONER, f"stays: {error.detail}")
    return changes


def _check(changes: Changes, of: int = 0) -> None:
    """Return if there are no problems; `of` settings were named, and those without one are changed."""
    if changes.problems:
        said = [*changes.problems.values()]
        more = f"; and {len(said) - _SAID_MAX} more" if len(said) > _SAID_MAX else ""
        rest = "; the other settings were changed" if of > len(said) else ""
        raise Unprocessable("; ".join(said[:_SAID_MAX]) + more + rest, code="invalid_config")


def _entry(shown: Shown, request: DescribeConfigsRequest) -> ConfigEntry:
    return ConfigEntry(
        shown.name,
        shown.value,
        shown.is_read_only,
        shown.source,
        synonyms=[ConfigSynonym(*one) for one in shown.synonyms] if request.include_synonyms else [],
        config_type=shown.kind,
        documentation=shown.says if request.include_documentation else None,
    )
