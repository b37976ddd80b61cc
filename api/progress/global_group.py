"""A group's offsets in a global topic: each cluster holds the progress on its own stays (SPEC STATIC-16, 19).

    request in global names and offsets --by cluster--> the same call there, in that cluster's own names and offsets
                                                        (here: without a call)       --> one answer in global names

Each cluster treats its part as for any static topic. A part of a commit is sent only when the parts before it are
stored (`mq.static.progress`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.global_copies import GlobalCopies, global_path
from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, is_forwarded, json_of
from deltamq.api.progress.global_times import GlobalTimes
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Unavailable, Unprocessable
from deltamq.mq.meta.global_topics import require_world
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.queue.progress import Start, check_epoch
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.progress import (
    committed_as,
    global_commit_parts,
    global_position,
    global_reset_parts,
    shown_in,
)
from deltamq.mq.static.queue_names import (
    GLOBAL_BROKER,
    LOGICAL_BROKER,
    global_queue_index,
    global_queue_name,
    queue_index,
    queue_name,
)
from deltamq.mq.wire.groups import (
    CommitRequest,
    CommittedOffsets,
    GroupOffsets,
    GroupPartition,
    ResetOffsets,
    ResetRequest,
)
from deltamq.tables.failpoints import failpoint

#: Seconds within which the clusters must agree where queues are.
_AGREED_S: Final = 2.0
#: Statuses from here on are problems.
_NOT_DONE: Final = 300
T = TypeVar("T")


class Here(NamedTuple):
    """The calls on this cluster's own part."""

    show: Callable[[], Awaitable[GroupOffsets]]
    commit: Callable[[CommitRequest], Awaitable[CommittedOffsets]]
    reset: Callable[[ResetRequest], Awaitable[ResetOffsets]]


def is_for_all(topic: Topic, call: Call) -> bool:
    """Whether a call is about a global topic in all its clusters, and not about this cluster's part of it."""
    return topic.world is not None and not from_cluster(call.headers) and not is_forwarded(call.headers)


