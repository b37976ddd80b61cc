"""The calls of static topics: create, grow, remap, check, repair (SPEC STATIC-5, STATIC-7 to STATIC-9, STATIC-23)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec

from deltamq.mq.client.admin.schema_admin import TopicSchema, schema_put
from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.client.shells.shell import Answer
from deltamq.mq.names import check_client_topic
from deltamq.mq.wire.schemas import SchemaPut
from deltamq.mq.wire.static_topics import RemapMode, Remapping, TopicCheck, TopicRepair
from deltamq.mq.wire.topics import TopicInfo

_CREATED: Final = 201


class StaticAdmin(Calls):
    """The part of `Admin` that manages static topics."""

    @both
    async def create_static_topic(
        self,
        topic: str,
        total_queues: int,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        order_strategy: Literal["best_tried", "strict"] | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_type: str | None = None,
        flush: Literal["sync", "async"] | None = None,
        commit_window_ms: int | None = None,
        schema: TopicSchema | type | None = None,
    ) -> TopicInfo:
        """Create a static topic of `total_queues` logical queues, or add queues to one, or change its settings.

        Parameters
        ----------
        total_queues
            The number of logical queues; it can only grow. Settings change only together with it (STATIC-23).
        brokers
            The brokers that get the new queues, evenly; by default those that lead queues now, or all.
        clusters
            The clusters that get the queues, evenly: the topic is global then, and has no brokers to name (STATIC-19).
        """
        made = await StaticAdmin.put_static_topic.core(
            self,
            topic,
            total_queues,
            brokers=brokers,
            clusters=clusters,
            order_strategy=order_strategy,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            message_type=message_type,
            flush=flush,
            commit_window_ms=commit_window_ms,
            schema=None if schema is None else schema_put(schema),
        )
        return made[0]

    @both
    async def put_static_topic(
        self,
        topic: str,
        total_queues: int,
        /,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        **settings: str | int | SchemaPut | None,
    ) -> tuple[TopicInfo, bool]:
        """Create or update as `create_static_topic` does, and also return whether the topic is new."""
        request: dict[str, object] = {"static": True, "total_queues": total_queues}
        if brokers is not None:
            request["brokers"] = list(brokers)
        if clusters is not None:
            request |= {"scope": "global", "clusters": list(clusters)}
        request |= {name: value for name, value in settings.items() if value is not None}
        answer = await self._call(
            "PUT", path_of("topics", check_client_topic(topic)), body=msgspec.json.encode(request)
        )
        return read_answer(answer, TopicInfo), answer.status == _CREATED

    @both
    async def remap(
        self,
        topic: str,
        brokers: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move logical queues so that `brokers` lead them, evenly; nothing moves that need not.

        A repeated remapping moves nothing and finishes what was cut short. So after a lost answer, the retry may
        report no queues although some have moved.

        Parameters
        ----------
        mode
            See `RemapMode`.
        queues
            Only these may move; by default all.
        plan
            Only report what would move.
        """
        return await self._remap(topic, {"brokers": list(brokers), "mode": mode}, queues, plan=plan)

    @both
    async def remap_clusters(
        self,
        topic: str,
        clusters: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move queues of a global topic so that `clusters` take all messages, evenly; else as `remap` (STATIC-19)."""
        return await self._remap(topic, {"clusters": list(clusters), "mode": mode}, queues, plan=plan)

    async def _remap(
        self, topic: str, request: dict[str, object], queues: Collection[int] | None, *, plan: bool
    ) -> Remapping:
        if queues is not None:
            request["queues"] = sorted(queues)
        if plan:
            request["plan"] = True
        return read_answer(await self._topic_call(topic, "remap", request), Remapping)

    @both
    async def check_topic(self, topic: str) -> TopicCheck:
        """Return whether all mappings of a static topic exist, are whole and have one epoch; names every fault."""
        return read_answer(await self._topic_call(topic, "check", {}), TopicCheck)

    @both
    async def repair_topic(self, topic: str, *, plan: bool = False) -> TopicRepair:
        """Rewrite the mappings from the copies that survive, if the check finds faults; a `plan` writes nothing.

        After a lost answer, the retry finds nothing to repair.
        """
        return read_answer(await self._topic_call(topic, "repair", {"plan": True} if plan else {}), TopicRepair)

    async def _topic_call(self, topic: str, verb: str, request: Mapping[str, object]) -> Answer:
        path = path_of("topics", check_client_topic(topic), verb)
        return await self._call("POST", path, body=msgspec.json.encode(request))
