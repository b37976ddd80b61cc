"""What administrators ask: make, delete and grow topics, show and change settings (SPEC KAFKA-15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar, cast

from deltamq.api.audit.audit import Audit
from deltamq.api.auth.caller import permit_put
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.peers import Call
from deltamq.api.host.typed_topics import WantedSchema, wanted_schema
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.calls.layout import Layout, check_asked, topic_id_of
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
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsResult,
    CreateTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeletingTopic,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedResource,
    NamedValue,
    NewPartitions,
)
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID, Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.topic_settings import (
    PARTITIONER,
    SCHEMA,
    SCHEMA_SETTINGS,
    TOPIC_SETTINGS,
    Change,
    Changes,
    Operation,
    Shown,
    changes_of,
    shown_of_topic,
)
from deltamq.api.schemas.registry import Registry
from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unprocessable
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings, schema_of, settings_after
from deltamq.mq.meta.topics import MetaState, check_may_grow, check_partitioner
from deltamq.mq.names import CONSUMER_OFFSETS, check_client_topic
from deltamq.mq.schemas.setting import Format, OnInvalid, SchemaSetting, Wire

M = TypeVar("M", bound=Message)


class TopicCalls:
    """The calls about topics; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        delete: Callable[[str], Awaitable[None]],
        audit: Audit | None,
        registry: Registry,
        *,
        default_partitions: int,
    ) -> None:
        """`delete` deletes a topic with all that groups have of it; `default_partitions` 0 is for the default route."""
        self._layout = layout
        self._topics = topics
        self._delete = delete
        self._audit = audit
        self._registry = registry
        self._default_partitions = default_partitions

    async def create(self, request: CreateTopicsRequest, asker: Asker) -> CreateTopicsResponse:
        """Make topics; the store keeps the copies, so replication factors are taken and mean nothing."""
        once, twice = _each_once(request.topics, lambda topic: topic.name)
        topics = [await self._created(topic, request.validate_only, asker, twice) for topic in once]
        return CreateTopicsResponse(topics=topics)

    async def _created(
        self, asked: CreateTopic, validate_only: bool, asker: Asker, twice: Container[object]
    ) -> CreatedTopic:
        try:
            _check_once(asked.name, twice)
            _check_new(asked.name, asked.name != CONSUMER_OFFSETS)
            name = check_client_topic(asked.name)
            asker.check(CreateTopicsRequest, topic=name)
            wanted, schema = self._wanted_new(name, asked)
            if validate_only:
                await self._topics.refresh()
                is_new = self._topics.find(name) is None
                if schema is not None:
                    await self._registry.check_for(name, schema)
            else:
                asks = {
                    "partitions": wanted.partitions,
                    "partitioner": wanted.partitioner,
                    "configs": {config.name: config.value for config in asked.configs},
                }
                async with recorded(self._audit, asker, "topic", name, asks):
                    permit = permit_put(asker.caller, name)
                    if schema is not None:
                        _check_new(name, self._topics.find(name) is None)
                        await self._registry.register_for(name, schema, asker.caller, _call(asker))
                    _, is_new = await self._topics.put(name, wanted, only_new=True, permit=permit, schema=schema)
                    _check_new(name, is_new)
            _check_new(name, is_new)
        except DeltaMQError as error:
            return CreatedTopic(name=asked.name, error_code=error_code_of(error), error_message=error.detail)
        hosted = self._topics.find(name)
        return CreatedTopic(
            name=name,
            topic_id=NO_TOPIC_ID if hosted is None else topic_id_of(hosted.topic),
            error_code=ErrorCode.NONE,
            num_partitions=(wanted.partitions or -1) if hosted is None else self._layout.count(hosted.topic),
            replication_factor=1,
            configs=created_configs(*settings_after(wanted, TopicSettings(), {}))
            if hosted is None
            else created_configs(hosted.settings, hosted.topic.kafka),
        )

    def _wanted_new(self, name: str, asked: CreateTopic) -> tuple[TopicRequest, AskedSchema | None]:
        """Return the request for a new topic; as by Kafka, an existing topic is refused before wrong settings."""
        try:
            return self._wanted(asked)
        except DeltaMQError:
            _check_new(name, self._topics.find(name) is None)
            raise

    def _wanted(self, asked: CreateTopic) -> tuple[TopicRequest, AskedSchema | None]:
        changes, count = settings_of(asked.configs), asked.num_partitions
        if asked.assignments:
            if (count, asked.replication_factor) != (-1, -1):
                raise Refused("with assignments, num_partitions and replication_factor must be -1")
            if sorted(assignment.partition for assignment in asked.assignments) != list(range(len(asked.assignments))):
                raise Unprocessable("assignments: partitions must count from 0", code="invalid_assignment")
            self._layout.check_assignment([assignment.broker_ids for assignment in asked.assignments])
            count = len(asked.assignments)
        elif asked.replication_factor < 1 and asked.replication_factor != -1:
            detail = f"replication_factor {asked.replication_factor}: must be 1 or more, or -1 for the default"
            raise Unprocessable(detail, code="invalid_replication_factor")
        if count < 1 and count != -1:
            detail = f"num_partitions {count}: must be 1 or more, or -1 for the default"
            raise Unprocessable(detail, code="partitions_out_of_range")
        partitions = (self._default_partitions or None) if count == -1 else count
        wanted = TopicRequest(partitions=partitions, partitioner=changes.partitioner, kafka=changes.kafka)
        return wanted, _schema(asked.name, None, changes)

    async def delete(self, request: DeleteTopicsRequest, asker: Asker) -> DeleteTopicsResponse:
        """Delete topics with all that is stored of them."""
        called = request.topics or [DeletingTopic(name=name) for name in request.names]
        once, twice = _each_once(called, lambda topic: (topic.name, topic.topic_id))
        return DeleteTopicsResponse(topics=[await self._deleted(topic, asker, twice) for topic in once])

    async def _deleted(self, called: DeletingTopic, asker: Asker, twice: Container[object]) -> DeletedTopic:
        name, wanted = called.name, called.topic_id
        try:
            _check_once((name, wanted), twice)
            if name is None and wanted == NO_TOPIC_ID:
                raise Refused("topics: give the name or the id of each")
            if name is None:
                name = await self._layout.ids.name(wanted)
            elif wanted != NO_TOPIC_ID:
                raise Refused(f"topic {name}: give its name or its id, not both")
            asker.check(DeleteTopicsRequest, topic=name)
            topic = (await self._layout.topic(name)).topic
            async with recorded(self._audit, asker, "topic", name, {}):
                await self._delete(name)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DeletedTopic(name=called.name, topic_id=wanted, error_code=code, error_message=detail)
        return DeletedTopic(name=name, topic_id=topic_id_of(topic), error_code=ErrorCode.NONE)

    async def grow(self, request: CreatePartitionsRequest, asker: Asker) -> CreatePartitionsResponse:
        """Add partitions to topics."""
        once, twice = _each_once(request.topics, lambda topic: topic.name)
        return CreatePartitionsResponse(
            results=[await self._grown(topic, request.validate_only, asker, twice) for topic in once]
        )

    async def _grown(
        self, asked: NewPartitions, validate_only: bool, asker: Asker, twice: Container[object]
    ) -> CreatePartitionsResult:
        try:
            _check_once(asked.name, twice)
            asker.check(CreatePartitionsRequest, topic=asked.name)
            topic = await self._layout.topic(asked.name)
            if topic.topic.static is not None:
                detail = f"topic {asked.name} is static: queues are added over REST or by `deltamq topic alter`"
                raise Conflict(detail, code="topic_static")
            if asked.count <= len(topic.route.partitions):
                detail = f"topic {asked.name} has {len(topic.route.partitions)} partitions; it can only get more"
                raise Unprocessable(detail, code="partitions_out_of_range")
            if asked.assignments is not None:
                more = asked.count - len(topic.route.partitions)
                if len(asked.assignments) != more:
                    detail = f"topic {asked.name} gets {more} partitions more, and {len(asked.assignments)} assignments"
                    raise Unprocessable(detail, code="invalid_assignment")
                self._layout.check_assignment([assignment.broker_ids for assignment in asked.assignments])
            check_may_grow(asked.name, topic.settings)
            if not validate_only:
                permit = permit_put(asker.caller, asked.name)
                async with recorded(self._audit, asker, "topic", asked.name, {"partitions": asked.count}):
                    await self._topics.put(asked.name, TopicRequest(partitions=asked.count), permit=permit)
        except DeltaMQError as error:
            return CreatePartitionsResult(asked.name, error_code_of(error), error.detail)
        return CreatePartitionsResult(asked.name, ErrorCode.NONE)


