"""Lives, settings and resets of groups (SPEC MODEL-5, POP-12, POP-18)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Conflict, Corrupt, NotFound, Refused
from deltamq.mq.meta.fold import event_from_json, event_to_json
from deltamq.mq.meta.group import (
    NO_OFFSET,
    GroupBegan,
    GroupEvent,
    GroupsState,
    OffsetsReset,
    Pause,
    StoredGroup,
    decide_begin,
    decide_delete_group,
    decide_pause_group,
    decide_put_group,
    decide_reset_offsets,
)
from deltamq.mq.meta.group_settings import GroupRequest, GroupSettings
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, Start, StartKind

ORDERS_A = LaneKey("id-1", "billing", False, "orders@A")
ORDERS_B = LaneKey("id-1", "billing", False, "orders@B")
OTHER = LaneKey("id-2", "billing", False, "other@A")
LAST = Start(StartKind.LAST)
PARTITIONS = ["orders@A", "orders@B"]
#: Two clients of the group, when it is a broadcast group.
ONE, TWO = "billing@one", "billing@two"


def put(state: GroupsState, name: str = "billing", now_ms: int = 5, **request: object) -> GroupsState:
    return state.apply_all(decide_put_group(state, name, GroupRequest.from_json(request), now_ms))


def reset(state: GroupsState, offsets: dict[LaneKey, int], topic: str = "orders") -> GroupsState:
    return state.apply_all(decide_reset_offsets(state, "billing", topic, offsets))


def deleted(state: GroupsState, name: str = "billing") -> GroupsState:
    return state.apply_all(decide_delete_group(state, name))


def test_a_group_is_made_as_asked_and_repeating_changes_nothing() -> None:
    state = put(GroupsState(), max_attempts=3)
    group = state.group("billing")
    assert (group.settings.max_attempts, group.epoch, group.created_ms) == (3, 1, 5)
    assert decide_put_group(state, "billing", GroupRequest(max_attempts=3), 99) == ()
    assert put(GroupsState()).group("billing").settings == GroupSettings()


def test_a_change_of_settings_keeps_the_epoch() -> None:
    state = put(put(GroupsState()), max_attempts=3)
    assert state.group("billing").epoch == 1
    assert state.group("billing").settings.max_attempts == 3
    assert state.epoch_of(ORDERS_A) == 1


def test_cons_12_a_pause_is_stored_once_and_outlives_a_change_of_settings() -> None:
    state = put(GroupsState())
    (event,) = decide_pause_group(state, "billing", Pause("why", 7, "ada"))
    state = put(state.apply_all([event]), max_attempts=3)
    assert state.group("billing").paused == Pause("why", 7, "ada")
    assert event_from_json(event.kind, event_to_json(event)) == event
    assert StoredGroup.of(state.group("billing")).group() == state.group("billing")
    assert decide_pause_group(state, "billing", Pause("why", 9, "ada")) == ()
    (reason,) = decide_pause_group(state, "billing", Pause("other", 9, "bob"))
    assert state.apply_all([reason]).group("billing").paused == Pause("other", 7, "bob")
    (end,) = decide_pause_group(state, "billing", None)
    assert state.apply_all([end]).group("billing").paused is None
    assert decide_pause_group(put(GroupsState()), "billing", None) == ()
    with pytest.raises(NotFound):
        decide_pause_group(GroupsState(), "billing", None)


def test_pop_18_a_reset_is_a_new_epoch_in_the_partitions_that_it_names() -> None:
    state = reset(put(GroupsState()), {ORDERS_A: 7})
    assert (state.epoch_of(ORDERS_A), state.epoch_of(ORDERS_B)) == (2, 1)
    assert state.committed_in(ORDERS_A, None) == Committed(2, 7)
    assert state.committed_in(ORDERS_B, None) is None
    again = reset(state, {ORDERS_A: 3, ORDERS_B: 0})
    assert again.committed_in(ORDERS_A, None) == Committed(3, 3)
    assert again.epoch_of(ORDERS_B) == 3


def test_pop_18_commits_of_an_earlier_epoch_are_void() -> None:
    state = reset(put(GroupsState()), {ORDERS_A: 7})
    assert state.committed_in(ORDERS_A, Committed(1, 99)) == Committed(2, 7)
    assert state.committed_in(ORDERS_A, Committed(2, 9)) == Committed(2, 9)
    assert state.committed_in(ORDERS_B, Committed(1, 99)) == Committed(1, 99)


def test_kafka_09_a_group_whose_offset_was_deleted_has_none_until_it_commits_again() -> None:
    state = reset(put(GroupsState()), {ORDERS_A: NO_OFFSET})
    assert state.committed_in(ORDERS_A, None) is None
    assert state.committed_in(ORDERS_A, Committed(1, 99)) is None
    assert state.epoch_of(ORDERS_A) == 2
    assert state.committed_in(ORDERS_A, Committed(2, 0)) == Committed(2, 0)
    assert state.committed_in(ORDERS_B, Committed(1, 99)) == Committed(1, 99)


def test_pop_12_a_group_that_was_deleted_and_made_again_has_another_epoch() -> None:
    first = reset(put(GroupsState()), {ORDERS_A: 7})
    gone = deleted(first)
    assert gone.epoch_of(ORDERS_A) is None
    again = put(gone)
    assert again.group("billing").epoch > 2
    assert again.epoch_of(ORDERS_A) == again.epoch_of(ORDERS_B) == again.group("billing").epoch
    assert again.committed_in(ORDERS_A, Committed(2, 99)) is None


def test_model_4_groups_are_independent() -> None:
    state = put(put(GroupsState()), "shipping")
    state = reset(state, {ORDERS_A: 7})
    assert state.epoch_of(ORDERS_A._replace(group="shipping")) == 2
    assert deleted(state, "shipping").epoch_of(ORDERS_A) == 3


def test_a_deleted_topic_takes_its_resets_along() -> None:
    state = reset(reset(put(GroupsState()), {ORDERS_A: 7}), {OTHER: 1}, "other")
    assert list(state.without_topic("id-1").resets) == [OTHER]


def began(state: GroupsState, topics: dict[str, int]) -> GroupsState:
    return state.apply_all(decide_begin(state, "billing", topics))


def start(state: GroupsState, lane: LaneKey) -> Start:
    return state.start_in(lane, state.group("billing"), PARTITIONS)


def test_model_4_a_group_begins_at_the_first_message_of_what_was_added_after_it_began() -> None:
    state = put(GroupsState(), consume_from="last")
    assert (start(state, ORDERS_A), start(state, ORDERS_B)) == (LAST, LAST), "it has begun nowhere"
    state = began(state, {"id-1": 1})
    assert (start(state, ORDERS_A), start(state, ORDERS_B)) == (LAST, Start())
    assert start(state, OTHER) == LAST, "in another topic it has not begun"
    assert start(state, ORDERS_A._replace(retry=True)) == Start(), "what is retried is all its own"
    late = began(put(GroupsState(), consume_from="last"), {"id-1": 2})
    assert start(late, ORDERS_B) == LAST, "the partition was there when it began"


def test_model_4_a_group_begins_in_a_topic_once_in_its_life_and_the_topics() -> None:
    state = began(put(GroupsState(), consume_from="last"), {"id-1": 1})
    assert decide_begin(state, "billing", {"id-1": 2}) == ()
    assert began(state, {"id-1": 2, "id-2": 5}).began == {("billing", "id-1"): 1, ("billing", "id-2"): 5}
    assert state.without_topic("id-1").began == {} != state.without_topic("id-2").began
    assert reset(state, {ORDERS_A: 7}).began == state.began, "a reset is no new life"
    assert put(put(state, max_attempts=3), "other").began == state.began
    assert deleted(state).began == {}


def test_a_group_that_begins_at_the_first_message_need_not_say_when() -> None:
    assert decide_begin(put(GroupsState()), "billing", {"id-1": 1}) == ()


def test_a_reset_of_nothing_is_no_event() -> None:
    assert decide_reset_offsets(put(GroupsState()), "billing", "orders", {}) == ()


def test_what_is_not_there_is_not_found() -> None:
    for decide in (
        lambda state: decide_delete_group(state, "billing"),
        lambda state: decide_begin(state, "billing", {"id-1": 1}),
        lambda state: decide_reset_offsets(state, "billing", "orders", {ORDERS_A: 0}),
    ):
        with pytest.raises(NotFound) as refused:
            decide(GroupsState())
        assert refused.value.code == "group_not_found"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "invalid_group_name"),
        ("a/b", "invalid_group_name"),
        ("..", "invalid_group_name"),
        ("%DLQ%x", "system_name"),
    ],
)
def test_model_5_bad_names_are_refused(name: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        put(GroupsState(), name)
    assert (refused.value.code, refused.value.field) == (code, "group")


def test_model_5_names_that_differ_only_by_case_are_refused() -> None:
    with pytest.raises(Conflict) as refused:
        put(put(GroupsState()), "Billing")
    assert refused.value.code == "group_name_case"


def history() -> list[GroupEvent]:
    """One event of each kind, and what they lead to."""
    state, events = GroupsState(), list[GroupEvent]()
    for decide in (
        lambda s: decide_put_group(s, "billing", GroupRequest(order="key", consume_from=LAST), 5),
        lambda s: decide_begin(s, "billing", {"id-1": 2, "id-2": 1}),
        lambda s: decide_reset_offsets(s, "billing", "orders", {ORDERS_A: 7, OTHER._replace(retry=True): 2}),
        lambda s: decide_put_group(s, "billing", GroupRequest(consume_strategy="broadcast"), 6),
        lambda s: decide_delete_group(s, ONE),
        lambda s: decide_delete_group(s, "billing"),
        lambda s: decide_put_group(s, "billing", GroupRequest(), 9),
    ):
        made = decide(state)
        state = state.apply_all(made)
        events += made
    return events


def test_events_survive_the_log() -> None:
    for event in history():
        assert event_from_json(event.kind, event_to_json(event)) == event
        assert event.key == "group/billing"


def test_a_damaged_event_is_corrupt() -> None:
    for event in history():
        with pytest.raises(Corrupt) as found:
            event_from_json(event.kind, b'{"group": {"name": 5}, "name": null, "topics": [["id-1", "2"]]}')
        assert found.value.code == "meta_event_corrupt"


def test_an_event_of_another_life_is_corrupt() -> None:
    made, begun, moved, changed, forgotten, gone, again = history()
    state = GroupsState().apply_all([made])
    unfit: list[list[GroupEvent]] = [[made, again], [made, gone, gone], [gone], [moved], [begun], [made, moved, moved]]
    for events in (*unfit, [forgotten], [changed, forgotten, forgotten]):
        with pytest.raises(Corrupt):
            GroupsState().apply_all(events)
    assert state.apply_all([made]) == state
    assert isinstance(moved, OffsetsReset) and isinstance(begun, GroupBegan)
    assert state.apply_all([begun, begun]) == state.apply_all([begun])


# Broadcast groups -----------------------------------------------------------------------------------------------------


def broadcast() -> GroupsState:
    return put(GroupsState(), consume_strategy="broadcast", consume_from="last")


def of(member: str) -> LaneKey:
    return ORDERS_A._replace(group=member)


def test_cons_07_each_client_is_a_reader_with_the_settings_of_its_group() -> None:
    state = broadcast()
    member = state.group(ONE)
    assert (member.name, member.epoch, member.settings) == (ONE, 1, state.group("billing").settings)
    assert state.group("billing").is_broadcast and not member.is_broadcast
    assert state.committed_in(of(ONE), Committed(1, 7)) == Committed(1, 7)
    assert state.committed_in(of(TWO), None) is None


def test_cons_07_a_reset_and_a_beginning_of_one_client_leave_the_others_alone() -> None:
    state = broadcast()
    state = state.apply_all(decide_begin(state, ONE, {"id-1": 1}))
    state = state.apply_all(decide_reset_offsets(state, TWO, "orders", {of(TWO): 3}))
    assert (state.epoch_of(of(ONE)), state.epoch_of(of(TWO))) == (1, 2)
    starts = [
        state.start_in(LaneKey("id-1", one, False, "orders@B"), state.group(one), PARTITIONS) for one in (ONE, TWO)
    ]
    assert starts == [Start(), LAST]


def test_cons_07_a_client_that_is_forgotten_begins_anew_and_the_others_go_on() -> None:
    state = broadcast()
    state = state.apply_all(decide_begin(state, ONE, {"id-1": 1}))
    state = state.apply_all(decide_reset_offsets(state, ONE, "orders", {of(ONE): 3}))
    state = deleted(state, ONE)
    assert state.committed_in(of(ONE), Committed(1, 7)) is None is state.committed_in(of(ONE), Committed(2, 7))
    assert state.committed_in(of(ONE), Committed(state.group(ONE).epoch, 2)) is not None
    assert state.committed_in(of(TWO), Committed(1, 7)) == Committed(1, 7)
    assert state.start_in(of(ONE), state.group(ONE), PARTITIONS) == LAST and state.began == {}


def test_cons_07_clients_end_with_their_group() -> None:
    state = broadcast()
    state = state.apply_all(decide_begin(state, ONE, {"id-1": 1}))
    state = state.apply_all(decide_reset_offsets(state, ONE, "orders", {of(ONE): 3}))
    state = deleted(deleted(state, TWO))
    assert (state.resets, state.began, state.forgotten) == ({}, {}, {})
    with pytest.raises(NotFound):
        state.group(ONE)
    again = put(state, consume_strategy="broadcast")
    assert again.committed_in(of(ONE), Committed(1, 7)) is None, "what it had in the group's earlier life is void"


def test_cons_07_only_broadcast_groups_have_clients_with_names() -> None:
    with pytest.raises(NotFound, match="billing is not a broadcast group"):
        put(GroupsState()).group(ONE)
    with pytest.raises(Refused) as refused:
        put(broadcast(), ONE)
    assert refused.value.code == "invalid_group_name"
