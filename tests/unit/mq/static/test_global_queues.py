"""Global queues: stays in clusters, and the global offsets of what lies there (SPEC STATIC-3, 8, 9, 19)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.static.global_queues import GlobalPlace, GlobalQueues
from deltamq.mq.static.logical_queue import LogicalQueue, SegmentOf
from deltamq.mq.static.queue_names import global_queue_index, global_queue_name, is_queue_name, queue_name
from deltamq.mq.static.segments import UNDECIDED, Segment, Stay

CLUSTERS = ("east", "west", "north")


def stay(cluster: str, local_start: int, logic_offset: int, local_end: int = UNDECIDED) -> Stay:
    return Stay(cluster=cluster, local_start=local_start, logic_offset=logic_offset, local_end=local_end, start_ms=0)


def world(*stays: Stay, here: str = "east") -> GlobalQueues:
    return GlobalQueues(id="w", home="east", here=here, epoch=1, clusters=CLUSTERS, queues=(stays,))


@dataclass
class Played:
    """One queue that moves from cluster to cluster while messages come; the truth about each message."""

    queues: GlobalQueues
    #: How many messages the queue has in each cluster.
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLUSTERS, 0))
    #: Cluster and local offset of each message, in the order in which they were stored.
    sent: list[tuple[str, int]] = field(default_factory=list)

    def send(self, cluster: str, count: int) -> None:
        for _ in range(count):
            self.sent.append((cluster, self.ends[cluster]))
            self.ends[cluster] += 1

    def move(self, cluster: str, *, at_once: bool, late: int, now_ms: int) -> None:
        """Move the queue; `late` messages reach the old cluster before it closes."""
        old = self.queues.queues[0][-1].cluster
        if old == cluster:
            return
        self.queues = self.queues.moved({0: cluster}, {0: self.ends[cluster]}, now_ms, at_once=at_once)
        assert self.queues.taker(0) == (cluster if at_once else None)
        waiting = [(cluster, self.ends[cluster])] if at_once else []
        self.ends[cluster] += len(waiting)
        self.send(old, late)
        self.sent += waiting
        self.queues = self.queues.settled({0: self.ends[old]}, now_ms + 1)


MOVES = st.lists(st.tuples(st.sampled_from(CLUSTERS), st.booleans(), st.integers(0, 3), st.integers(0, 4)), max_size=8)


@given(MOVES)
def test_static_19_global_offsets_only_grow_over_clusters_and_lead_back_to_each_message(
    moves: list[tuple[str, bool, int, int]],
) -> None:
    played = Played(world(stay(cluster="east", local_start=0, logic_offset=0)))
    for now_ms, (cluster, at_once, late, more) in enumerate(moves, start=10):
        played.move(cluster, at_once=at_once, late=late, now_ms=now_ms * 10)
        played.send(cluster, more)
    queues = played.queues
    assert list(queues.faults()) == [] and queues.taker(0) == queues.leaders()[0]
    offsets = [queues.at(cluster).shown(0, local) for cluster, local in played.sent]
    assert offsets == sorted(set(offsets)), "offsets grow strictly, in the order of the stays"
    for (cluster, local), offset in zip(played.sent, offsets, strict=True):
        found, at = queues.place(0, offset)
        assert (found.cluster, at) == (cluster, local)
    if not any(at_once for _, at_once, _, _ in moves):
        assert offsets == list(range(len(offsets))), "strict moves leave no hole"


def test_static_19_the_name_of_the_virtual_broker_tells_the_scope() -> None:
    assert global_queue_name(3) == "3@__global_logical_queue_broker__"
    assert is_queue_name(global_queue_name(3)) and is_queue_name(queue_name(3))
    assert global_queue_index(global_queue_name(3)) == 3
    assert global_queue_index(queue_name(3)) is None


def test_static_19_a_strict_move_has_no_taker_until_the_old_cluster_has_closed() -> None:
    before = world(stay(cluster="east", local_start=0, logic_offset=0))
    moving = before.moved({0: "west"}, {0: 0}, 20, at_once=False)
    assert moving.epoch > before.epoch and moving.moving == {0: ("east", "west")}
    assert moving.away == {0} and moving.at("west").away == {0}
    assert moving.settled({}, 30) is moving, "without the end nothing is decided"
    settled = moving.settled({0: 7}, 30)
    assert settled.epoch > moving.epoch and settled.taker(0) == "west" and not settled.at("west").away
    assert settled.settled({0: 9}, 40) is settled, "the first end counts"


def test_static_19_an_available_move_takes_messages_without_offsets_and_jumps() -> None:
    moving = world(stay(cluster="east", local_start=0, logic_offset=0)).moved({0: "west"}, {0: 5}, 20, at_once=True)
    assert moving.taker(0) == "west" and moving.at("west").shown(0, 5) == UNDECIDED
    settled = moving.settled({0: 7}, 30).at("west")
    assert settled.shown(0, 5) == 10_000
    assert settled.place(0, 7)[0].cluster == "west", "an offset in the hole goes on behind it"


def test_static_21_clusters_that_a_queue_left_lately_are_asked_for_repeated_requests() -> None:
    queues = world(stay(cluster="east", local_start=0, logic_offset=0))
    for now_ms, cluster in ((100, "west"), (200, "north")):
        queues = queues.moved({0: cluster}, {0: 0}, now_ms, at_once=False).settled({0: 1}, now_ms + 1)
    north = queues.at("north")
    assert north.earlier(0, 0) == ("west", "east")
    assert north.earlier(0, 150) == ("west",)
    assert north.earlier(0, 300) == ()


def test_static_19_a_torn_copy_is_told() -> None:
    whole = stay(cluster="east", local_start=0, logic_offset=0, local_end=7)
    assert list(world(whole, stay(cluster="west", local_start=0, logic_offset=7)).faults()) == []
    for following in (
        stay(cluster="west", local_start=0, logic_offset=6),
        stay(cluster="east", local_start=7, logic_offset=7),
        stay(cluster="south", local_start=0, logic_offset=7),
    ):
        assert len(list(world(whole, following).faults())) == 1
    open_stay = stay(cluster="east", local_start=0, logic_offset=0)
    assert len(list(world(open_stay, stay(cluster="west", local_start=0, logic_offset=7)).faults())) == 1


def test_static_13_a_stay_without_messages_is_passed_by() -> None:
    queues = world(stay("east", 0, 0, 0), stay("west", 0, 10_000, 0), stay("north", 0, 20_000))
    for offset in (0, 10_000, 20_000):
        assert queues.place(0, offset) == (queues.queues[0][-1], 0)


def test_static_15_the_clusters_with_messages_are_told_oldest_first() -> None:
    queues = world(stay("west", 0, 0, 4), stay("east", 0, 4, 6), stay("west", 4, 6, 9), stay("north", 0, UNDECIDED))
    assert queues.clusters_of(0) == ("west", "east")
    assert queues.readers == {"west", "east"}


@given(MOVES, st.dictionaries(st.sampled_from(CLUSTERS), st.integers(0, 40)), st.integers(0, 20))
def test_static_17_old_stays_are_dropped_when_nothing_of_them_is_stored(
    moves: list[tuple[str, bool, int, int]], starts: dict[str, int], before_ms: int
) -> None:
    played = Played(world(stay("east", 0, 0)))
    played.send("east", 2)
    for now_ms, (cluster, at_once, late, count) in enumerate(moves):
        played.move(cluster, at_once=at_once, late=late, now_ms=2 * now_ms)
        played.send(played.queues.queues[0][-1].cluster, count)
    (stays,), left = (
        played.queues.queues,
        played.queues.dropped({c: {0: at} for c, at in starts.items()}, before_ms, 99),
    )
    kept = left.queues[0]
    assert kept and stays[len(stays) - len(kept) :] == kept
    for one in stays[: len(stays) - len(kept)]:
        assert one.is_ended and one.end_ms < before_ms and starts.get(one.cluster, -1) >= one.local_end
    assert (left is played.queues) == (kept == stays) and not list(left.faults())
    if kept != stays:
        assert left.epoch > played.queues.epoch


def test_static_18_the_partitions_of_each_stay_are_shown_in_its_global_offsets() -> None:
    stays = (stay("east", 0, 0, 400), stay("west", 0, 400, 120), stay("east", 400, 10_000))
    old = Segment(gen=0, partition="t#0@a", logic_offset=0, end_offset=400, start_ms=0, update_ms=0)
    new = Segment(gen=1, partition="t#1@b", logic_offset=400, start_ms=0, update_ms=0)
    queue = LogicalQueue(0, (old, new))
    for segment, offset, shown in ((old, 0, 0), (old, 399, 399), (new, 0, 10_000), (new, 7, 10_007)):
        place = GlobalPlace(world(*stays), SegmentOf(queue, segment))
        assert (place.name, place.shown(offset)) == (global_queue_name(0), shown)
    undecided = GlobalPlace(world(*stays[:2], stay("east", 400, UNDECIDED)), SegmentOf(queue, new))
    assert undecided.shown(7) == UNDECIDED


def test_static_10_messages_without_global_offsets_are_unseen_where_they_are_taken() -> None:
    queues = world(stay("east", 0, 0))
    assert not queues.unseen
    for at_once in (True, False):
        moving = queues.moved({0: "west"}, {0: 0}, 1, at_once=at_once)
        assert [moving.at(cluster).unseen for cluster in ("east", "west")] == [set(), {0} if at_once else set()]
        assert not moving.settled({0: 5}, 2).at("west").unseen
