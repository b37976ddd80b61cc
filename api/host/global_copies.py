"""The copies of global topics: adopted here, read from their homes, handed out to other clusters (SPEC STATIC-19).

    home --hand_out--> the others adopt, and close the queues that leave: a new segment, a fence, a seal
    home <--catch_up-- a cluster that missed a copy

A copy of a higher epoch replaces one of a lower. A cluster that missed one reads it from the home: when another cluster
forwards a call by a newer one, and every `clusters_refresh_ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from deltamq.api.host.clusters import Clusters, from_cluster, global_epoch_of, has_newer_copy, newer_copy
from deltamq.api.host.fences import Sealer
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, json_of
from deltamq.api.wire.answer import Answer, Header
from deltamq.api.wire.request import Client
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Conflict, DeltaMQError, Unavailable, Unprocessable
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.global_topics import (
    GlobalCopy,
    closed_ends,
    decide_adopt,
    decide_drop_stays,
    decide_held,
    require_world,
)
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.stored_requests import REMEMBERED_MS

log = logging.getLogger("deltamq.api")

_JSON: Final = [(b"content-type", b"application/json")]
#: Seconds until a retry of a call on which two clusters do not agree, or whose queue moves.
_AGAIN_S: Final = Backoff(0.01, 0.25)
#: Seconds within which two clusters must agree where queues are.
_AGREED_S: Final = 2.0
#: Seconds between two looks for stays that may be forgotten.
_DROP_EVERY_S: Final = 60.0
#: Statuses from here on are problems.
_NOT_DONE: Final = 300
Found = TypeVar("Found")


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one cluster's part of a global topic."""

    cluster: str
    id: str
    epoch: int
    #: The local ends of the queues that take no messages there, by queue, without unsealed ones.
    ends: dict[int, int]


class RememberedNumbers(msgspec.Struct):
    """The numbers of one producer's requests that a cluster remembers."""

    numbers: list[int]


class ClusterCopy(msgspec.Struct):
    """A cluster's copy of a global topic, and its state."""

    held: GlobalCopy
    state: ClusterState
    #: The first stored local offset of each queue with a stay there that retention may have emptied.
    starts: dict[int, int] = {}


