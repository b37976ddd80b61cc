"""The in-memory match under any sequence of calls, failures, crashes and clocks set back by them (SPEC POP-8, POP-9,
POP-13, POP-14).

One partition, one group. The log and the committed offset are what is durable; a crash takes the rest. After every
step each message that was ever given away is accounted for exactly once.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import CheckpointKey, Pop, Span, indexes, spans_of
from deltamq.mq.queue.lane import BufferSettings, HeldState, StoreCheckpoint
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import Ack, CheckpointState, Record, fold
from tests.unit.mq.queue.test_buffer import KEY, pop_of

LIMITS = BufferSettings(checkpoints_max=6, partition_checkpoints_max=4)


class World:
    """A buffer, what it made durable, and what its clients know."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.tenure = 0
        self.log: list[Record] = []
        self.committed = 0
        #: Checkpoints given to clients, of this life of the process and of earlier ones: what their handles say.
        self.given: list[tuple[Span, Pop, int]] = []
        #: Offsets whose ack was answered with success, and of these the ones that a crash may not forget.
        self.acked: set[int] = set()
        self.acked_durably: set[int] = set()
        #: Offsets that a pop's filter left out: they need nobody.
        self.filtered: set[int] = set()
        self.start()

    def start(self) -> None:
        self.tenure += 1
        self.buffer = Buffer(LIMITS)
        self.lane = self.buffer.open_lane(
            KEY,
            Committed(1, self.committed),
            tenure=self.tenure,
            now_ms=self.now_ms,
            states=self.states.values(),
        )

    @property
    def states(self) -> dict[CheckpointKey, CheckpointState]:
        return fold({}, self.log)

    def crash(self, later_ms: int) -> None:
        """Killed, and started again by a clock that shows so much more, or less."""
        self.now_ms += later_ms
        self.acked = set(self.acked_durably)
        self.start()

    def store(self, decisions: list[StoreCheckpoint], *, works: bool) -> None:
        for decision in decisions:
            if works:
                self.log.append(decision.checkpoint)
                span = decision.checkpoint.span
                self.acked_durably |= {span.offset_of(i) for i in indexes(decision.checkpoint.bit_map)}
                self.buffer.stored(decision)
            else:
                self.buffer.store_failed(decision, self.now_ms)

    def pop(self, count: int, gap: int, invisible_ms: int, *, works: bool) -> None:
        start, limit = self.buffer.next_read(self.lane)
        stop = start + count if limit is None else min(start + count, limit)
        offsets = [offset for offset in range(start, stop) if not gap or offset % gap]
        seen = {offset for state in self.states.values() for offset in offsets_of(state)}
        assert not seen & set(offsets), "what is stored is not popped again"
        assert not self.acked_durably & set(offsets)
        spans = spans_of(offsets)
        pop = pop_of(self.now_ms, invisible_ms)
        decisions = self.buffer.hold(self.lane, pop, spans, stop, self.now_ms)
        self.store(decisions, works=works)
        self.given += [(span, pop, self.tenure) for span in spans]
        self.filtered |= set(range(start, stop)) - set(offsets)

    def ack(self, which: int, bits: int, *, works: bool) -> None:
        if not self.given:
            return
        span, pop, tenure = self.given[which % len(self.given)]
        if self.now_ms >= pop.revive_time_ms:
            return  # `check_live` refuses it
        bits &= span.full
        result = self.buffer.ack(self.lane, span.start_offset, pop.pop_time_ms, bits, self.now_ms, tenure=tenure)
        if result.held is not None:
            if works:
                held = result.held
                key = held.checkpoint().key
                self.log.append(Ack(key, result.store, held.pop.revive_time_ms))
                self.buffer.ack_stored(held, result.store, self.now_ms)
                self.acked_durably |= {held.span.offset_of(i) for i in indexes(result.store)}
            else:
                self.buffer.ack_failed(result.held, result.store)
        lost = 0 if works else result.store
        self.acked |= {span.offset_of(i) for i in indexes(bits & ~result.refused & ~lost)}

    def change(self, which: int, index: int, invisible_ms: int, *, works: bool) -> None:
        if not self.given:
            return
        span, pop, tenure = self.given[which % len(self.given)]
        try:
            change = self.buffer.change(
                self.lane,
                span.start_offset,
                pop.pop_time_ms,
                index % span.num,
                tenure=tenure,
                now_ms=self.now_ms,
                invisible_ms=invisible_ms,
                revive_queue=1,
            )
        except Conflict:
            return
        if not works:
            self.buffer.change_failed(change)
            return
        self.log.append(change.checkpoint)
        self.buffer.changed(change, self.now_ms)
        self.given.append((change.checkpoint.span, change.checkpoint.pop, self.tenure))

    def advance(self, ms: int, *, works: bool) -> None:
        self.now_ms += ms
        self.store(self.buffer.tick(self.now_ms), works=works)

    def flush_commits(self) -> None:
        for commit in self.buffer.commits():
            assert commit.offset > self.committed or commit.offset == self.lane.committed
            self.committed = max(self.committed, commit.offset)
            self.acked_durably |= {offset for offset in self.acked if offset < commit.offset}

    def check(self) -> None:
        assert self.committed <= self.lane.committed <= self.lane.latest
        assert len(self.buffer) == self.lane.held_count <= LIMITS.partition_checkpoints_max + 40
        open_in_log = [offset for state in self.states.values() for offset in offsets_of(state, state.open)]
        assert len(open_in_log) == len(set(open_in_log)), "a message has one live checkpoint"
        in_memory = [
            held.span.offset_of(i)
            for held in self.lane.live.values()
            if held.state in (HeldState.HELD, HeldState.LEAVING)
            for i in indexes(held.full & ~held.spent)
        ]
        assert len(in_memory) == len(set(in_memory))
        known = sorted(in_memory + open_in_log)
        assert len(known) == len(set(known)), "given away twice"
        assert not self.acked & set(known), "acknowledged, and yet in flight"
        below = set(range(self.lane.latest))
        assert below <= self.acked | self.filtered | set(known), "lost"
        assert all(offset >= self.lane.committed for offset in in_memory), "the offset passed what only memory knows"


