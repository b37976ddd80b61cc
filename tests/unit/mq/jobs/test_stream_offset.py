"""Positions of streams as checkpoint folders keep them (SPARK-2)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.streams import StreamOffset, TopicOffset, messages_behind

OFFSETS = st.dictionaries(st.text(max_size=5), st.integers(0, 2**63 - 1), max_size=5)
TOPICS = st.dictionaries(st.text(max_size=5), st.builds(TopicOffset, st.text(max_size=5), OFFSETS), max_size=4)


def _of(**offsets: int) -> StreamOffset:
    return StreamOffset(warehouse="w", topics={"t": TopicOffset("id", offsets)})


@given(TOPICS)
def test_spark_02_a_position_survives_its_checkpoint_and_has_one_text(topics: dict[str, TopicOffset]) -> None:
    text = json.dumps(StreamOffset(warehouse="w", topics=topics).to_json())
    read = StreamOffset.from_json(json.loads(text))
    assert read == StreamOffset(warehouse="w", topics=topics)
    shuffled = {name: TopicOffset(one.id, dict(reversed(one.partitions.items()))) for name, one in topics.items()}
    other = StreamOffset(warehouse="w", topics=dict(reversed(shuffled.items())))
    assert json.dumps(other.to_json()) == text


def test_spark_02_a_position_of_a_newer_release_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"newer release \(format 2"):
        StreamOffset.from_json({"version": 2, "positions": []})


def test_spark_02_a_position_of_an_older_release_is_upgraded() -> None:
    old = {"version": 0, "warehouse": "w", "topic": "t", "id": "id", "offsets": {"a": 3}}

    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        topics = {stored["topic"]: {"id": stored["id"], "partitions": stored["offsets"]}}
        return {"version": 1, "warehouse": stored["warehouse"], "topics": topics}

    assert StreamOffset.from_json(old, upgrades={0: upgraded}) == _of(a=3)  # type: ignore[dict-item]
    with pytest.raises(Corrupt, match="never a format 0"):
        StreamOffset.from_json(old)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"version": "1", "warehouse": "", "topics": {}},
        {"version": 1, "topics": {}},
        {"version": 1, "warehouse": "", "topics": {"t": {"id": "", "partitions": {"a": -1}}}},
        {"version": 1, "warehouse": "", "topics": {"t": {"id": "", "partitions": {"a": 1.5}}}},
        {"0": 5},
    ],
)
def test_spark_02_a_damaged_position_is_no_position(value: object) -> None:
    with pytest.raises(Corrupt, match="position in the stream's checkpoint"):
        StreamOffset.from_json(value)


def test_spark_02_a_position_holds_for_one_life_of_a_topic() -> None:
    at = _of(a=3)
    assert (at.of("t", "id", "a"), at.of("t", "other", "a"), at.of("t", "id", "b")) == (3, None, None)


def test_spark_12_what_is_behind_is_counted_by_partition() -> None:
    assert messages_behind(_of(a=3, b=7), _of(a=10, b=7, c=2)) == {("t", "a"): 7, ("t", "b"): 0, ("t", "c"): 2}
    again = StreamOffset(warehouse="w", topics={"t": TopicOffset("other", {"a": 4})})
    assert messages_behind(_of(a=3), again) == {("t", "a"): 4}


def test_static_15_the_lag_leaves_out_the_holes_that_the_end_knows() -> None:
    end = TopicOffset("id", {"a": 10_030, "b": 5}, {"a": ((120, 10_000),)})
    latest = StreamOffset(warehouse="w", topics={"t": end})
    for at, messages in ((0, 150), (100, 50), (120, 30), (5_000, 30), (10_000, 30), (10_029, 1), (10_030, 0)):
        assert messages_behind(_of(a=at, b=5), latest) == {("t", "a"): messages, ("t", "b"): 0}
    assert StreamOffset.from_json(json.loads(json.dumps(latest.to_json()))) == latest


@pytest.mark.parametrize(
    ("earlier", "later", "is_before"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": 3}, True, id="one partition moved"),
        pytest.param({"a": 1}, {"a": 1, "b": 0}, True, id="a new partition"),
        pytest.param({"a": 1}, {"a": 1}, False, id="the same position"),
        pytest.param({"a": 2, "b": 2}, {"a": 1, "b": 3}, False, id="neither way"),
        pytest.param({"a": 1, "b": 1}, {"a": 2}, False, id="a partition is gone"),
    ],
)
def test_spark_22_a_position_is_before_another_one(
    earlier: dict[str, int], later: dict[str, int], is_before: bool
) -> None:
    first, second = (StreamOffset(topics={"t": TopicOffset("id", one)}) for one in (earlier, later))
    assert first.is_before(second) is is_before
    again = StreamOffset(topics={"t": TopicOffset("other", later)})
    assert not first.is_before(again), "a topic that was made again"