class GlobalGroup:
    """One group in one global topic, for one request."""

    def __init__(
        self, copies: GlobalCopies, times: GlobalTimes, group: str, hosted: HostedTopic, call: Call, here: Here
    ) -> None:
        """`call` is the client's; its parts go to other clusters in its caller's name."""
        copies.clusters.refuse_guarded(hosted.name)
        self._copies = copies
        self._times = times
        self._group = group
        self._hosted = hosted
        self._call = call
        self._here = here

    # Show -------------------------------------------------------------------------------------------------------------

    async def show(self) -> GroupOffsets:
        """Return the group's progress in all queues; raise `Unavailable` if a cluster with messages is away."""
        world, lanes = await self._agreed(lambda world: world.readers)
        shown = tuple(_shown(world, queue, lanes) for queue in range(len(world.queues)))
        return GroupOffsets(
            group=self._group,
            topic=self._hosted.name,
            topic_id=world.id,
            offsets={lane.partition: lane.committed_offset for lane in shown if lane.committed_offset is not None},
            epochs={lane.partition: lane.epoch for lane in shown if lane.epoch is not None},
            partitions=shown,
        )

    async def _agreed(
        self, clusters: Callable[[GlobalQueues], Collection[str]]
    ) -> tuple[GlobalQueues, dict[str, dict[str, GroupPartition]]]:
        """Return a copy, and by cluster the group's lanes by the cluster's own names of queues."""

        async def tried() -> tuple[GlobalQueues, dict[str, dict[str, GroupPartition]]] | Unavailable:
            world, lanes = self._copies.world(self._hosted), dict[str, dict[str, GroupPartition]]()
            for cluster in sorted(clusters(world)):
                try:
                    if cluster == world.here:
                        shown: GroupOffsets | Unavailable = await self._here.show()
                    else:
                        shown = await self._ask(cluster, "GET", None, GroupOffsets)
                except NotFound:
                    lanes[cluster] = {}  # the cluster has no such group
                    continue
                if isinstance(shown, Unavailable):
                    return shown
                lanes[cluster] = {lane.partition: lane for lane in shown.partitions}
            return world, lanes

        return await self._copies.agreed(self._hosted.name, tried, within_s=_AGREED_S)

    # Commit -----------------------------------------------------------------------------------------------------------

    async def commit(self, asked: CommitRequest) -> CommittedOffsets:
        """Commit global offsets; an offset that was already higher stays.

        Raises
        ------
        Unavailable
            `queue_unserved`: a cluster with messages before an offset is away. Older parts may be stored.
        Unprocessable
            `offset_out_of_range`, `global_unsupported`.
        Conflict
            `epoch_over`: the offsets were reset after they were read, or the queue has moved to another cluster.
        """
        for name, given in (("locks", asked.locks), ("attempts", asked.attempts)):
            if given:
                raise Unprocessable(
                    f"{name}: topic {self._hosted.name} is global, and there are no pull locks on it",
                    code="global_unsupported",
                    field=name,
                )
        queues = {self._queue(name, "offsets"): name for name in asked.offsets}
        wanted = {queue: asked.offsets[name] for queue, name in queues.items()}
        texts = {self._queue(name, "metadata"): text for name, text in (asked.metadata or {}).items()}
        epochs = await self._epochs(wanted, asked.epochs or {})

        async def tried() -> CommittedOffsets | Unavailable:
            world = self._copies.world(self._hosted)
            if asked.topic_id not in (None, world.id):
                raise Conflict(
                    f"topic {self._hosted.name} was deleted and made again since its offsets were read",
                    code="epoch_over",
                    field="topic_id",
                    extra={"topic_id": world.id},
                )
            return await self._commit(world, wanted, epochs, texts, asked.client_id)

        return await self._copies.agreed(self._hosted.name, tried, within_s=_AGREED_S)

    async def _commit(
        self,
        world: GlobalQueues,
        wanted: Mapping[int, int],
        epochs: Mapping[tuple[str, int], int],
        texts: Mapping[int, str],
        client_id: str | None,
    ) -> CommittedOffsets | Unavailable:
        parts = {queue: list(global_commit_parts(world, queue, offset).items()) for queue, offset in wanted.items()}
        reached: dict[int, int] = {}
        counted: dict[int, dict[str, int]] = {queue: {} for queue in wanted}
        steps = max(map(len, parts.values()))
        for left in range(steps, 0, -1):  # the last part of each queue is stored in the last step
            now = {queue: todo[-left] for queue, todo in parts.items() if len(todo) >= left}
            for cluster in sorted({cluster for cluster, _ in now.values()}):
                offsets = {queue: at for queue, (target, at) in now.items() if target == cluster}
                noted = {queue: text for queue, text in texts.items() if queue in offsets and left == 1}
                stored = await self._commit_part(world, cluster, offsets, epochs, noted, client_id)
                if isinstance(stored, Unavailable):
                    return stored
                for queue, (local, epoch) in stored.items():
                    # Where two stays meet, one local offset is two global ones.
                    is_last, goal = left == 1 and local == offsets[queue], wanted[queue]
                    at = committed_as(world, queue, goal) if is_last else shown_in(world, queue, cluster, local)
                    reached[queue], counted[queue][cluster] = at, epoch
            failpoint("global.after_commit_part")
        names = {queue: global_queue_name(queue) for queue in wanted}
        return CommittedOffsets(
            group=self._group,
            topic=self._hosted.name,
            topic_id=world.id,
            offsets={name: reached[queue] for queue, name in names.items()},
            # The epoch of a queue is unknown if not all its clusters were asked.
            epochs={
                name: sum(counted[queue].values())
                for queue, name in names.items()
                if counted[queue].keys() >= set(world.clusters_of(queue))
            },
        )

    async def _commit_part(
        self,
        world: GlobalQueues,
        cluster: str,
        offsets: Mapping[int, int],
        epochs: Mapping[tuple[str, int], int],
        texts: Mapping[int, str],
        client_id: str | None,
    ) -> dict[int, tuple[int, int]] | Unavailable:
        meant = {queue_name(queue): epochs[cluster, queue] for queue in offsets if (cluster, queue) in epochs}
        local = {queue_name(queue): at for queue, at in offsets.items()}
        noted = {queue_name(queue): text for queue, text in texts.items()}
        part = CommitRequest(offsets=local, epochs=meant or None, client_id=client_id, metadata=noted or None)
        try:
            if cluster == world.here:
                committed: CommittedOffsets | Unavailable = await self._here.commit(part)
            else:
                committed = await self._ask(cluster, "PUT", part, CommittedOffsets)
        except DeltaMQError as error:
            _name_globally(world, cluster, error)
            raise
        if isinstance(committed, Unavailable):
            return committed
        return {
            queue: (committed.offsets[name], committed.epochs[name])
            for queue, name in ((queue, queue_name(queue)) for queue in offsets)
        }

    async def _epochs(self, wanted: Mapping[int, int], meant: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Check the epochs that the client names; return the clusters' own epochs.

        A global queue's epoch is the sum of the epochs of the clusters with its messages: each reset raises it.
        """
        if not meant:
            return {}
        queues = {self._queue(name, "epochs"): epoch for name, epoch in meant.items()}
        world, lanes_of = await self._agreed(
            lambda world: {cluster for queue in queues for cluster in world.clusters_of(queue)}
        )
        for queue, epoch in queues.items():
            check_epoch(global_queue_name(queue), epoch, _epoch(world, queue, lanes_of) or 0)
        return {
            (cluster, queue): lane.epoch
            for cluster, lanes in lanes_of.items()
            for queue in wanted
            if (lane := lanes.get(queue_name(queue))) is not None and lane.epoch is not None
        }

    # Reset ------------------------------------------------------------------------------------------------------------

    async def reset(self, asked: ResetRequest) -> ResetOffsets:
        """Reset the group in all clusters with messages of the queues; the same again finishes one that was cut short.

        Raises
        ------
        Unavailable
            `queue_unserved`: a cluster is away. Other clusters may have been reset.
        """
        targets: dict[int, int] | None = None
        if not isinstance(asked.to, str):
            targets = {self._queue(name, "to"): offset for name, offset in asked.to.items()}
        else:
            time_ms = Start.from_json(asked.to, field="to").time_ms
            if time_ms is not None:
                offsets = await self._times.offsets_at(self._hosted, time_ms * 1_000, self._by_time(asked.to))
                targets = {self._queue(first.partition, "to"): first.offset for first in offsets}

        async def tried() -> ResetOffsets | Unavailable:
            world = self._copies.world(self._hosted)
            return await self._reset(world, asked, targets)

        return await self._copies.agreed(self._hosted.name, tried, within_s=_AGREED_S)

    async def _reset(
        self, world: GlobalQueues, asked: ResetRequest, targets: Mapping[int, int] | None
    ) -> ResetOffsets | Unavailable:
        to: dict[str, dict[str, int]] = {}
        for queue, offset in (targets or {}).items():
            for cluster, at in global_reset_parts(world, queue, offset).items():
                to.setdefault(cluster, {})[queue_name(queue)] = at
        offsets: dict[str, int] = {}
        epoch = 0
        clusters = to.keys() if targets is not None else world.readers
        for cluster in sorted(clusters):
            request = asked if targets is None else msgspec.structs.replace(asked, to=to[cluster])
            try:
                if cluster == world.here:
                    done: ResetOffsets | Unavailable = await self._here.reset(request)
                else:
                    done = await self._ask(cluster, "POST", request, ResetOffsets)
            except NotFound:
                continue  # the cluster has no such group
            except DeltaMQError as error:
                _name_globally(world, cluster, error)
                raise
            if isinstance(done, Unavailable):
                return done
            failpoint("global.after_reset_part")
            epoch += done.epoch
            if targets is None:
                offsets |= _at_the_edge(world, cluster, done.offsets, is_first=asked.to == "first")
        shown = {global_queue_name(queue): offset for queue, offset in (targets or {}).items()}
        return ResetOffsets(group=self._group, topic=self._hosted.name, epoch=epoch, offsets=shown | offsets)

    def _by_time(self, time: str) -> Call:
        path = global_path(self._hosted.name, f"/offsets?time={quote(time)}")
        return self._call._replace(method="GET", target=path, body=b"", headers=())

    # Parts ------------------------------------------------------------------------------------------------------------

    async def _ask(
        self, cluster: str, method: str, body: CommitRequest | ResetRequest | None, kind: type[T]
    ) -> T | Unavailable:
        """Return another cluster's answer to its part; or `Unavailable` if its copy is newer."""
        call = self._call._replace(method=method)
        call = call.without_body() if body is None else call.with_json(msgspec.json.encode(body))
        answer = await self._copies.elsewhere(self._hosted.name, cluster, call, f"a part is in cluster {cluster}")
        if isinstance(answer, Unavailable):
            return answer
        if answer.status >= _NOT_DONE:
            problem = Relayed.of(answer)
            if problem.code == "group_not_found":
                raise NotFound(problem.detail, code=problem.code, field=problem.field)
            raise problem
        return json_of(answer.body, kind)

    def _queue(self, name: str, field: str) -> int:
        index = global_queue_index(name)
        if index is None or index >= len(require_world(self._hosted.topic).queues):
            raise no_partition(self._hosted.name, name, field, at=f"{field}.{name}")
        return index


Lanes = Mapping[str, Mapping[str, GroupPartition]]


def _at_the_edge(world: GlobalQueues, cluster: str, offsets: Mapping[str, int], *, is_first: bool) -> dict[str, int]:
    """Return the global offsets of the queues that begin, or end, in a cluster; `offsets` are its own of all queues."""
    shown = {}
    for name, at in offsets.items():
        queue = queue_index(name)
        if queue is not None and world.readable(queue)[0 if is_first else -1].cluster == cluster:
            shown[global_queue_name(queue)] = shown_in(world, queue, cluster, at)
    return shown


def _shown(world: GlobalQueues, queue: int, by_cluster: Lanes) -> GroupPartition:
    """Return a queue as the group sees it; fields that a cluster without the group would fill are null."""
    lanes = {cluster: by_cluster[cluster].get(queue_name(queue)) for cluster in world.clusters_of(queue)}
    known = [lane for lane in lanes.values() if lane is not None]
    offset, metadata = _committed(world, queue, lanes)
    first, newest = world.readable(queue)[0], world.readable(queue)[-1]
    oldest, last = lanes[first.cluster], lanes[newest.cluster]
    low, high = None if oldest is None else oldest.min_offset, None if last is None else last.end_offset
    lags = [None if lane is None else lane.lag for lane in lanes.values()]
    return GroupPartition(
        partition=global_queue_name(queue),
        committed_offset=offset,
        min_offset=None if low is None else shown_in(world, queue, first.cluster, low),
        end_offset=None if high is None else shown_in(world, queue, newest.cluster, high),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        in_flight=sum(lane.in_flight for lane in known),
        last_consume_time=max((lane.last_consume_time for lane in known if lane.last_consume_time), default=None),
        epoch=_epoch(world, queue, by_cluster),
        metadata=metadata,
    )


def _committed(
    world: GlobalQueues, queue: int, lanes: Mapping[str, GroupPartition | None]
) -> tuple[int | None, str | None]:
    """Return the committed global offset, and the text of the newest cluster that committed it."""
    committed = {cluster: lane.committed_offset for cluster, lane in lanes.items() if lane is not None}
    if all(at is None for at in committed.values()):
        return None, None
    offset, metadata = global_position(world, queue, committed), None
    for stay in world.readable(queue):
        lane = lanes[stay.cluster]
        at = None if lane is None else lane.committed_offset
        if lane is None or at is None or at < stay.local_start or (stay.is_ended and at > stay.local_end):
            continue
        if stay.shown(at) == offset:
            metadata = lane.metadata
    return offset, metadata


def _epoch(world: GlobalQueues, queue: int, by_cluster: Lanes) -> int | None:
    """Return the sum of the epochs of the clusters with messages of the queue; None if no cluster has the group."""
    lanes = (by_cluster[cluster].get(queue_name(queue)) for cluster in world.clusters_of(queue))
    epochs = [lane.epoch for lane in lanes if lane is not None and lane.epoch is not None]
    return sum(epochs) if epochs else None


def _name_globally(world: GlobalQueues, cluster: str, error: DeltaMQError) -> None:
    """Give an error of a cluster the global name and end offset of its queue."""
    local = (error.field or "").partition(".")[2]
    error.detail = error.detail.replace(LOGICAL_BROKER, GLOBAL_BROKER)
    error.field = None if error.field is None else error.field.replace(LOGICAL_BROKER, GLOBAL_BROKER)
    queue, end = queue_index(local), error.extra.get("end_offset")
    if queue is not None and isinstance(end, int):
        error.extra["end_offset"] = shown_in(world, queue, cluster, end)
        error.detail = f"{error.field}: beyond the end offset {error.extra['end_offset']}"