def offsets_of(state: CheckpointState, bits: int | None = None) -> list[int]:
    if state.checkpoint is None:
        return []
    span = state.checkpoint.span
    return [span.offset_of(i) for i in indexes(span.full if bits is None else bits)]


which = st.integers(0, 40)
works = st.sampled_from([True, True, True, False])
waits = st.sampled_from([500, 2_000, 4_600, 9_000, 60_000])
steps = st.one_of(
    st.tuples(st.just("pop"), st.integers(1, 70), st.sampled_from([0, 0, 1, 3]), waits, works),
    st.tuples(st.just("ack"), which, st.sampled_from([1, 0b101, 2**32 - 1, 2**32 - 2]), works),
    st.tuples(st.just("change"), which, st.integers(0, 31), waits, works),
    st.tuples(st.just("advance"), st.sampled_from([0, 1, 150, 2_500, 10_000]), works),
    st.tuples(st.just("commit")),
    st.tuples(st.just("crash"), st.sampled_from([1, 1, 0, -500, -4_000])),
)


@given(st.lists(steps, min_size=8, max_size=40))
def test_pop_14_whatever_happens_each_message_is_accounted_for_once(sequence: list[tuple[str, int]]) -> None:
    world = World()
    for kind, *arguments in sequence:
        if kind == "pop":
            count, gap, invisible_ms, ok = arguments
            world.pop(count, gap, invisible_ms, works=bool(ok))
        elif kind == "ack":
            lease, bits, ok = arguments
            world.ack(lease, bits, works=bool(ok))
        elif kind == "change":
            lease, index, invisible_ms, ok = arguments
            world.change(lease, index, invisible_ms, works=bool(ok))
        elif kind == "advance":
            ms, ok = arguments
            world.advance(ms, works=bool(ok))
        elif kind == "commit":
            world.flush_commits()
        else:
            world.crash(*arguments)
        world.check()
