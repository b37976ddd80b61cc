"""Global topics: one static topic over several clusters; created, moved and settled by its home (SPEC STATIC-19).

    home    decide: queues move ---> all clusters adopt the copy ---> record where they ended ---> all adopt again
    others                           close the queues that leave: a new segment, a fence, a seal

Each step is one append to the metadata of one cluster, and may be repeated. A move that was cut short is finished by
the same remapping again, which first settles the moves under way.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from deltamq.api.host.clusters import Clusters
from deltamq.api.host.global_copies import ClusterCopy, ClusterState, GlobalCopies, global_path
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, json_of
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Unavailable, Unprocessable
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.global_topics import decide_create_global, decide_move, decide_settle, plan_move, require_world
from deltamq.mq.meta.static_topics import RemapMode, StaticRequest
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.wire.static_topics import FaultInfo
from deltamq.mq.wire.topics import TopicInfo
from deltamq.tables.failpoints import failpoint

log = logging.getLogger("deltamq.api")

#: Seconds to wait for another cluster's part of a view.
_LOOK_S: Final = 5.0


class MovedTo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that moves between clusters; `logic_offset` is None until its old stay has ended."""

    queue: int
    source: str
    target: str
    logic_offset: int | None = None


def refuse_global(topic: Topic, what: str) -> None:
    """Refuse a call that works only within one cluster, if the topic is global."""
    if topic.world is not None:
        raise Unprocessable(
            f"topic {topic.name} is global: {what} works only for topics of one cluster",
            code="global_unsupported",
            field="topic",
        )


