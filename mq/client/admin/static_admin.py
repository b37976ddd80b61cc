"""Static topics over REST, as typed values: create and grow, remap, check, repair (SPEC STATIC-5, 7 to 9, 23)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from deltamq.mq.client.admin.topic_info import TopicInfo, topic_info
from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.http.endpoint import Answer, path_of
from deltamq.mq.names import check_client_topic

_CREATED: Final = 201

#: `strict`: close the old leader of a queue, then open the new one; a short stop and no hole. `available`: the new one
#: takes messages at once; no stop, and a hole in the logical offsets.
RemapMode: TypeAlias = Literal["strict", "available"]


class MovedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A logical queue that moved, or would move, from one broker to another.

    `end_offset` is the physical offset at which its old partition was sealed, `logic_offset` the logical one at which
    the new partition begins; both are None in a plan and until the old partition is sealed. Between clusters, `source`
    and `target` are clusters, and no partitions are named.
    """

    queue: int
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    old_partition: str | None = None
    new_partition: str | None = None
    end_offset: int | None = None
    logic_offset: int | None = None


class Remapping(msgspec.Struct, frozen=True, kw_only=True):
    """What a remapping moved, or, as a `plan`, would move; `seal_ms` is how long one of the queues waited
    for its seal at most.
    """

    topic: str
    plan: bool
    mode: RemapMode
    moved: tuple[MovedQueue, ...]
    seal_ms: float | None = None


class FaultInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing or torn in the mappings; `broker` and `queue` are None if it is in no single one of them."""

    kind: str
    broker: str | None = None
    queue: int | None = None
    detail: str


class MappingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The mapping that one broker stores: how many queues it leads, and of how many it keeps a copy."""

    broker: str
    epoch: int
    total_queues: int
    hosted: int
    copies: int


class TopicCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the mappings of a static topic are complete, with all their faults."""

    topic: str
    epoch: int
    total_queues: int
    complete: bool
    faults: tuple[FaultInfo, ...] = ()
    mappings: tuple[MappingInfo, ...] = ()


class TopicRepair(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that a repair found, and the brokers whose mappings it wrote, or, as a `plan`, would write."""

    topic: str
    plan: bool
    faults: tuple[FaultInfo, ...] = ()
    repaired: tuple[str, ...] = ()


class StaticAdmin(Calls):
    """The part of `Admin` that manages static topics."""

    def create_static_topic(
        self,
        topic: str,
        total_queues: int,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        order_strategy: Literal["best_tried", "strict"] | None = None,
        retention_ms: int | None = None,
        message_type: str | None = None,
        flush: Literal["sync", "async"] | None = None,
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
        return self.put_static_topic(
            topic,
            total_queues,
            brokers=brokers,
            clusters=clusters,
            order_strategy=order_strategy,
            retention_ms=retention_ms,
            message_type=message_type,
            flush=flush,
        )[0]

    def put_static_topic(
        self,
        topic: str,
        total_queues: int,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        **settings: str | int | None,
    ) -> tuple[TopicInfo, bool]:
        """Do the same as `create_static_topic`, and also return whether the topic is new."""
        request: dict[str, object] = {"static": True, "total_queues": total_queues}
        if brokers is not None:
            request["brokers"] = list(brokers)
        if clusters is not None:
            request |= {"scope": "global", "clusters": list(clusters)}
        request |= {name: value for name, value in settings.items() if value is not None}
        answer = self._call("PUT", path_of("topics", check_client_topic(topic)), body=msgspec.json.encode(request))
        return topic_info(answer.body), answer.status == _CREATED

    def remap(
        self,
        topic: str,
        brokers: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move logical queues so that `brokers` lead them, evenly; nothing moves that need not.

        A repeated remapping moves nothing and finishes what was cut short. So, if an answer is lost, the one to the
        retry may name no queues although some have moved.

        Parameters
        ----------
        mode
            See `RemapMode`.
        queues
            Only these may move; by default all.
        plan
            Only tell what would move.
        """
        return self._remap(topic, {"brokers": list(brokers), "mode": mode}, queues, plan=plan)

    def remap_clusters(
        self,
        topic: str,
        clusters: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move queues of a global topic so that `clusters` take all messages, evenly; else as `remap` (STATIC-19)."""
        return self._remap(topic, {"clusters": list(clusters), "mode": mode}, queues, plan=plan)

    def _remap(
        self, topic: str, request: dict[str, object], queues: Collection[int] | None, *, plan: bool
    ) -> Remapping:
        if queues is not None:
            request["queues"] = sorted(queues)
        if plan:
            request["plan"] = True
        return read_answer(self._topic_call(topic, "remap", request), Remapping)

    def check_topic(self, topic: str) -> TopicCheck:
        """Return whether all mappings of a static topic are there, of one epoch and whole; names every fault."""
        return read_answer(self._topic_call(topic, "check", {}), TopicCheck)

    def repair_topic(self, topic: str, *, plan: bool = False) -> TopicRepair:
        """Write the mappings anew from the copies that survive, if the check finds faults; a `plan` writes nothing.

        If an answer is lost, the one to the retry finds nothing to repair.
        """
        return read_answer(self._topic_call(topic, "repair", {"plan": True} if plan else {}), TopicRepair)

    def _topic_call(self, topic: str, verb: str, request: Mapping[str, object]) -> Answer:
        path = path_of("topics", check_client_topic(topic), verb)
        return self._call("POST", path, body=msgspec.json.encode(request))
