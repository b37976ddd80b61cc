"""A group's progress in the logical queues of a static topic over REST (SPEC STATIC-2, 15, 16, 20)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.static.mappings import MappingRemoved
from tests.api.routes.test_group_offsets import commit, path_of, reset
from tests.api.routes.test_groups import put_group
from tests.api.running import Api, config_for, running
from tests.api.static_queues import Q0, Q1, StaticTopic, hold_seals, on_loop

A, B = "broker-a", "broker-b"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that seals only when a test asks for it."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        hold_seals(found)
        yield found


@pytest.fixture
def moved(api: Api, topic: str) -> StaticTopic:
    """Two queues; the first has offsets 0 to 3, 3 to 5 and 10,000 to 10,002 in three segments, the second 0 to 1."""
    made = StaticTopic(api, topic).put(2, A)
    made.send(1, "x")
    made.send(0, "a0", "a1", "a2")
    made.remap(B, queues=[0])
    made.send(0, "b0", "b1")
    made.remap(A, mode="available", queues=[0])
    made.send(0, "c0", "c1")
    put_group(api, topic)
    return made


def shown(api: Api, topic: str) -> dict[str, dict[str, Any]]:
    """What the group, which has the topic's name, is told of each partition."""
    reply = api.call("GET", path_of(topic, topic))
    assert reply.status == 200, reply
    return {view["partition"]: view for view in reply.json["partitions"]}


def offsets(api: Api, topic: str) -> Any:
    return api.call("GET", path_of(topic, topic)).json["offsets"]


def lanes(made: StaticTopic) -> list[int | None]:
    """The group's stored progress in each segment of the first queue."""

    async def known() -> list[int | None]:
        found = []
        for segment in made.queue().segments:
            lane = LaneKey(made.id, made.name, False, segment.partition)
            committed = await made.api.service.lanes.committed(lane)
            found.append(None if committed is None else committed.offset)
        return found

    return on_loop(made.api, known())


# Shown ----------------------------------------------------------------------------------------------------------------


def test_static_02_a_group_sees_queues_by_name_and_no_segments(api: Api, moved: StaticTopic) -> None:
    found = shown(api, moved.name)
    assert list(found) == [Q0, Q1]
    bounds = {name: (view["min_offset"], view["end_offset"], view["lag"]) for name, view in found.items()}
    assert bounds == {Q0: (0, 10_002, 7), Q1: (0, 1, 1)}
    assert offsets(api, moved.name) == {}


def test_static_15_lag_counts_messages_not_offsets(api: Api, moved: StaticTopic) -> None:
    for offset, lag in ((1, 6), (3, 4), (4, 3), (5, 2), (10_000, 2), (10_001, 1), (10_002, 0)):
        assert commit(api, moved.name, moved.name, {Q0: offset}).status == 200
        assert shown(api, moved.name)[Q0]["lag"] == lag
    group = api.call("GET", f"/v1/groups/{moved.name}").json
    assert [(one["lag"], [view["partition"] for view in one["partitions"]]) for one in group["topics"]] == [
        (1, [Q0, Q1])
    ]


def test_static_15_messages_without_a_logical_offset_are_lag_already(api: Api, moved: StaticTopic) -> None:
    commit(api, moved.name, moved.name, {Q0: 10_002})
    moved.begin_remap(B, mode="available", queues=[0])
    moved.send(0, "d0", "d1")
    view = shown(api, moved.name)[Q0]
    assert (view["committed_offset"], view["end_offset"], view["lag"]) == (10_002, 10_002, 2)


def test_static_22_a_queue_that_cannot_be_had_keeps_its_place(api: Api, moved: StaticTopic) -> None:
    removed = MappingRemoved(topic_id=moved.id, holder=A)
    on_loop(api, api.service.meta.submit_any(lambda _: (removed,)))
    found = shown(api, moved.name)
    assert [(name, view["lag"], view["end_offset"]) for name, view in found.items()] == [
        (Q0, None, None),
        (Q1, None, None),
    ]
    refused = commit(api, moved.name, moved.name, {Q0: 1})
    assert (refused.status, refused.json["code"]) == (503, "queue_unserved")