def _check_new(name: str, is_new: bool) -> None:
    if not is_new:
        raise Conflict(f"topic {name} exists", code="topic_exists")


def _each_once(asked: Sequence[M], key: Callable[[M], object]) -> tuple[list[M], Container[object]]:
    """Return what is asked without repeats, and the keys that are asked twice: each is refused, once."""
    counts = Counter(map(key, asked))
    first = {key(item): item for item in asked}
    return list(first.values()), {repeated for repeated, count in counts.items() if count > 1}


def _check_once(key: object, twice: Container[object]) -> None:
    if key in twice:
        raise Refused("topics: each may be in the request once")


_TOPIC: Final = 2
_NODE: Final = 4
_LOGGERS: Final = 8
_GROUPS: Final = 32
#: Resources that have settings in Kafka, and none here.
_WITHOUT: Final = (_LOGGERS, CLIENT_METRICS, _GROUPS)
#: The types of resources that can be listed.
_LISTED: Final = (_TOPIC, _NODE, *_WITHOUT)
#: Most settings of which an error says what is wrong.
_SAID_MAX: Final = 16


class Configs:
    """The calls about settings; used on the event loop.

    `IncrementalAlterConfigs` changes what it names; the older `AlterConfigs` puts all that it does not name back to its
    default. A setting that the first names and a topic cannot have is refused by its name, and the others are changed.
    Kafka's brokers change nothing of the topic then: one setting of another release keeps a mirror from all others.
    """

    def __init__(
        self, layout: Layout, topics: Topics, audit: Audit | None, registry: Registry, node: Sequence[Shown]
    ) -> None:
        """`node` are the settings of this process."""
        self._layout = layout
        self._topics = topics
        self._audit = audit
        self._registry = registry
        self._node = node

    async def describe(self, request: DescribeConfigsRequest, asker: Asker) -> DescribeConfigsResponse:
        """Return the settings of topics and of this process."""
        return DescribeConfigsResponse(
            results=[await self._described(resource, request, asker) for resource in request.resources]
        )

    async def _described(self, asked: ConfigResource, request: DescribeConfigsRequest, asker: Asker) -> ConfigResult:
        kind, name = asked.resource_type, asked.resource_name
        try:
            shown = await self._shown(kind, name, asker)
        except DeltaMQError as error:
            return ConfigResult(error_code_of(error), error.detail, kind, name)
        entries = [_entry(setting, request) for setting in shown if not asked.keys or setting.name in asked.keys]
        return ConfigResult(ErrorCode.NONE, None, kind, name, entries)

    async def _shown(self, kind: int, name: str, asker: Asker) -> Sequence[Shown]:
        if kind == _TOPIC:
            topic = await self._layout.readable(DescribeConfigsRequest, check_asked(name), asker)
            return shown_of_topic(topic.settings, topic.topic.kafka)
        asker.check(DescribeClusterRequest)
        if kind in _WITHOUT or (kind == _NODE and not name):  # no name: what was set for all nodes by Kafka's calls
            return []
        if kind != _NODE:
            raise Refused(f"there are no settings of resources of type {kind}")
        if name != str(self._layout.here.id):
            raise Refused(f"this is node {self._layout.here.id}: ask node {name} itself for its settings")
        return self._node

    def resources(self, request: ListConfigResourcesRequest, version: int, asker: Asker) -> ListConfigResourcesResponse:
        """Return the resources of the types that are asked for: of all if none is, in version 0 of only one."""
        kinds = request.resource_types or (_LISTED if version else [CLIENT_METRICS])
        try:
            asker.check(ListConfigResourcesRequest)
            if unknown := sorted(set(kinds) - set(_LISTED)):
                raise Unprocessable(f"there are no resources of type {unknown[0]}", code="resource_type_unknown")
        except DeltaMQError as error:
            return ListConfigResourcesResponse(error_code=error_code_of(error), resources=[])
        nodes = [str(node.id) for node in self._layout.nodes()]
        names = {_TOPIC: [topic.name for topic in self._layout.listed(asker)], _NODE: nodes, _LOGGERS: nodes}
        listed = [ListedResource(name, kind) for kind in dict.fromkeys(kinds) for name in names.get(kind, ())]
        return ListConfigResourcesResponse(resources=listed)

    async def replace(self, request: AlterConfigsRequest, asker: Asker) -> AlterConfigsResponse:
        """Give topics these settings, and the others their defaults."""
        done = []
        for resource in request.resources:
            asked = [Change(config.name, Operation.SET, config.value) for config in resource.configs]
            done.append(await self._altered(request, resource.resource_type, resource.resource_name, asked, asker))
        return AlterConfigsResponse(responses=done)

    async def alter(self, request: IncrementalAlterConfigsRequest, asker: Asker) -> IncrementalAlterConfigsResponse:
        """Change the settings that are named."""
        done = []
        for resource in request.resources:
            asked = [Change(config.name, config.operation, config.value) for config in resource.configs]
            done.append(await self._altered(request, resource.resource_type, resource.resource_name, asked, asker))
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
            topic = await self._layout.topic(check_client_topic(name))
            is_whole = isinstance(request, AlterConfigsRequest)
            changes = _changes(topic, asked, {} if is_whole else topic.topic.kafka)
            if is_whole:
                _check(changes)
                named = {change.name for change in asked} | {PARTITIONER} | SCHEMA_SETTINGS.keys()
                changes.kafka |= dict.fromkeys(TOPIC_SETTINGS.keys() - named)
            wanted = TopicRequest(kafka=changes.kafka)
            schema = _schema(name, schema_of(topic.settings), changes)
            is_change = settings_after(wanted, topic.settings, topic.topic.kafka) != (topic.settings, topic.topic.kafka)
            if request.validate_only and schema is not None:
                await self._registry.check_for(name, schema)
            if (is_change or schema is not None) and not request.validate_only:
                permit = permit_put(asker.caller, name)
                configs = {change.name: change.value for change in asked if change.name not in changes.problems}
                async with recorded(self._audit, asker, "topic", name, {"configs": configs}):
                    if schema is not None:
                        await self._registry.register_for(name, schema, asker.caller, _call(asker))
                    await self._topics.put(name, wanted, permit=permit, schema=schema)
            _check(changes, of=len(asked))
        except DeltaMQError as error:
            return AlteredConfigs(error_code_of(error), error.detail, kind, name)
        return AlteredConfigs(ErrorCode.NONE, None, kind, name)


