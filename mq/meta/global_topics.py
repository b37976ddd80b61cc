"""Decisions about global topics: create, adopt a copy, move queues to other clusters, settle (SPEC STATIC-19).

    home:    decide_create_global --> decide_move --(all clusters adopt; the old ones close)--> decide_settle
    others:  decide_adopt, of each copy with a higher epoch

In each cluster a global topic is a static topic of that cluster, whose settings hold the copy. A cluster closes a queue
that leaves by a remapping of its own: the queue gets a new, empty segment, and the old one is sealed by a fence. So its
end, where the stay ends, follows from the cluster's own log, and any process that seals there finishes it (I15).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import GLOBAL_STAYS_MAX
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.static_topics import (
    StaticRequest,
    check_static_settings,
    closing_events,
    decide_put_static,
    queues_of,
)
from deltamq.mq.meta.topic_settings import TopicSettings
from deltamq.mq.meta.topics import StaticQueues, Topic, TopicPut
from deltamq.mq.static.global_queues import GlobalQueues
from deltamq.mq.static.mappings import plan_remap, spread_queues
from deltamq.mq.static.segments import Stay


class GlobalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """What one cluster sends another of a global topic: its queues, and its settings."""

    world: GlobalQueues
    settings: TopicSettings


def require_world(topic: Topic) -> GlobalQueues:
    """Return where the queues of a global topic are; raise `Conflict` if the topic is not global."""
    if topic.world is None:
        raise Conflict(
            f"topic {topic.name} belongs to this cluster only, and never becomes global",
            code="topic_not_global",
            field="clusters",
        )
    return topic.world


def decide_create_global(
    meta: Meta,
    name: str,
    request: StaticRequest,
    clusters: Sequence[str],
    available: Sequence[str],
    *,
    here: str,
    new_id: str,
    now_ms: int,
) -> tuple[AnyEvent, ...]:
    """Return the events that make a global topic with its home in this cluster; none if it is there already.

    `clusters` get the queues, evenly; `here` has a copy in any case.

    Raises
    ------
    Conflict
        `topic_not_global`, `global_topic_fixed`, and what `decide_put_static` raises.
    Unprocessable
        What `decide_put_static` raises.
    """
    check_static_settings(name, request.settings)
    present = meta.topics.topics.get(name)
    if present is not None:
        world = require_world(present)
        same = request.total_queues == len(world.queues) and set(clusters) | {world.home} == set(world.clusters)
        if not same or request.settings.over(present.settings) != present.settings:
            raise Conflict(
                f"topic {name} is global: its queues, clusters and settings stay as they are; remap moves its queues",
                code="global_topic_fixed",
            )
        return ()
    spread = spread_queues({}, request.total_queues, clusters)
    stays = tuple(
        (Stay(cluster=spread[index], local_start=0, logic_offset=0, start_ms=now_ms),)
        for index in range(request.total_queues)
    )
    world = GlobalQueues(
        id=new_id,
        home=here,
        here=here,
        epoch=now_ms,
        clusters=tuple(dict.fromkeys((here, *clusters))),
        queues=stays,
    )
    return _with_world(decide_put_static(meta, name, request, available, new_id, now_ms), world)


def decide_adopt(
    meta: Meta, name: str, copy: GlobalCopy, available: Sequence[str], *, new_id: str, now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events by which this cluster takes over a copy; none if it has one that is as new.

    Queues that leave this cluster by the copy are closed. `copy.world.here` must be this cluster.

    Raises
    ------
    Conflict
        `topic_exists`: this cluster has another topic of the name. `copy_lost`: it had this one, and its part is gone.
        `remap_in_progress`, `mapping_incomplete`: a queue that leaves cannot be closed now.
    """
    world, present = copy.world, meta.topics.topics.get(name)
    if fault := next(world.faults(), None):
        raise Unprocessable(f"topic {name}: {fault}", code="mapping_torn", field="queues")
    if present is None and world.here in world.held_by:
        raise Conflict(
            f"cluster {world.here} had its part of topic {name} and has lost it; delete the topic at its home"
            f" {world.home}, or restore the warehouse",
            code="copy_lost",
            extra={"cluster": world.here},
        )
    if present is None:
        request = StaticRequest(total_queues=len(world.queues))
        events = decide_put_static(meta, name, request, available, new_id, now_ms)
        return _with_world(events, world, copy.settings)
    if present.world is None or present.world.id != world.id:
        raise Conflict(
            f"cluster {world.here} has another topic {name}; delete it there, or take another name",
            code="topic_exists",
            field="topic",
            extra={"cluster": world.here},
        )
    if world.epoch <= present.world.epoch:
        return ()
    return _taken_over(meta, present, world, now_ms)


