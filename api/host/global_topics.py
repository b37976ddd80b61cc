"""Global topics: one static topic over several clusters; created, moved and settled by its home (SPEC STATIC-19).

    home    decide: queues move ---> all clusters adopt the copy ---> record where they ended ---> all adopt again
    others                           close the queues that leave: a new segment, a fence, a seal

Each step is one append to the metadata of one cluster, and each can be repeated. A move that was cut short is finished
by the same remapping again; it first settles what still moves. A cluster that missed a copy reads it from the home:
when another cluster forwards a call by a newer one, and every `clusters_refresh_ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from api.host.clusters import Clusters
from api.host.hosted_meta import HostedMeta
from api.host.hosted_topic import HostedTopic, Topics
from api.host.owners import Relayed
from api.host.peers import Call
from api.host.sealing import Sealer
from mq.errors import Conflict, DeltaMQError, NotFound, Unavailable, Unprocessable
from mq.meta import (
    AnyEvent,
    GlobalCopy,
    Meta,
    RemapMode,
    StaticRequest,
    Topic,
    closed_ends,
    decide_adopt,
    decide_create_global,
    decide_held,
    decide_move,
    decide_settle,
    plan_move,
    require_world,
)
from mq.static import GlobalQueues, MappingFault
from tables.failpoints import failpoint

__all__ = ["ClusterState", "GlobalTopics", "MovedTo", "RememberedNumbers", "refuse_global"]

log = logging.getLogger("deltamq.api")

#: Seconds to wait for another cluster's part of what is shown.
_LOOK_S: Final = 5.0
_JSON: Final = [(b"content-type", b"application/json")]


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster tells of its part of a global topic."""

    cluster: str
    id: str
    epoch: int
    #: The local ends of the queues that take no messages there, by queue; those not sealed yet are left out.
    ends: dict[int, int]


class RememberedNumbers(msgspec.Struct):
    """The numbers of one producer's requests that a cluster remembers."""

    numbers: list[int]


class _Told(msgspec.Struct):
    held: GlobalCopy
    state: ClusterState


_STATE: Final = msgspec.json.Decoder(ClusterState)
_TOLD: Final = msgspec.json.Decoder(_Told)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTo:
    """A queue that moves between clusters; `logic_offset` is None until its old stay has ended."""

    queue: int
    source: str
    target: str
    logic_offset: int | None = None


def refuse_global(topic: Topic, what: str) -> None:
    """Refuse a call that works within one cluster alone, if the topic is global."""
    if topic.world is not None:
        raise Unprocessable(
            f"topic {topic.name} is global: {what} works for topics of one cluster alone",
            code="global_unsupported",
            field="topic",
        )


