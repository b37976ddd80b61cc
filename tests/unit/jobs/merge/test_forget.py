"""Which checkpoints may go, in columns, against the core's rule for one (SPEC POP-12, POP-14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.jobs.merge.checkpoint_batch import decode, fold
from deltamq.jobs.merge.forget import COLUMNS, RECORD_LATE_MS, Lives, forgettable
from deltamq.mq.limits import STAY_BUFFER_MS
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import OffsetsReset, decide_delete_group, decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_delete_topic, decide_put_topic
from deltamq.mq.names import CONSUMER_OFFSETS_ID
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Span
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import Ack, Done, Record
from deltamq.mq.queue.revive_log import fold as core_fold
from tests.unit.jobs.merge.test_checkpoint_batch import stored_rows
from tests.unit.mq.checkpoints import spans
from tests.unit.mq.queue.test_checkpoint import POP

TOPIC, GROUP = "orders", "billing"


def meta() -> Meta:
    empty = Meta()
    made = empty.apply_all(decide_put_topic(empty.topics, TOPIC, TopicRequest(partitions=1), ("A",), POP.topic_id, 0))
    return made.apply_all(decide_put_group(made.groups, GROUP, GroupRequest(), 0))


META = meta()
EPOCH = META.groups.group(GROUP).epoch
LANE = LaneKey(POP.topic_id, GROUP, False, POP.partition)
DUE_MS = POP.revive_time_ms

bits = st.integers(1, 2**32 - 1)


def test_kafka_30_how_far_a_group_has_read_the_topic_of_offsets_is_kept_while_there_is_the_group() -> None:
    lane = LANE._replace(topic_id=CONSUMER_OFFSETS_ID, partition="rmq_sys_OFFSETS_deltamq@A")
    assert not Lives.of(META).over(lane, EPOCH) and Lives.of(META).over(lane._replace(topic_id="gone"), EPOCH)
    assert Lives.of(META.apply_all(decide_delete_group(META.groups, GROUP))).over(lane, EPOCH)


@st.composite
def about_one_checkpoint(draw: st.DrawFn) -> list[Record]:
    """Its record, perhaps, and some about it."""
    checkpoint = Checkpoint(pop=replace(POP, epoch=EPOCH), span=draw(spans()))
    kinds = st.sampled_from([Ack, Done])
    others = draw(st.lists(st.builds(lambda kind, b: kind(checkpoint.key, b, DUE_MS), kinds, bits), max_size=3))
    own: list[Record] = [checkpoint] if draw(st.booleans()) else []
    return [*own, *others, *draw(st.just([]) if own or others else st.just([Ack(checkpoint.key, 1, DUE_MS)]))]


def may_go(records: list[Record], known: Meta, committed: Committed | None, now_ms: int) -> list[bool]:
    rows = fold([decode(stored_rows(records))]).select(COLUMNS)
    progress = {} if committed is None else {LANE: (TOPIC, committed)}
    found: list[bool] = forgettable(rows, Lives.of(known), progress, now_ms).to_pylist()
    return found


@given(about_one_checkpoint(), st.integers(0, 2**37), st.integers(-2, 2))
def test_pop_14_a_row_goes_when_the_core_says_so(records: list[Record], committed: int, late_ms: int) -> None:
    (state,) = core_fold({}, records).values()
    now_ms = max(DUE_MS, POP.pop_time_ms + STAY_BUFFER_MS) + RECORD_LATE_MS + late_ms
    expected = state.may_forget(committed, now_ms, RECORD_LATE_MS)
    assert may_go(records, META, Committed(EPOCH, committed), now_ms) == [expected]


def test_no_rows_no_answers() -> None:
    assert may_go([], META, None, 0) == []


@pytest.mark.parametrize("ended", ["topic", "group", "epoch"])
def test_pop_12_what_is_of_an_earlier_life_goes_at_once(ended: str) -> None:
    open_one = Checkpoint(pop=replace(POP, epoch=EPOCH), span=Span(7, 3))
    events = {
        "topic": decide_delete_topic(META.topics, TOPIC),
        "group": decide_delete_group(META.groups, GROUP),
        "epoch": (OffsetsReset(group=GROUP, topic=TOPIC, epoch=EPOCH + 1, offsets=((LANE, 0),)),),
    }
    assert may_go([open_one], META, None, 0) == [False]
    assert may_go([open_one], META.apply_all(events[ended]), None, 0) == [True]