def settings_of(configs: Iterable[NamedValue]) -> Changes:
    """Return what the configs of a new topic ask for.

    Raises
    ------
    Unprocessable
        `invalid_config`: it names the settings that no topic can have.
    """
    changes = changes_of([Change(config.name, Operation.SET, config.value) for config in configs], {})
    _check(changes)
    return changes


#: Returns what schema a request asks for, by the topics that are there.
AskedSchema: TypeAlias = Callable[[MetaState], WantedSchema]


def _schema(topic: str, present: SchemaSetting | None, changes: Changes) -> AskedSchema | None:
    """Return what schema settings ask for; None if they name none: a topic of bytes has their defaults."""
    given = {name: value for name, value in changes.schema.items() if value or name not in ("format", "subject")}
    is_default = all(SCHEMA_SETTINGS[f"{SCHEMA}{name}"].default == value for name, value in given.items())
    if not given or (present is None and is_default):
        return None

    def wanted(topics: MetaState) -> WantedSchema:
        present = topics.topics.get(topic)
        return wanted_schema(
            topic,
            None if present is None else schema_of(present.settings),
            format=cast(Format | None, given.get("format")),
            subject=given.get("subject"),
            schema=given.get("schema") or None,
            references=(),
            message=given.get("message"),
            wire=cast(Wire | None, given.get("wire")),
            on_invalid=cast(OnInvalid | None, given.get("on_invalid")),
            unwrap=given.get("unwrap"),
        )

    return wanted