# Commits --------------------------------------------------------------------------------------------------------------


def test_static_16_a_commit_is_stored_against_segments_and_told_in_logical_offsets(
    api: Api, moved: StaticTopic
) -> None:
    told = commit(api, moved.name, moved.name, {Q0: 4, Q1: 1})
    assert told.json["offsets"] == {Q0: 4, Q1: 1} == offsets(api, moved.name)
    assert lanes(moved) == [3, 1, None]
    told = commit(api, moved.name, moved.name, {Q0: 10_001})
    assert told.json["offsets"] == {Q0: 10_001}
    assert lanes(moved) == [3, 2, 1]


def test_cons_04_a_commit_in_a_queue_moves_forward_only(api: Api, moved: StaticTopic) -> None:
    commit(api, moved.name, moved.name, {Q0: 10_001})
    back = commit(api, moved.name, moved.name, {Q0: 2})
    assert (back.status, back.json["offsets"]) == (200, {Q0: 10_001})
    assert offsets(api, moved.name) == {Q0: 10_001}


def test_static_14_a_commit_in_a_hole_is_one_at_its_end(api: Api, moved: StaticTopic) -> None:
    assert commit(api, moved.name, moved.name, {Q0: 7_000}).status == 200
    assert offsets(api, moved.name) == {Q0: 10_000}
    assert lanes(moved) == [3, 2, 0], "it outlives the segment before the hole"
    assert shown(api, moved.name)[Q0]["lag"] == 2


def test_static_25_a_remapping_that_skips_offsets_changes_nothing_that_was_committed(
    api: Api, moved: StaticTopic
) -> None:
    path, name = path_of(moved.name, moved.name), moved.name

    def told() -> tuple[int, str | None, int]:
        view = shown(api, name)[Q0]
        return view["committed_offset"], view["metadata"], view["lag"]

    def committed(offset: int, text: str) -> Any:
        return api.call("PUT", path, {"offsets": {Q0: offset}, "metadata": {Q0: text}}).json["offsets"][Q0]

    assert committed(10_002, "before") == 10_002
    moved.remap(B, mode="available", queues=[0])
    assert told() == (10_002, "before", 0)
    moved.send(0, "d0")
    assert told() == (10_002, "before", 1)
    assert committed(10_002, "again") == 10_002 and told() == (10_002, "again", 1)
    moved.remap(A, mode="available", queues=[0])
    assert told() == (10_002, "again", 1), "whatever comes behind it"
    assert committed(20_000, "there") == 20_000 and told() == (20_000, "there", 1)
    assert committed(10_002, "late") == 20_000 and told() == (20_000, "there", 1)
    assert committed(20_001, "end") == 20_001 and told() == (20_001, "end", 0)


def test_static_16_progress_follows_the_queue_over_a_remapping(api: Api, moved: StaticTopic) -> None:
    commit(api, moved.name, moved.name, {Q0: 10_002})
    moved.remap(B, queues=[0])
    assert offsets(api, moved.name) == {Q0: 10_002}
    moved.send(0, "d0")
    assert shown(api, moved.name)[Q0]["lag"] == 1
    assert commit(api, moved.name, moved.name, {Q0: 10_003}).status == 200
    assert shown(api, moved.name)[Q0]["lag"] == 0


def test_static_22_offsets_of_segments_and_of_the_future_are_refused(api: Api, moved: StaticTopic) -> None:
    for segment in moved.queue().segments:
        refused = commit(api, moved.name, moved.name, {segment.partition: 1})
        assert (refused.status, refused.json["code"]) == (422, "physical_partition")
    refused = commit(api, moved.name, moved.name, {Q0: 10_003})
    assert (refused.status, refused.json["code"], refused.json["end_offset"]) == (422, "offset_out_of_range", 10_002)
    assert refused.json["field"] == f"offsets.{Q0}"
    assert commit(api, moved.name, moved.name, {"7@__logical_queue_broker__": 1}).status == 404
    assert lanes(moved) == [None, None, None]


