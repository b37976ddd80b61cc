"""META-3: what a lane is when a service starts, from columns, is what it would be from all of its checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, LaneKey, Pop, Span
from deltamq.mq.queue.lane import Lane
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.queue.lane_states import LaneStates, lane_states
from tests.checkpoint_rows import rows_of_states

LANES = [LaneKey("id", group, retry, partition) for group in "gh" for retry in (False, True) for partition in ("p@a",)]
NOW_MS = 100_000


@st.composite
def stored(draw: st.DrawFn) -> tuple[CheckpointKey, CheckpointState]:
    """A checkpoint with any bits, due before or after now; or bits whose checkpoint nobody has seen."""
    lane = draw(st.sampled_from(LANES))
    diffs = draw(st.none() | st.lists(st.integers(1, 40), unique=True, max_size=4).map(lambda x: (0, *sorted(x))))
    num = len(diffs) if diffs else draw(st.integers(1, 32))
    attempts = draw(st.integers(1, 5) | st.lists(st.integers(1, 5), min_size=num, max_size=num).map(tuple))
    pop = Pop(
        topic="orders",
        topic_id=lane.topic_id,
        group=lane.group,
        epoch=draw(st.integers(1, 2)),
        partition=lane.partition,
        retry=lane.retry,
        pop_time_ms=draw(st.integers(NOW_MS - 50, NOW_MS - 40)),
        invisible_ms=draw(st.sampled_from([10, 40, 41, 50, 1_000])),
        revive_queue=draw(st.integers(0, 7)),
    )
    if not isinstance(attempts, int) and len(set(attempts)) == 1:
        attempts = attempts[0]
    span = Span(draw(st.integers(0, 200)), num, diffs, attempts)
    checkpoint = Checkpoint(pop=pop, span=span, revive_offset=draw(st.integers(0, 99)))
    bits = st.integers(0, span.full) | st.just(span.full)
    state = CheckpointState(checkpoint, draw(bits), draw(bits), draw(bits), pop.revive_time_ms)
    if draw(st.integers(0, 9)) == 0:
        state = replace(state, checkpoint=None)
    return checkpoint.key, state


some = st.lists(stored(), max_size=25).map(dict)


def as_objects(
    merged: dict[CheckpointKey, CheckpointState], newer: dict[CheckpointKey, CheckpointState]
) -> dict[LaneKey, list[CheckpointState]]:
    """The plain way: all of them joined, one object for each."""
    states = dict(merged)
    for key, state in newer.items():
        states[key] = states[key].join(state) if key in states else state
    found: dict[LaneKey, list[CheckpointState]] = {}
    for key, state in states.items():
        if state.checkpoint is not None:
            found.setdefault(key.lane, []).append(state)
    return found


def opened(states: LaneStates | list[CheckpointState], key: LaneKey, known: Committed) -> tuple[object, ...]:
    """What a lane knows when it was opened with these."""
    buffer = Buffer()
    if isinstance(states, LaneStates):
        covered, live = states.live(known.epoch, known.offset, NOW_MS)
        lane = buffer.open_lane(key, known, tenure=1, now_ms=NOW_MS, states=live, covered=covered)
    else:
        lane = buffer.open_lane(key, known, tenure=1, now_ms=NOW_MS, states=states)
    return _facts(lane)


def _facts(lane: Lane) -> tuple[object, ...]:
    held = {at: (one.pop, one.span, one.spent, one.replaced, one.state) for at, one in lane.live.items()}
    return lane.committed, lane.latest, list(lane.covered), held, lane.next_read()


@given(some, some, st.data())
def test_meta_03_a_lane_of_columns_is_the_lane_of_all_its_checkpoints(
    merged: dict[CheckpointKey, CheckpointState], newer: dict[CheckpointKey, CheckpointState], data: st.DataObject
) -> None:
    for key in data.draw(st.lists(st.sampled_from(sorted(merged)), unique=True) if merged else st.just([])):
        newer[key] = replace(merged[key], checkpoint=None, acked=data.draw(st.integers(0, 3)))
    found = lane_states(rows_of_states(merged), newer)
    plain = as_objects(merged, newer)
    assert found.keys() == plain.keys()
    for lane, states in plain.items():
        assert sorted(map(repr, found[lane])) == sorted(map(repr, states))
        assert len(found[lane]) == len(states)
        for known in (Committed(1, 0), Committed(2, 0), Committed(1, data.draw(st.integers(0, 240)))):
            assert opened(found[lane], lane, known) == opened(states, lane, known)
