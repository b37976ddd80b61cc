"""Topics, groups and the cluster over REST, as typed values; access to brokers and partitions, too (SPEC ROUTE-9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from deltamq.mq.client.admin.auth_admin import AuditAdmin, AuthAdmin
from deltamq.mq.client.admin.group_admin import GroupAdmin
from deltamq.mq.client.admin.inspection_admin import InspectionAdmin
from deltamq.mq.client.admin.schema_admin import SchemaAdmin, TopicSchema, schema_put
from deltamq.mq.client.admin.topic_admin import StaticAdmin
from deltamq.mq.client.http.calls import Calls, read_answer, time_text
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import Awaiting, Blocking, both
from deltamq.mq.errors import DeltaMQError, NotFound, Unknown
from deltamq.mq.meta.desired import Desired
from deltamq.mq.names import check_broker, check_client_topic, check_topic
from deltamq.mq.wire.answers import AccessInfo
from deltamq.mq.wire.cluster import (
    AppliedAnswer,
    ClusterInfo,
    ExportInfo,
    ExportList,
    JobList,
    LogLevelInfo,
    SettingInfo,
    SettingList,
    UpgradeInfo,
)
from deltamq.mq.wire.schemas import SchemaPut
from deltamq.mq.wire.stored import EraseRequest, ErasureAsked, ErasureInfo
from deltamq.mq.wire.topics import OffsetsByTime, RetentionInfo, TopicInfo, TopicList


class AccessAdmin(Calls):
    """The part of `Admin` for access."""

    @both
    async def set_broker_access(
        self,
        broker: str,
        *,
        readable: bool = True,
        writable: bool = True,
        reason: str = "",
        until: datetime | None = None,
    ) -> AccessInfo:
        """Set what is allowed at a broker; what is left out is allowed.

        Without `writable`, its partitions get no messages: messages of `best_tried` topics go elsewhere, keyed ones
        of `strict` topics and messages of logical queues wait. Without `readable`, nothing is read from it. Stored
        messages stay. With `until`, everything is allowed again from then on.
        """
        return await self._set_access(path_of("brokers", check_broker(broker)), readable, writable, reason, until)

    @both
    async def set_partition_access(
        self,
        topic: str,
        partition: str,
        *,
        readable: bool = True,
        writable: bool = True,
        reason: str = "",
        until: datetime | None = None,
    ) -> AccessInfo:
        """Set what is allowed at a physical partition; return what it and its broker both allow."""
        path = path_of("topics", check_topic(topic), "partitions", partition)
        return await self._set_access(path, readable, writable, reason, until)

    async def _set_access(
        self, path: str, readable: bool, writable: bool, reason: str, until: datetime | None
    ) -> AccessInfo:
        wanted = {"readable": readable, "writable": writable, "reason": reason}
        body = msgspec.json.encode(wanted if until is None else {**wanted, "until": time_text(until, "until")})
        return read_answer(await self._call("PUT", path, body=body), AccessInfo)


_CREATED: Final = 201


class AdminCalls(GroupAdmin, StaticAdmin, AccessAdmin, AuthAdmin, AuditAdmin, InspectionAdmin, SchemaAdmin):
    """The calls of `Admin` and `AsyncAdmin`."""

    # Topics -----------------------------------------------------------------------------------------------------

    @both
    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        routes: Sequence[str] | None = None,
        order_strategy: Literal["best_tried", "strict"] | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_type: str | None = None,
        flush: Literal["sync", "async"] | None = None,
        commit_window_ms: int | None = None,
        partitioner: Literal["lp", "kafka"] | None = None,
        schema: TopicSchema | type | None = None,
    ) -> TopicInfo:
        """Create a topic, or update an existing one; a setting left out keeps its value, or gets its default.

        `routes` gives all partitions by hand, `NAME@BROKER`, in route order; in an existing topic the present ones
        come first. Messages are kept for `retention_ms`; with `retention_bytes` older ones also go while each partition
        keeps so many bytes (-1 for no limit). `partitioner` is the hash that maps keys to partitions: `lp` (Spark
        SQL's, the default) or `kafka` (the one of Kafka's clients); a topic keeps its first one. With
        `commit_window_ms` (0 to 60,000) messages wait up to so long for others that share their commit: fewer and
        larger commits, later answers. With `schema` (`TopicSchema`, or a dataclass, TypedDict or msgspec Struct) the
        fields of a message are columns of the partitions' tables.
        """
        made = await AdminCalls.put_topic.core(
            self,
            topic,
            partitions=partitions,
            routes=routes,
            order_strategy=order_strategy,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            message_type=message_type,
            flush=flush,
            commit_window_ms=commit_window_ms,
            partitioner=partitioner,
            schema=None if schema is None else schema_put(schema),
        )
        return made[0]

    @both
    async def put_topic(
        self, topic: str, /, **settings: str | int | Sequence[str] | SchemaPut | None
    ) -> tuple[TopicInfo, bool]:
        """Create or update as `create_topic` does, and also return whether the topic is new."""
        body = msgspec.json.encode({name: value for name, value in settings.items() if value is not None})
        answer = await self._call("PUT", path_of("topics", check_client_topic(topic)), body=body)
        return read_answer(answer, TopicInfo), answer.status == _CREATED

    @both
    async def retention(
        self, topic: str, *, retention_ms: int | None = None, retention_bytes: int | None = None
    ) -> RetentionInfo:
        """Return what retention takes next of each partition, when, why, and who holds messages back.

        With `retention_ms` or `retention_bytes`, return what it would take if the topic had these.
        """
        wanted = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        query = {name: str(value) for name, value in wanted.items() if value is not None}
        path = path_of("topics", check_topic(topic), "retention")
        return read_answer(await self._call("GET", path, query=query), RetentionInfo)

    @both
    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted; they are fetched in pages, so that no answer is large."""
        return [topic async for topic in self._rows(["topics"], TopicList, lambda page: page.topics)]

    @both
    async def get_topic(self, topic: str) -> TopicInfo:
        """Return one topic; raises `NotFound`."""
        return read_answer(await self._call("GET", path_of("topics", check_topic(topic))), TopicInfo)

    @both
    async def delete_topic(self, topic: str) -> None:
        """Remove topic, routes and data; raises `NotFound` when there is no such topic.

        If an answer was lost and the retry finds no topic, the topic counts as deleted.
        """
        await self._end(path_of("topics", check_client_topic(topic)), NotFound)

    @both
    async def erase(self, topic: str, keys: Sequence[str]) -> str:
        """Ask to erase what messages of these keys say, in the topic and its copies; return the request's id.

        The job `erase` does it; `erasure` shows how far it is. Messages that are sent later stay.
        """
        body = msgspec.json.encode(EraseRequest(keys=list(keys)))
        answer = await self._call("POST", path_of("topics", check_client_topic(topic), "erase"), body=body)
        return read_answer(answer, ErasureAsked).erasure

    @both
    async def erasure(self, erasure: str) -> ErasureInfo:
        """Return how far a request to erase is, or its receipt; raises `NotFound`."""
        return read_answer(await self._call("GET", path_of("erasures", erasure)), ErasureInfo)

    @both
    async def offsets_at(self, topic: str, moment: datetime) -> dict[str, int]:
        """Return for each partition the first offset appended at or after `moment`, or the end offset if none was.

        For a static topic, these are logical offsets by logical queue.
        """
        query = {"time": time_text(moment)}
        answer = await self._call("GET", path_of("topics", check_topic(topic), "offsets"), query=query)
        return {o.partition: o.offset for o in read_answer(answer, OffsetsByTime).offsets}

    # The service ------------------------------------------------------------------------------------------------

    @both
    async def cluster(self) -> ClusterInfo:
        """Return the brokers, the service processes and the warehouse."""
        return read_answer(await self._call("GET", path_of("cluster")), ClusterInfo)

    @both
    async def jobs(self) -> JobList:
        """Return the jobs of the warehouse, each with its last run and its shards."""
        return read_answer(await self._call("GET", path_of("jobs")), JobList)

    @both
    async def exports(self, topic: str | None = None) -> list[ExportInfo]:
        """Return the exports of topics to typed tables, of all topics or of one, and how far each is."""
        query = {} if topic is None else {"topic": check_topic(topic)}
        return list(read_answer(await self._call("GET", path_of("exports"), query=query), ExportList).exports)

    @both
    async def applied(self) -> AppliedAnswer:
        """Return what differs from what `deltamq apply` brought the warehouse to last."""
        return read_answer(await self._call("GET", path_of("applied")), AppliedAnswer)

    @both
    async def record_applied(self, desired: Desired, *, replace: bool = False) -> AppliedAnswer:
        """Record what was applied, beside what was before unless `replace`; return what differs from all of it."""
        query = {"replace": "true"} if replace else {}
        body = msgspec.json.encode(desired)
        return read_answer(await self._call("PUT", path_of("applied"), query=query, body=body), AppliedAnswer)

    @both
    async def settings(self) -> list[SettingInfo]:
        """Return the settings of the process that answers; secrets are hidden."""
        return list(read_answer(await self._call("GET", path_of("settings")), SettingList).settings)

    @both
    async def set_log_level(
        self, level: Literal["debug", "info", "warning", "error"], *, logger: str = "deltamq"
    ) -> LogLevelInfo:
        """Change what the process that answers logs, until it ends: of this logger and those below it."""
        body = msgspec.json.encode({"level": level, "logger": logger})
        return read_answer(await self._call("PUT", path_of("log-level"), body=body), LogLevelInfo)

    @both
    async def upgrade_state(self) -> UpgradeInfo:
        """Return the features that are on, ready to be switched on, or waiting for processes of older releases."""
        return read_answer(await self._call("GET", path_of("cluster", "upgrade")), UpgradeInfo)

    @both
    async def switch_on_features(self) -> UpgradeInfo:
        """Switch on every feature that all processes know, and return what is on then (SPEC META-5)."""
        return read_answer(await self._call("POST", path_of("cluster", "upgrade")), UpgradeInfo)

    @both
    async def unready(self) -> str | None:
        """Return why the service is not ready, as while it starts or stops; None if it is. Raises when it is away."""
        timeout_s = self.patience.request_timeout_s
        await self.hosts.call("GET", "/healthz", timeout_s=timeout_s)
        try:
            await self.hosts.call("GET", "/readyz", timeout_s=timeout_s)
        except DeltaMQError as error:
            if error.status == 503 and not isinstance(error, Unknown):
                return error.detail
            raise
        return None


class Admin(AdminCalls, Blocking):
    """Manage topics, groups and dead letters. Every call is retried while the service is away, within `patience`.

    Parameters
    ----------
    url
        The service, `http://HOST:PORT`.
    access
        How the service is reached, for example `token`; see `Calls`.
    """


class AsyncAdmin(AdminCalls, Awaiting):
    """`Admin` for an event loop: the same calls, awaited; what yields rows is read with `async for`."""