# Resets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "told", "stored"),
    [
        ("first", 0, [0, 0, 0]),
        ("last", 10_002, [3, 2, 2]),
        ({Q0: 4}, 4, [3, 1, 0]),
        ({Q0: 10_001}, 10_001, [3, 2, 1]),
        ({Q0: 1}, 1, [1, 0, 0]),
    ],
)
def test_static_20_a_reset_puts_all_segments_where_the_offset_wants_them(
    api: Api, moved: StaticTopic, to: Any, told: int, stored: list[int]
) -> None:
    commit(api, moved.name, moved.name, {Q0: 10_000})
    answer = reset(api, moved.name, moved.name, to)
    assert answer["offsets"][Q0] == told == offsets(api, moved.name)[Q0]
    assert lanes(moved) == stored


def test_static_20_a_reset_to_a_time_looks_at_all_segments(api: Api, moved: StaticTopic) -> None:
    stored = [moved.fetch(offset)["messages"][0] for offset in (0, 1, 2, 3, 4, 10_000, 10_001)]
    for message in (stored[1], stored[4], stored[6]):
        answer = reset(api, moved.name, moved.name, message["append_time"])
        # On a fast disk, several may be appended in the millisecond that the time names.
        first = next(one["offset"] for one in stored if one["append_time"] == message["append_time"])
        assert answer["offsets"][Q0] == first == offsets(api, moved.name)[Q0]
    later = datetime(2999, 1, 1, tzinfo=UTC).isoformat()
    assert reset(api, moved.name, moved.name, later)["offsets"] == {Q0: 10_002, Q1: 1}


def test_pop_18_a_commit_of_offsets_read_before_a_reset_is_refused(api: Api, moved: StaticTopic) -> None:
    told = commit(api, moved.name, moved.name, {Q0: 10_001}).json
    reset(api, moved.name, moved.name, "first")
    moved.remap(B, queues=[0])
    late = commit(api, moved.name, moved.name, {Q0: 10_002}, epochs={Q0: told["epochs"][Q0]})
    assert (late.status, late.json["code"]) == (409, "epoch_over")
    assert offsets(api, moved.name)[Q0] == 0
    epochs = api.call("GET", path_of(moved.name, moved.name)).json["epochs"]
    again = commit(api, moved.name, moved.name, {Q0: 10_002}, epochs={Q0: epochs[Q0]})
    assert (again.status, again.json["offsets"]) == (200, {Q0: 10_002})


@pytest.mark.parametrize(("fails", "position"), [(1, 3), (2, 5)])
def test_static_16_a_commit_that_is_cut_short_is_not_beyond_what_was_committed(
    api: Api, moved: StaticTopic, monkeypatch: pytest.MonkeyPatch, fails: int, position: int
) -> None:
    """The lanes of older segments come first; here the process of one of the lanes stops serving it."""
    commit(api, moved.name, moved.name, {Q0: 1})
    lost, store = moved.queue().segments[fails].partition, api.service.lanes.commit

    async def failing(lane: LaneKey, *arguments: Any, **more: Any) -> Any:
        if lane.partition == lost:
            raise Unavailable("it is being taken over", code="broker_unavailable")
        return await store(lane, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(api.service.lanes, "commit", failing)
        assert commit(api, moved.name, moved.name, {Q0: 10_001}).status == 503
    assert offsets(api, moved.name) == {Q0: position}, "behind the segments whose lanes were moved to their ends"
    assert commit(api, moved.name, moved.name, {Q0: 10_001}).json["offsets"] == {Q0: 10_001}