def plan_move(topic: Topic, clusters: Sequence[str], queues: Collection[int] | None = None) -> dict[int, str]:
    """Return the queues that move when exactly `clusters` shall take all messages, each with its new cluster.

    Raises
    ------
    Conflict
        `topic_not_global`.
    Unprocessable
        `unknown_cluster`, `unknown_queue`.
    """
    world = require_world(topic)
    if unknown := sorted(set(clusters).difference(world.clusters)):
        raise Unprocessable(
            f"clusters: topic {topic.name} covers {', '.join(world.clusters)}, not {unknown[0]}",
            code="unknown_cluster",
            field="clusters",
        )
    if strange := sorted(index for index in queues or () if not 0 <= index < len(world.queues)):
        raise Unprocessable(
            f"queues: topic {topic.name} has the queues 0 to {len(world.queues) - 1}, not {strange[0]}",
            code="unknown_queue",
            field="queues",
        )
    return plan_remap(world.leaders(), list(dict.fromkeys(clusters)), queues)


def decide_held(meta: Meta, name: str, epoch: int, now_ms: int) -> tuple[AnyEvent, ...]:
    """Return the events by which the home records that all clusters have the copy of this epoch; none if it has."""
    topic = meta.topics.topic(name)
    world = require_world(topic)
    held = world.held(now_ms)
    return () if world.epoch != epoch or held is world else _taken_over(meta, topic, held, now_ms)


def decide_move(
    meta: Meta,
    name: str,
    targets: Mapping[int, str],
    starts: Mapping[int, int],
    *,
    epoch: int,
    now_ms: int,
    at_once: bool,
) -> tuple[AnyEvent, ...]:
    """Return the events by which the home begins to move queues to `targets`, where they begin at `starts`.

    The clusters reported `starts` under the copy of `epoch`; they hold as long as that copy is the newest.

    Raises
    ------
    Conflict
        `remap_in_progress`: an earlier move is not settled, or there was another one. Else as for `decide_adopt`.
    """
    topic = meta.topics.topic(name)
    world = require_world(topic)
    if world.moving or world.epoch != epoch:
        raise Conflict(f"topic {name}: an earlier remapping is not settled yet; ask again", code="remap_in_progress")
    if sum(map(len, world.queues)) + len(targets) > GLOBAL_STAYS_MAX:
        raise Conflict(
            f"topic {name}: its queues have moved between clusters too often; a topic keeps {GLOBAL_STAYS_MAX} stays",
            code="too_many_stays",
            extra={"limit": GLOBAL_STAYS_MAX},
        )
    return _taken_over(meta, topic, world.moved(targets, starts, now_ms, at_once=at_once), now_ms)


def decide_settle(meta: Meta, name: str, ends: Mapping[int, int], *, epoch: int, now_ms: int) -> tuple[AnyEvent, ...]:
    """Return the events by which the home records where queues that move were closed; none if no end is new.

    The clusters reported `ends` under the copy of `epoch`; if there is a newer copy, another process has recorded them.
    """
    topic = meta.topics.topic(name)
    world = require_world(topic)
    settled = world.settled(ends, now_ms)
    return () if settled is world or world.epoch != epoch else _taken_over(meta, topic, settled, now_ms)


def decide_drop_stays(
    meta: Meta, name: str, starts: Mapping[str, Mapping[int, int]], *, epoch: int, before_ms: int, now_ms: int
) -> tuple[AnyEvent, ...]:
    """Return the events by which the home forgets stays whose messages are gone; none if there is no such stay.

    The clusters reported `starts` under the copy of `epoch`; for these and `before_ms` see `GlobalQueues.dropped`.
    """
    topic = meta.topics.topic(name)
    world = require_world(topic)
    left = world.dropped(starts, before_ms, now_ms)
    return () if left is world or world.epoch != epoch else _taken_over(meta, topic, left, now_ms)


def closed_ends(meta: Meta, topic: Topic) -> dict[int, int]:
    """Return the local ends of the queues that take no messages in this cluster and are closed there.

    A queue of which the end is not known yet, because its old segment waits for the seal, is left out.
    """
    world, queues = require_world(topic), queues_of(meta, topic)
    return {
        index: queues[index].leader.logic_offset
        for index in world.away & queues.keys()
        if queues[index].leader.is_decided
    }


def _taken_over(meta: Meta, topic: Topic, world: GlobalQueues, now_ms: int) -> tuple[AnyEvent, ...]:
    """Return the events that store the newer copy and close the queues that leave by it, in one append."""
    before = require_world(topic)
    leaving = world.away - before.away
    changed = replace(topic, static=replace(_static(topic), world=world))
    if not leaving:
        return (TopicPut(topic=changed),)
    return closing_events(meta, topic, changed, leaving, now_ms)


def _with_world(
    events: Sequence[AnyEvent], world: GlobalQueues, settings: TopicSettings | None = None
) -> tuple[AnyEvent, ...]:
    return tuple(
        TopicPut(
            topic=replace(
                event.topic,
                static=replace(_static(event.topic), world=world),
                settings=settings or event.topic.settings,
            )
        )
        if isinstance(event, TopicPut)
        else event
        for event in events
    )


def _static(topic: Topic) -> StaticQueues:
    assert topic.static is not None, "a global topic is static"
    return topic.static