def _call(asker: Asker) -> Call:
    """Return a call in the name of a client of Kafka, for what is said about it."""
    return Call("POST", b"kafka", [], b"", principal=asker.caller.name)


def created_configs(settings: TopicSettings, kafka: Mapping[str, str]) -> list[CreatedConfig]:
    """Return the settings that a new topic has."""
    shown = shown_of_topic(settings, kafka)
    return [
        CreatedConfig(setting.name, setting.value, setting.is_read_only, setting.source, False) for setting in shown
    ]


def _changes(topic: HostedTopic, asked: Iterable[Change], kept: Mapping[str, str]) -> Changes:
    """Return the changes of a topic that has `kept` these settings of Kafka's; its partitioner stays."""
    changes = changes_of(asked, kept)
    if changes.partitioner is not None:
        try:
            check_partitioner(topic.name, topic.settings, changes.partitioner)
        except Conflict as error:
            changes.refuse(PARTITIONER, f"stays: {error.detail}")
    return changes


def _check(changes: Changes, of: int = 0) -> None:
    """Raise `Unprocessable` with the problems; `of` settings were named, and those without one are changed."""
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
        synonyms=[ConfigSynonym(*synonym) for synonym in shown.synonyms] if request.include_synonyms else [],
        config_type=shown.kind,
        documentation=shown.says if request.include_documentation else None,
    )
