"""A group's progress in a global queue, held by each cluster for its stays (SPEC STATIC-16, 19)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.static.progress import global_commit_parts, global_position, global_reset_parts, shown_in
from tests.unit.mq.static.test_global_queues import CLUSTERS, MOVES, Played, stay, world


def played(moves: list[tuple[str, bool, int, int]]) -> Played:
    """A queue that has moved like this; each move is a cluster, whether at once, late messages, and later ones."""
    found = Played(world(stay("east", 0, 0)))
    found.send("east", 2)
    for now_ms, (cluster, at_once, late, count) in enumerate(moves):
        found.move(cluster, at_once=at_once, late=late, now_ms=2 * now_ms)
        found.send(found.queues.queues[0][-1].cluster, count)
    return found


def offsets_of(found: Played) -> list[int]:
    """The global offset of each message, in order."""
    return sorted(shown_of(found, cluster, local) for cluster, local in found.sent)


def shown_of(found: Played, cluster: str, local: int) -> int:
    return found.queues.at(cluster).shown(0, local)


@given(MOVES, st.data())
def test_static_16_a_commit_leaves_a_position_at_the_next_message(
    moves: list[tuple[str, bool, int, int]], data: st.DataObject
) -> None:
    found = played(moves)
    offsets = offsets_of(found)
    offset = data.draw(st.integers(0, offsets[-1] + 1))
    done: dict[str, int | None] = {}
    for cluster, local in global_commit_parts(found.queues, 0, offset).items():
        done[cluster] = local
        at = global_position(found.queues, 0, done)
        assert not [one for one in offsets if offset <= one < at], "not beyond what was committed"
    left = [one for one in offsets if one >= global_position(found.queues, 0, done)]
    assert left == [one for one in offsets if one >= offset]


@given(MOVES, st.data())
def test_static_16_a_reset_leaves_the_messages_from_its_offset_on(
    moves: list[tuple[str, bool, int, int]], data: st.DataObject
) -> None:
    found = played(moves)
    offsets = offsets_of(found)
    offset = data.draw(st.integers(0, offsets[-1] + 1))
    parts = global_reset_parts(found.queues, 0, offset)
    assert set(parts) >= set(found.queues.clusters_of(0)) - {c for c in CLUSTERS if found.ends[c] == 0}
    left = sorted(shown_of(found, cluster, local) for cluster, local in found.sent if local >= parts.get(cluster, 0))
    assert left == [one for one in offsets if one >= offset]


def test_static_16_progress_in_a_newer_stay_does_not_pass_an_older_one() -> None:
    queues = world(stay("east", 0, 0, 400), stay("west", 0, 400, 120), stay("east", 400, 520))
    assert global_commit_parts(queues, 0, 580) == {"west": 120, "east": 460}
    assert global_position(queues, 0, {"east": 460, "west": 120}) == 580
    assert global_position(queues, 0, {"east": 460, "west": 100}) == 500
    assert global_position(queues, 0, {"east": 460, "west": None}) == 400
    assert global_position(queues, 0, {"east": 30, "west": 120}) == 30
    assert global_position(queues, 0, {}) == 0
    assert [shown_in(queues, 0, "east", local) for local in (30, 400, 460)] == [30, 520, 580]
    assert shown_in(queues, 0, "west", 120) == 520


def test_static_25_a_queue_that_moves_on_and_comes_back_changes_nothing_that_was_committed() -> None:
    there = (stay("east", 0, 0, 400), stay("west", 0, 10_000, 120))
    back = (*there, stay("east", 400, 20_000))
    done: dict[str, int | None] = dict(global_commit_parts(world(stay("east", 0, 0)), 0, 400))
    assert done == {"east": 400}
    for stays in (there, back):
        assert global_position(world(*stays), 0, done) == 400
        assert global_commit_parts(world(*stays), 0, 400) == {"east": 400}
    done |= global_commit_parts(world(*there), 0, 10_120)
    assert global_position(world(*back), 0, done) == 10_120
    assert global_commit_parts(world(*there), 0, 10_000) == {"east": 400, "west": 0}
    assert global_position(world(*there), 0, {"east": 400, "west": 0}) == 10_000
    assert global_position(world(*back), 0, done | global_commit_parts(world(*back), 0, 20_001)) == 20_001
