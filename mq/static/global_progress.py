"""A group's progress in a global queue, which each cluster holds for its own stays (SPEC STATIC-16, 19).

    stays               east [0 .. 400) ended      west [400 .. 520) ended      east [520 ...
    progress, local     east: 460                  west: 120                    460 is 520 + 60 in east's third stay
    position                                                                    580, since west is consumed to its end

The stays of one cluster are parts of one queue of its own, of which a group's progress is one local offset. A commit at
a global offset moves the clusters of older stays to the ends of these, and then its own cluster to the offset. So a
commit that is cut short leaves a position that is not beyond what was committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltamq.mq.static.global_queues import GlobalQueues, Stay


def global_commit_parts(world: GlobalQueues, queue: int, offset: int) -> dict[str, int]:
    """Return the local offset that a commit at a global offset stores in each cluster, in this order.

    The last one is the cluster where the offset lies. Clusters that never had a message before it are left out.
    """
    target, local = _committed_place(world, queue, offset)
    parts: dict[str, int] = {}
    for stay in world.readable(queue):
        parts.pop(stay.cluster, None)
        if stay == target:
            parts[stay.cluster] = local
            break
        parts[stay.cluster] = stay.local_end
    return {cluster: at for cluster, at in parts.items() if at or cluster == target.cluster}


def committed_as(world: GlobalQueues, queue: int, offset: int) -> int:
    """Return the global offset that a commit at an offset stores: in a hole, that of its end."""
    target, local = _committed_place(world, queue, offset)
    return target.shown(local)


def _committed_place(world: GlobalQueues, queue: int, offset: int) -> tuple[Stay, int]:
    """Return the stay and the local offset of a commit; the end of a stay with a hole behind it is one of that stay."""
    target, local = world.place(queue, offset)
    if target.shown(local) != offset:
        for stay in world.readable(queue):
            if stay.is_ended and stay.logic_end == offset:
                return stay, stay.local_end
    return target, local


def global_reset_parts(world: GlobalQueues, queue: int, offset: int) -> dict[str, int]:
    """Return the local offset of each cluster after a reset to a global offset: newer stays at their beginning."""
    parts = global_commit_parts(world, queue, offset)
    for stay in world.readable(queue):
        parts.setdefault(stay.cluster, stay.local_start)
    return parts


def global_position(world: GlobalQueues, queue: int, done: Mapping[str, int | None]) -> int:
    """Return the global offset that a group has committed, by the local offsets to which it is done in each cluster.

    That is where the first message lies that it is not done with, or, while it has committed nothing in that stay, the
    end of the newest stay before in which it has (STATIC-25). A cluster without progress counts as one where nothing is
    consumed.
    """
    passed: list[Stay] = []
    readable = world.readable(queue)
    for stay in readable:
        known = done.get(stay.cluster)
        at = max(known or 0, stay.local_start)
        if stay == readable[-1] or at < stay.local_end:
            # In a cluster to which the queue came back, the beginning is where its stay before has ended.
            if known is None or (at == stay.local_start and stay.local_start):
                before = [one for one in passed if done.get(one.cluster) is not None]
                if before:
                    return before[-1].logic_end
            return stay.shown(min(at, stay.local_end) if stay.is_ended else at)
        passed.append(stay)
    raise AssertionError("a queue has a stay with global offsets")


def shown_in(world: GlobalQueues, queue: int, cluster: str, local: int) -> int:
    """Return the global offset of a cluster's local one; behind the end of an ended stay, that of the end."""
    found = [stay for stay in world.readable(queue) if stay.cluster == cluster]
    stay = next((one for one in reversed(found) if one.local_start <= local), found[0])
    return stay.shown(min(local, stay.local_end) if stay.is_ended else local)