class GlobalCopies:
    """This cluster's copies of global topics; used on the event loop."""

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
        #: When to look for old stays again, by topic, for topics that have some.
        self._drop_at_s: dict[str, float] = {}

    def start(self) -> None:
        """Begin to follow the homes of this cluster's copies."""
        if len(self.clusters.names) > 1 and not self.clusters.is_guarded:
            self._timer = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

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
        """Return the state of this cluster's part of the topic."""
        present = self._topics.state.topics.get(topic.name, topic)
        world = require_world(present)
        ends = closed_ends(self._meta.now, present)
        return ClusterState(cluster=self.clusters.here, id=world.id, epoch=world.epoch, ends=ends)

    async def copy_of(self, name: str, *, starts: bool = False) -> ClusterCopy:
        """Return copy and state of this cluster for another one; with `starts`, also the first offsets of old stays."""
        self.clusters.refuse_guarded(name)
        await self._meta.refresh()
        topic = (await self._topics.require(name)).topic
        copy = GlobalCopy(world=require_world(topic), settings=topic.settings)
        return ClusterCopy(copy, self.state(topic), await self._starts(name) if starts else {})

    async def _starts(self, name: str) -> dict[int, int]:
        """Return the first stored local offset of each queue with a stay here that may be forgotten."""
        hosted = await self._topics.require(name)
        world = require_world(hosted.topic)
        old = world.expired(self._forgotten_before(hosted.topic))
        queues = self._topics.queues(hosted)
        starts = {}
        for index, stays in old.items():
            queue = None if queues is None else queues.find(queue_name(index))
            if queue is not None and any(stay.cluster == world.here for stay in stays):
                first = queue.readable[0]
                with contextlib.suppress(DeltaMQError):  # what a damaged partition stores is unknown
                    log = await hosted.partition(first.partition).look()
                    if log is not None:
                        starts[index] = first.logical(log.min_offset)
        return starts

    def _forgotten_before(self, topic: Topic) -> int:
        """Return the time before which a stay must have ended to be dropped: repeats are looked for in later ones."""
        return self._now_ms() - max(topic.settings.retention_ms, REMEMBERED_MS)

    async def drop_stays(self, name: str) -> None:
        """At home: forget the oldest stays of queues whose messages retention has removed (SPEC STATIC-17).

        Raises
        ------
        Unavailable
            A cluster cannot be reached that had such a stay, or that is to get the copy.
        """
        hosted = await self._topics.require(name)
        world, before_ms = self.world(hosted), self._forgotten_before(hosted.topic)
        clusters = {stay.cluster for stays in world.expired(before_ms).values() for stay in stays}
        if not clusters:
            return
        starts = {world.here: await self._starts(name)}
        for cluster in clusters - {world.here}:
            call = Call("GET", global_path(name, "/global?starts=true"), (), b"")
            starts[cluster] = json_of(
                await self.clusters.ask_body(cluster, call, epoch=world.epoch), ClusterCopy
            ).starts
        now_ms = self._now_ms()
        await self._meta.submit_any(
            partial(decide_drop_stays, name=name, starts=starts, epoch=world.epoch, before_ms=before_ms, now_ms=now_ms)
        )
        if self.world(hosted).epoch != world.epoch:
            failpoint("global.after_drop_stays")
            await self.hand_out(hosted)
            log.info("event=global_stays_dropped topic=%r", name)

    async def catch_up(self, name: str, epoch: int = 0) -> GlobalQueues:
        """Return the topic's newest copy: this cluster's, or the home's if this cluster's is older than `epoch`.

        Without an epoch the home is always asked.

        Raises
        ------
        Unavailable
            The home cannot be reached.
        """
        await self._meta.refresh()
        world = require_world((await self._topics.require(name)).topic)
        if world.home != self.clusters.here and (not epoch or world.epoch < epoch):
            body = await self.clusters.ask_body(
                world.home, Call("GET", global_path(name, "/global"), (), b""), epoch=world.epoch
            )
            await self.adopt(name, json_of(body, ClusterCopy).held)
        return require_world((await self._topics.require(name)).topic)

    async def caught_up(self, name: str, epoch: int = 0) -> None:
        """Bring this cluster's copy up to `epoch`; with 0, read the home's.

        If the home cannot be reached, the copy stays as it is.
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

    async def agreed(self, name: str, tried: Callable[[], Awaitable[Found | Unavailable]], *, within_s: float) -> Found:
        """Return the result of `tried`; while it returns an `Unavailable`, read newer copies and try again.

        Raises
        ------
        Unavailable
            The last reason, when `within_s` seconds are over.
        """
        loop, failures = asyncio.get_running_loop(), 0
        deadline = loop.time() + within_s
        while True:
            result = await tried()
            if not isinstance(result, Unavailable):
                return result
            if loop.time() >= deadline:
                raise result
            failures += 1
            await self.caught_up(name)
            await asyncio.sleep(_AGAIN_S.after(failures))

    async def elsewhere(
        self, name: str, cluster: str, call: Call, detail: str, client: Client | None = None
    ) -> Answer | Unavailable:
        """Return the answer of the cluster that a call belongs to; or `Unavailable` if its copy is newer.

        `detail` names the thing in that cluster, for errors.

        Raises
        ------
        Unavailable
            `queue_unserved`: the cluster cannot be reached. `global_epoch`: another cluster forwarded the call here.
        """
        if from_cluster(call.headers):
            raise newer_copy(name, f"{detail}; ask there")
        world = require_world((await self._topics.require(name)).topic)
        answer = await self.clusters.ask(cluster, call, epoch=world.epoch, client=client)
        if not has_newer_copy(answer):
            return answer
        return Unavailable(
            f"topic {name}: {detail}, which has a newer copy of the topic; ask again",
            code="queue_unserved",
            extra={"cluster": cluster},
        )

    async def ask_all(
        self, hosted: HostedTopic, clusters: Callable[[GlobalQueues], Collection[str]], call: Call
    ) -> tuple[GlobalQueues, dict[str, bytes]]:
        """Return a copy, and the answers of the other clusters that it names to a call by this very copy.

        Raises
        ------
        Unavailable
            `queue_unserved`: one of them cannot be reached.
        DeltaMQError
            The problem that one of them answered with.
        """

        async def tried() -> tuple[GlobalQueues, dict[str, bytes]] | Unavailable:
            world, answers = self.world(hosted), dict[str, bytes]()
            for cluster in sorted(set(clusters(world)) - {world.here}):
                answer = await self.elsewhere(hosted.name, cluster, call, f"a part is in cluster {cluster}")
                if isinstance(answer, Unavailable):
                    return answer
                if answer.status >= _NOT_DONE:
                    raise Relayed.of(answer)
                assert isinstance(answer.body, bytes), "answers of other clusters are whole"
                answers[cluster] = answer.body
            return world, answers

        return await self.agreed(hosted.name, tried, within_s=_AGREED_S)

    async def by_copy_of(self, hosted: HostedTopic, headers: Collection[Header]) -> GlobalQueues:
        """Return the copy by which another cluster asks; raise `newer_copy` if this cluster has a newer one."""
        epoch = global_epoch_of(headers)
        await self.caught_up(hosted.name, epoch)
        world = self.world(hosted)
        if world.epoch > epoch:
            raise newer_copy(hosted.name, f"cluster {world.here} has the copy of epoch {world.epoch}, not {epoch}")
        return world

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
                except Exception as error:  # a failure in one topic must not end the watch
                    log.error(
                        "event=global_copy_failed topic=%r kind=%s", topic.name, type(error).__name__, exc_info=error
                    )

    async def _follow(self, topic: Topic) -> None:
        """Compare a copy with the home's; at home, hand out copies that a cluster lacks, and drop old stays."""
        world = require_world(topic)
        if world.home != self.clusters.here:
            await self.catch_up(topic.name)
            return
        if world.held_by != world.clusters:
            await self.hold(await self._topics.require(topic.name))
        now_s = asyncio.get_running_loop().time()
        if world.expired(self._forgotten_before(topic)) and now_s >= self._drop_at_s.get(topic.name, 0.0):
            self._drop_at_s[topic.name] = now_s + _DROP_EVERY_S
            await self.drop_stays(topic.name)

    async def hold(self, hosted: HostedTopic) -> None:
        """Let all clusters have a copy, and record that they have."""
        world = self.world(hosted)
        await self.hand_out(hosted)
        if world.held_by != world.clusters:
            now_ms = self._now_ms()
            await self._meta.submit_any(partial(decide_held, name=hosted.name, epoch=world.epoch, now_ms=now_ms))
            failpoint("global.after_held")
            await self.hand_out(hosted)

    async def hand_out(self, hosted: HostedTopic, *, first: Collection[str] = ()) -> dict[str, ClusterState]:
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
        others = [cluster for cluster in copy.world.clusters if cluster != self.clusters.here]
        for cluster in sorted(others, key=lambda cluster: cluster not in first):
            call = Call("PUT", global_path(hosted.name, "/global"), _JSON, body)
            state = states[cluster] = json_of(await self.clusters.ask_body(cluster, call), ClusterState)
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
        return RememberedNumbers(sorted({seq for requests in seen if requests is not None for seq in requests.parts}))


def global_path(topic: str, rest: str = "") -> bytes:
    """Return the path of a topic at another cluster, with `rest` behind it."""
    return f"/v1/topics/{quote(topic, safe='')}{rest}".encode("ascii")