class GlobalTopics:
    """Changes of global topics; used on the event loop."""

    def __init__(
        self, meta: HostedMeta, topics: Topics, clusters: Clusters, copies: GlobalCopies, *, now_ms: Callable[[], int]
    ) -> None:
        """`now_ms` is the clock for epochs."""
        self._meta = meta
        self._topics = topics
        self.clusters = clusters
        self.copies = copies
        self._now_ms = now_ms

    # Create and delete ------------------------------------------------------------------------------------------------

    async def create(
        self, name: str, request: StaticRequest, clusters: Sequence[str], permit: Callable[[bool], None]
    ) -> tuple[HostedTopic, bool]:
        """Create a global topic with its home here, and hand it to all its clusters; also finishes a creation.

        `permit` is called with whether the topic exists, and raises if the caller may not do that. Returns the topic,
        and True if it was created.
        """
        self.clusters.refuse_guarded(name)
        self.clusters.require(clusters)
        here, new_id, now_ms = self.clusters.here, str(uuid.uuid4()), self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            permit(name in meta.topics.topics)
            available = self._topics.available(meta, name)
            return decide_create_global(
                meta, name, request, clusters, available, here=here, new_id=new_id, now_ms=now_ms
            )

        present = self._topics.find(name)
        permit(present is not None)
        if present is None:
            for cluster in sorted(set(clusters) - {here}):
                await self._free(cluster, name)
        await self._meta.submit_any(decide)
        failpoint("global.after_create")
        hosted = await self._topics.require(name)
        await hosted.logs()
        world = require_world(hosted.topic)
        if world.home != here:
            raise Conflict(f"topic {name} has its home in cluster {world.home}", code="topic_exists", field="topic")
        await self.copies.hold(hosted)
        created = world.id == new_id
        log.info("event=global_topic_put topic=%r created=%s queues=%d", name, created, request.total_queues)
        return hosted, created

    async def _free(self, cluster: str, name: str) -> None:
        """Raise unless another cluster can be reached and has no topic of this name."""
        answer = await self.clusters.ask(cluster, Call("GET", global_path(name, "/global"), (), b""))
        if answer.status not in (200, NotFound.status, Conflict.status):  # a conflict: its topic is not global
            raise Relayed.of(answer)
        if answer.status != NotFound.status:
            raise Conflict(
                f"cluster {cluster} has a topic {name} already; delete it there, or take another name",
                code="topic_exists",
                field="topic",
                extra={"cluster": cluster},
            )

    async def delete_elsewhere(self, topic: Topic) -> None:
        """Delete a global topic in all other clusters, before it is deleted at home."""
        world = require_world(topic)
        if world.home != self.clusters.here:
            raise Conflict(
                f"topic {topic.name} has its home in cluster {world.home}: delete it there",
                code="global_home",
                field="topic",
                extra={"cluster": world.home},
            )
        others = [cluster for cluster in world.clusters if cluster != self.clusters.here]
        for cluster in others:  # all must answer before one deletes anything
            await self.clusters.ask(cluster, Call("GET", global_path(topic.name, "/global"), (), b""))
        for cluster in others:
            answer = await self.clusters.ask(cluster, Call("DELETE", global_path(topic.name), (), b""))
            if answer.status not in (204, 404):
                raise Conflict(
                    f"cluster {cluster} does not delete topic {topic.name}; ask again", code="cluster_refused"
                )

    # Remap ------------------------------------------------------------------------------------------------------------

    async def plan_remap(self, name: str, clusters: Sequence[str], queues: Collection[int] | None) -> list[MovedTo]:
        """Return what `remap` would move; change nothing."""
        self.clusters.refuse_guarded(name)
        await self._meta.refresh()
        topic = (await self._topics.require(name)).topic
        leaders, targets = require_world(topic).leaders(), plan_move(topic, clusters, queues)
        return [MovedTo(queue=index, source=leaders[index], target=targets[index]) for index in sorted(targets)]

    async def remap(
        self, name: str, clusters: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> list[MovedTo]:
        """Move queues so that all messages go to `clusters`, evenly; with `queues` only these.

        All clusters of the topic must be there (SPEC STATIC-23). A move that was cut short is finished first.

        Raises
        ------
        Conflict
            `remap_in_progress`: its old cluster has not closed a queue yet; the same remapping again finishes it.
        """
        self.clusters.refuse_guarded(name)
        hosted = await self._topics.require(name)
        moved = [*await self._settle(hosted)]
        epoch, states = self.copies.world(hosted).epoch, await self.copies.hand_out(hosted)
        planned = await self.plan_remap(name, clusters, queues)
        if not planned:
            return moved
        targets = {move.queue: move.target for move in planned}
        starts = _starts(name, targets, states)
        decide = partial(
            decide_move,
            name=name,
            targets=targets,
            starts=starts,
            epoch=epoch,
            now_ms=self._now_ms(),
            at_once=mode == "available",
        )
        await self._meta.submit_any(decide)
        failpoint("global.after_move")
        moved += await self._settle(hosted)
        log.info("event=global_topic_remapped topic=%r mode=%s queues=%d", name, mode, len(planned))
        return moved

    async def _settle(self, hosted: HostedTopic) -> list[MovedTo]:
        """Finish moves: let the old clusters close the queues, record their ends, and hand out the copy."""
        await self._meta.refresh()
        world = require_world(self._topics.state.topic(hosted.name))
        moving = world.moving
        if not moving:
            return []
        states = await self.copies.hand_out(hosted, first={target for _, target in moving.values()})
        ends = {index: states[old].ends[index] for index, (old, _) in moving.items() if index in states[old].ends}
        if len(ends) < len(moving):
            index = min(moving.keys() - ends.keys())
            raise Conflict(
                f"topic {hosted.name}: queue {index} is not closed yet in cluster {moving[index][0]}; ask again",
                code="remap_in_progress",
            )
        await self._meta.submit_any(
            partial(decide_settle, name=hosted.name, ends=ends, epoch=world.epoch, now_ms=self._now_ms())
        )
        failpoint("global.after_settle")
        await self.copies.hand_out(hosted)
        settled = require_world(self._topics.state.topic(hosted.name))
        return [
            MovedTo(queue=index, source=old, target=new, logic_offset=settled.queues[index][-1].logic_offset)
            for index, (old, new) in sorted(moving.items())
        ]

    # Check ------------------------------------------------------------------------------------------------------------

    async def faults(self, topic: Topic) -> list[FaultInfo]:
        """Return the faults that keep the clusters' copies from being whole and of one epoch."""
        world = require_world(topic)
        faults = [FaultInfo(kind="between", detail=detail) for detail in world.faults()]
        for cluster in world.clusters:
            detail = None if cluster == self.clusters.here else await self._fault_of(cluster, topic.name, world)
            if detail is not None:
                faults.append(FaultInfo(kind="between", detail=detail))
        for index, (old, new) in world.moving.items():
            detail = f"queue {index} moves from cluster {old} to {new}, where its beginning is not decided yet"
            faults.append(FaultInfo(kind="between", queue=index, detail=detail))
        return faults

    async def views(self, topic: Topic, principal: str) -> list[TopicInfo | None]:
        """Return how each other cluster shows its part of the topic to a principal; None for one that is away."""
        world = require_world(topic)
        call = Call("GET", global_path(topic.name), (), b"", timeout_s=_LOOK_S, principal=principal)
        others = [cluster for cluster in world.clusters if cluster != self.clusters.here]
        asked = [self.clusters.ask_body(cluster, call, epoch=world.epoch) for cluster in others]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [None if isinstance(answer, BaseException) else _topic_of(answer) for answer in answers]

    async def _fault_of(self, cluster: str, name: str, world: GlobalQueues) -> str | None:
        try:
            body = await self.clusters.ask_body(cluster, Call("GET", global_path(name, "/global"), (), b""))
            state = json_of(body, ClusterCopy).state
        except DeltaMQError as error:
            return f"no copy of cluster {cluster} can be read: {error.detail}"
        if state.id != world.id:
            return f"cluster {cluster} has another topic of this name"
        if state.epoch != world.epoch:
            return f"cluster {cluster} has the copy of epoch {state.epoch}, cluster {world.here} of {world.epoch}"
        return None

    async def repair(self, name: str) -> None:
        """Finish moves, and hand the home's copy to all clusters that have an older one."""
        hosted = await self._topics.require(name)
        world = require_world(hosted.topic)
        if world.home != self.clusters.here:
            await self.copies.catch_up(name)
            return
        await self._settle(hosted)
        await self.copies.hold(hosted)


def _topic_of(body: bytes) -> TopicInfo | None:
    """Return how a cluster shows a topic; None if it is no answer of a cluster."""
    try:
        return json_of(body, TopicInfo)
    except Unavailable:
        return None


def _starts(name: str, targets: Mapping[int, str], states: Mapping[str, ClusterState]) -> dict[int, int]:
    starts: dict[int, int] = {}
    for index, cluster in targets.items():
        end = states[cluster].ends.get(index)
        if end is None:
            raise Conflict(
                f"topic {name}: the end of queue {index} in cluster {cluster} is not known yet; ask again",
                code="remap_in_progress",
            )
        starts[index] = end
    return starts
