"""What administrators ask: make, delete and grow topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from typing import TypeVar

from deltamq.api.audit.audit import Audit
from deltamq.api.auth.caller import permit_put
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.acts import recorded
from deltamq.api.kafka.calls.configs import created_configs, settings_of
from deltamq.api.kafka.calls.places import Places
from deltamq.api.kafka.messages.cluster_messages import (
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
    NewPartitions,
)
from deltamq.api.kafka.messages.codec import NO_TOPIC_ID, Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.topic_ids import topic_id_of
from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unprocessable
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import check_may_grow
from deltamq.mq.names import check_client_topic

M = TypeVar("M", bound=Message)


class TopicCalls:
    """The calls about topics; used on the event loop."""

    def __init__(
        self,
        places: Places,
        topics: Topics,
        delete: Callable[[str], Awaitable[None]],
        audit: Audit | None,
        *,
        default_partitions: int,
    ) -> None:
        """`delete` deletes a topic with all that groups have of it; `default_partitions` 0 is for the default route."""
        self._places = places
        self._topics = topics
        self._delete = delete
        self._audit = audit
        self._default_partitions = default_partitions

    async def create(self, request: CreateTopicsRequest, asker: Asker) -> CreateTopicsResponse:
        """Make topics; the store keeps the copies, so replication factors are taken and mean nothing."""
        once, twice = _each_once(request.topics, lambda one: one.name)
        topics = [await self._created(topic, request.validate_only, asker, twice) for topic in once]
        return CreateTopicsResponse(topics=topics)

    async def _created(
        self, asked: CreateTopic, validate_only: bool, asker: Asker, twice: Container[object]
    ) -> CreatedTopic:
        try:
            _check_once(asked.name, twice)
            name = check_client_topic(asked.name)
            asker.check(CreateTopicsRequest, topic=name)
            wanted = self._wanted_new(name, asked)
            if validate_only:
                await self._topics.refresh()
                is_new = self._topics.find(name) is None
            else:
                asks = {
                    "partitions": wanted.partitions,
                    "partitioner": wanted.partitioner,
                    "configs": wanted.kafka,
                }
                async with recorded(self._audit, asker, "topic", name, asks):
                    permit = permit_put(asker.caller, name)
                    _, is_new = await self._topics.put(name, wanted, only_new=True, permit=permit)
                    _check_new(name, is_new)
            _check_new(name, is_new)
        except DeltaMQError as error:
            return CreatedTopic(name=asked.name, error_code=error_code_of(error), error_message=error.detail)
        found = self._topics.find(name)
        return CreatedTopic(
            name=name,
            topic_id=NO_TOPIC_ID if found is None else topic_id_of(found.topic),
            error_code=ErrorCode.NONE,
            num_partitions=(wanted.partitions or -1) if found is None else self._places.count(found.topic),
            replication_factor=1,
            configs=created_configs(wanted),
        )

    def _wanted_new(self, name: str, asked: CreateTopic) -> TopicRequest:
        """Return the settings; of a topic that is there, Kafka says that and nothing about settings that are wrong."""
        try:
            return self._wanted(asked)
        except DeltaMQError:
            _check_new(name, self._topics.find(name) is None)
            raise

    def _wanted(self, asked: CreateTopic) -> TopicRequest:
        """Return the request for a topic; refuse what it could not keep to."""
        wanted, count = settings_of(asked.configs), asked.num_partitions
        if asked.assignments:
            if (count, asked.replication_factor) != (-1, -1):
                raise Refused("with assignments, num_partitions and replication_factor must be -1")
            if sorted(one.partition for one in asked.assignments) != list(range(len(asked.assignments))):
                raise Unprocessable("assignments: partitions must count from 0", code="invalid_assignment")
            self._places.check_assignment([one.broker_ids for one in asked.assignments])
            count = len(asked.assignments)
        elif asked.replication_factor < 1 and asked.replication_factor != -1:
            detail = f"replication_factor {asked.replication_factor}: must be 1 or more, or -1 for the default"
            raise Unprocessable(detail, code="invalid_replication_factor")
        if count < 1 and count != -1:
            detail = f"num_partitions {count}: must be 1 or more, or -1 for the default"
            raise Unprocessable(detail, code="partitions_out_of_range")
        return replace(wanted, partitions=(self._default_partitions or None) if count == -1 else count)

    async def delete(self, request: DeleteTopicsRequest, asker: Asker) -> DeleteTopicsResponse:
        """Delete topics with all that is stored of them."""
        called = request.topics or [DeletingTopic(name=name) for name in request.names]
        once, twice = _each_once(called, lambda one: (one.name, one.topic_id))
        return DeleteTopicsResponse(topics=[await self._deleted(one, asker, twice) for one in once])

    async def _deleted(self, called: DeletingTopic, asker: Asker, twice: Container[object]) -> DeletedTopic:
        name, wanted = called.name, called.topic_id
        try:
            _check_once((name, wanted), twice)
            if name is None and wanted == NO_TOPIC_ID:
                raise Refused("topics: give the name or the id of each")
            if name is None:
                name = await self._places.ids.name(wanted)
            elif wanted != NO_TOPIC_ID:
                raise Refused(f"topic {name}: give its name or its id, not both")
            asker.check(DeleteTopicsRequest, topic=name)
            topic = (await self._places.topic(name)).topic
            async with recorded(self._audit, asker, "topic", name, {}):
                await self._delete(name)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DeletedTopic(name=called.name, topic_id=wanted, error_code=code, error_message=detail)
        return DeletedTopic(name=name, topic_id=topic_id_of(topic), error_code=ErrorCode.NONE)

    async def grow(self, request: CreatePartitionsRequest, asker: Asker) -> CreatePartitionsResponse:
        """Add partitions to topics."""
        once, twice = _each_once(request.topics, lambda one: one.name)
        return CreatePartitionsResponse(
            results=[await self._grown(one, request.validate_only, asker, twice) for one in once]
        )

    async def _grown(
        self, asked: NewPartitions, validate_only: bool, asker: Asker, twice: Container[object]
    ) -> CreatePartitionsResult:
        try:
            _check_once(asked.name, twice)
            asker.check(CreatePartitionsRequest, topic=asked.name)
            topic = await self._places.topic(asked.name)
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
                self._places.check_assignment([one.broker_ids for one in asked.assignments])
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
    """Return what is asked without repeats, and the keys of what is asked twice: that is answered once, as refused."""
    counts = Counter(map(key, asked))
    first = {key(one): one for one in asked}
    return list(first.values()), {one for one, count in counts.items() if count > 1}


def _check_once(key: object, twice: Container[object]) -> None:
    if key in twice:
        raise Refused("topics: each may be in the request once")