class GlobalTopics:
    """Changes of global topics; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        topics: Topics,
        sealer: Sealer,
        clusters: Clusters,
        *,
        refresh_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        """Copies are compared with the homes' every `refresh_s`; `now_ms` is the clock for epochs."""
        self._meta = meta
        self._topics = topics
        self._sealer = sealer
        self.clusters = clusters
        self._refresh_s = refresh_s
        self._now_ms = now_ms
        self._timer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the homes of this cluster's copies."""
        if len(self.clusters.names) > 1 and not self.clusters.is_guarded:
            self._timer = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timer

    # Create and delete ------------------------------------------------------------------------------------------------

    async def create(self, name: str, request: StaticRequest, clusters: Sequence[str]) -> tuple[HostedTopic, bool]:
        """Create a global topic with its home here, and hand it to all its clusters; also finishes a creation.

        Returns the topic, and True if it was created.
        """
        self.clusters.refuse_guarded(name)
        self.clusters.require(clusters)
        here, new_id, now_ms = self.clusters.here, str(uuid.uuid4()), self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            available = self._topics.available(meta, name)
            return decide_create_global(
                meta, name, request, clusters, available, here=here, new_id=new_id, now_ms=now_ms
            )

        present = self._topics.find(name)
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
        await self._hold(hosted)
        created = world.id == new_id
        log.info("event=global_topic_put topic=%r created=%s queues=%d", name, created, request.total_queues)
        return hosted, created

    async def _hold(self, hosted: HostedTopic) -> None:
        """Let all clusters have a copy, and record that they have."""
        world = self.world(hosted)
        await self._hand_out(hosted)
        if world.held_by != world.clusters:
            now_ms = self._now_ms()
            await self._meta.submit_any(partial(decide_held, name=hosted.name, epoch=world.epoch, now_ms=now_ms))
            failpoint("global.after_held")
            await self._hand_out(hosted)

    async def _free(self, cluster: str, name: str) -> None:
        """Return if another cluster can be reached and has no topic of the name."""
        answer = await self.clusters.ask(cluster, Call("GET", _path(name), (), b""))
        if answer.status not in (200, NotFound.status):
            raise Relayed.of(answer)
        if answer.status == 200:
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
        others = [one for one in world.clusters if one != self.clusters.here]
        for cluster in others:  # each must be there before one deletes anything
            await self.clusters.ask(cluster, Call("GET", _path(topic.name, "/global"), (), b""))
        for cluster in others:
            answer = await self.clusters.ask(cluster, Call("DELETE", _path(topic.name), (), b""))
            if answer.status not in (204, 404):
                raise Conflict(
                    f"cluster {cluster} does not delete topic {topic.name}; ask again", code="cluster_refused"
                )

    # Copies -----------------------------------------------------------------------------------------------------------

    async def adopt(self, name: str, copy: GlobalCopy) -> ClusterState:
        """Take over a copy if it is newer, close the queues that leave, and return the state after that."""
        self.clusters.refuse_guarded(name)
        here = self.clusters.here
        if here not in copy.world.clusters:
            raise Unprocessable(
                f"this is cluster {here}, and topic {name} covers {', '.join(copy.world.clusters)}",
                code="unknown_cluster",
                field="world",
            )
        mine = GlobalCopy(world=copy.world.at(here), settings=copy.settings)
        new_id, now_ms = str(uuid.uuid4()), self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            return decide_adopt(meta, name, mine, self._topics.available(meta, name), new_id=new_id, now_ms=now_ms)

        await self._meta.submit_any(decide)
        failpoint("global.after_adopt")
        hosted = await self._topics.require(name)
        await self._sealer.seal(hosted)
        return self.state(hosted.topic)

    def state(self, topic: Topic) -> ClusterState:
        """Return what this cluster tells of its part of the topic."""
        present = self._topics.state.topics.get(topic.name, topic)
        world = require_world(present)
        ends = closed_ends(self._meta.now, present)
        return ClusterState(cluster=self.clusters.here, id=world.id, epoch=world.epoch, ends=ends)

    async def told(self, name: str) -> bytes:
        """Return copy and state of this cluster as another one reads them."""
        self.clusters.refuse_guarded(name)
        await self._meta.refresh()
        topic = (await self._topics.require(name)).topic
        copy = GlobalCopy(world=require_world(topic), settings=topic.settings)
        return msgspec.json.encode(_Told(copy, self.state(topic)))

    async def catch_up(self, name: str, epoch: int = 0) -> GlobalQueues:
        """Return the topic's newest copy: that of this cluster's metadata, or the home's if that is older than `epoch`.

        Without an epoch the home is asked in any case.

        Raises
        ------
        Unavailable
            The home cannot be reached.
        """
        await self._meta.refresh()
        world = require_world((await self._topics.require(name)).topic)
        if world.home != self.clusters.here and (not epoch or world.epoch < epoch):
            body = await self.clusters.told(world.home, Call("GET", _path(name, "/global"), (), b""), epoch=world.epoch)
            await self.adopt(name, _TOLD.decode(body).held)
        return require_world((await self._topics.require(name)).topic)

    async def caught_up(self, name: str, epoch: int = 0) -> None:
        """Bring the copy up to `epoch`, as far as the metadata here does not have it; 0: look whether there is a newer.

        A home that cannot be reached does not stop what the copy here allows.
        """
        topic = self._topics.find(name)
        world = None if topic is None else topic.topic.world
        if world is None or not epoch or world.epoch < epoch:
            with contextlib.suppress(Unavailable):
                await self.catch_up(name, epoch)

    def world(self, hosted: HostedTopic) -> GlobalQueues:
        """Return where the topic's queues are now, as far as this process knows."""
        self._topics.find(hosted.name)
        return require_world(hosted.topic)

    def time(self) -> float:
        """Return the event loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def wait(self, seconds: float) -> None:
        """Return after some seconds."""
        await asyncio.sleep(seconds)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            shared = [topic for topic in self._topics.state.topics.values() if topic.world is not None]
            for topic in shared:
                try:
                    await self._follow(topic)
                except DeltaMQError as error:
                    log.warning(
                        "event=global_copy_failed topic=%r code=%s detail=%r", topic.name, error.code, error.detail
                    )

    async def _follow(self, topic: Topic) -> None:
        """Compare a copy with the home's; at home, hand out what some cluster has never got."""
        world = require_world(topic)
        if world.home != self.clusters.here:
            await self.catch_up(topic.name)
        elif world.held_by != world.clusters:
            await self._hold(await self._topics.require(topic.name))

    async def _hand_out(self, hosted: HostedTopic, *, first: Collection[str] = ()) -> dict[str, ClusterState]:
        """Let all clusters adopt the home's copy, those in `first` before the others; return their states.

        Raises
        ------
        Unavailable
            A cluster cannot be reached; those before it have adopted the copy.
        """
        topic = self._topics.state.topics.get(hosted.name, hosted.topic)
        copy = GlobalCopy(world=require_world(topic), settings=topic.settings)
        states: dict[str, ClusterState] = {}
        body = msgspec.json.encode(copy)
        others = [one for one in copy.world.clusters if one != self.clusters.here]
        for cluster in sorted(others, key=lambda one: one not in first):
            call = Call("PUT", _path(hosted.name, "/global"), _JSON, body)
            state = states[cluster] = _STATE.decode(await self.clusters.told(cluster, call))
            if state.epoch > copy.world.epoch:
                raise Conflict(
                    f"topic {hosted.name}: cluster {cluster} has a newer copy than its home; ask again",
                    code="remap_in_progress",
                    extra={"cluster": cluster},
                )
            failpoint("global.after_hand_out")
        await self._sealer.seal(hosted)
        return {**states, self.clusters.here: self.state(topic)}

    async def remembered(self, name: str, producer_id: str, epoch: int) -> RememberedNumbers:
        """Return the numbers of a producer's requests that are stored here, for a cluster that has a queue now.

        Raises
        ------
        Unavailable
            `logic_offset_undecided`: a queue that has left is not sealed yet.
        """
        self.clusters.refuse_guarded(name)
        await self.catch_up(name, epoch)
        hosted = await self._topics.require(name)
        await self._sealer.seal(hosted)
        if self._meta.now.moved_keys(hosted.topic.id).waiting:
            raise Unavailable(f"topic {name}: a queue that left is not sealed yet", code="logic_offset_undecided")
        logs = await hosted.logs()
        await hosted.look(hosted.route.partitions)
        seen = [log.known_producer(producer_id) for log in logs.values()]
        return RememberedNumbers(sorted({seq for one in seen if one is not None for seq in one.parts}))

    # Remap ------------------------------------------------------------------------------------------------------------

    async def plan_remap(self, name: str, clusters: Sequence[str], queues: Collection[int] | None) -> list[MovedTo]:
        """Return what `remap` would move; change nothing."""
        self.clusters.refuse_guarded(name)
        await self._meta.refresh()
        topic = (await self._topics.require(name)).topic
        leaders, targets = require_world(topic).leaders(), plan_move(topic, clusters, queues)
        return [MovedTo(queue=one, source=leaders[one], target=targets[one]) for one in sorted(targets)]

    async def remap(
        self, name: str, clusters: Sequence[str], mode: RemapMode, queues: Collection[int] | None
    ) -> list[MovedTo]:
        """Move queues so that `clusters` take all messages, evenly; with `queues` only these.

        All clusters of the topic must be there (SPEC STATIC-23). A move that was cut short is finished first.

        Raises
        ------
        Conflict
            `remap_in_progress`: a queue is not closed yet where it leaves; the same remapping again finishes it.
        """
        self.clusters.refuse_guarded(name)
        hosted = await self._topics.require(name)
        moved = [*await self._settle(hosted)]
        epoch, states = self.world(hosted).epoch, await self._hand_out(hosted)
        planned = await self.plan_remap(name, clusters, queues)
        if not planned:
            return moved
        targets = {one.queue: one.target for one in planned}
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
        """Finish what moves: let the old clusters close the queues, record their ends, and tell all clusters."""
        await self._meta.refresh()
        world = require_world(self._topics.state.topic(hosted.name))
        moving = world.moving
        if not moving:
            return []
        states = await self._hand_out(hosted, first={target for _, target in moving.values()})
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
        await self._hand_out(hosted)
        settled = require_world(self._topics.state.topic(hosted.name))
        return [
            MovedTo(queue=index, source=old, target=new, logic_offset=settled.queues[index][-1].logic_offset)
            for index, (old, new) in sorted(moving.items())
        ]

    # Check ------------------------------------------------------------------------------------------------------------

    async def faults(self, topic: Topic) -> list[MappingFault]:
        """Return what keeps the clusters' copies from being whole and of one epoch; any cluster may ask."""
        world = require_world(topic)
        found = [MappingFault("between", None, None, detail) for detail in world.faults()]
        for cluster in world.clusters:
            detail = None if cluster == self.clusters.here else await self._fault_of(cluster, topic.name, world)
            if detail is not None:
                found.append(MappingFault("between", None, None, detail))
        for index, (old, new) in world.moving.items():
            detail = f"queue {index} moves from cluster {old} to {new}, where its beginning is not decided yet"
            found.append(MappingFault("between", None, index, detail))
        return found

    async def views(self, topic: Topic) -> list[dict[str, Any] | None]:
        """Return how each other cluster shows its part of the topic; None for one that is away."""
        world = require_world(topic)
        call = Call("GET", _path(topic.name), (), b"", timeout_s=_LOOK_S)
        others = [one for one in world.clusters if one != self.clusters.here]
        asked = [self.clusters.told(one, call, epoch=world.epoch) for one in others]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [None if isinstance(one, BaseException) else msgspec.json.decode(one) for one in answers]

    async def _fault_of(self, cluster: str, name: str, world: GlobalQueues) -> str | None:
        """Return what is wrong with another cluster's copy."""
        try:
            body = await self.clusters.told(cluster, Call("GET", _path(name, "/global"), (), b""))
        except DeltaMQError as error:
            return f"no copy of cluster {cluster} can be read: {error.detail}"
        state = _TOLD.decode(body).state
        if state.id != world.id:
            return f"cluster {cluster} has another topic of this name"
        if state.epoch != world.epoch:
            return f"cluster {cluster} has the copy of epoch {state.epoch}, cluster {world.here} that of {world.epoch}"
        return None

    async def repair(self, name: str) -> None:
        """Settle what moves, and hand the home's copy to all clusters that have an older one."""
        hosted = await self._topics.require(name)
        world = require_world(hosted.topic)
        if world.home != self.clusters.here:
            await self.catch_up(name)
            return
        await self._settle(hosted)
        await self._hold(hosted)


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


def _path(topic: str, rest: str = "") -> bytes:
    return f"/v1/topics/{quote(topic, safe='')}{rest}".encode("ascii")
