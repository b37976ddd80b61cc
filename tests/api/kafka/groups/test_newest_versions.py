"""The calls of groups and producers in every version, and what the newer ones mean (SPEC KAFKA-17)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from deltamq import Admin
from deltamq.api.kafka.messages.apis import APIS
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommitTopic,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
    PlannedAssignment,
    SyncGroupRequest,
)
from deltamq.api.kafka.messages.log_messages import InitProducerIdRequest
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

_APIS = {api.request: api for api in APIS.values()}


class _Client:
    """A client whose calls are all a number of versions behind the newest ones, as far as there are such."""

    def __init__(self, raw: RawClient, behind: int) -> None:
        self._raw = raw
        self._behind = behind

    def version(self, call: type[Message]) -> int:
        return max(_APIS[call].low, _APIS[call].high - self._behind)

    def ask(self, request: Message) -> Any:
        return self._raw.ask(request, self.version(type(request)))


def _join(group: str, member: str = "", **other: Any) -> JoinGroupRequest:
    asked = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [GroupProtocol("range", b"what it reads")],
    }
    return JoinGroupRequest(group_id=group, member_id=member, **{**asked, **other})


def _sync(group: str, joined: Any, *members: str, **other: Any) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[PlannedAssignment(one, one.encode()) for one in members],
        **{"protocol_type": "consumer", "protocol_name": "range", **other},
    )


def _member(client: Any, group: str, **other: Any) -> Any:
    """Join as the only member, with the id that is given, and return the answer."""
    joined = client.ask(_join(group, **other))
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        joined = client.ask(_join(group, joined.member_id, **other))
    assert joined.error_code == 0
    return joined


def _id_of(kafka: KafkaApi, topic: str) -> bytes:
    with Admin(f"http://127.0.0.1:{kafka.api.port}") as admin:
        return uuid.UUID(admin.get_topic(topic).id).bytes


@pytest.mark.parametrize("behind", [0, 1, 2, 4, 9])
def test_kafka_17_a_member_lives_by_the_calls_of_every_age(kafka, topic, group, behind) -> None:
    kafka.api.put_topic(topic, partitions=1)
    assert kafka.api.send(topic, "one", "two").status == 200
    with RawClient(kafka.port) as raw:
        client = _Client(raw, behind)
        found = client.ask(FindCoordinatorRequest(key=group, keys=[group]))
        (found,) = found.coordinators or [found]
        assert (found.error_code, found.port) == (0, kafka.port)
        joined = _member(client, group)
        assert joined.leader == joined.member_id and [one.member_id for one in joined.members] == [joined.member_id]
        assert joined.protocol_name == "range"
        assert joined.protocol_type == ("consumer" if client.version(JoinGroupRequest) >= 7 else None)
        synced = client.ask(_sync(group, joined, joined.member_id))
        assert (synced.error_code, bytes(synced.assignment)) == (0, joined.member_id.encode())
        assert client.ask(HeartbeatRequest(group, joined.generation_id, joined.member_id)).error_code == 0
        (listed,) = (one for one in client.ask(ListGroupsRequest()).groups if one.group_id == group)
        shown = {5: ("Stable", "classic"), 4: ("Stable", ""), 3: ("", ""), 1: ("", ""), 0: ("", "")}
        assert (listed.state, listed.type) == shown[client.version(ListGroupsRequest)]
        (described,) = client.ask(DescribeGroupsRequest([group])).groups
        assert described.state == "Stable" and bytes(described.members[0].assignment) == joined.member_id.encode()
        _commit_and_fetch(client, group, topic, _id_of(kafka, topic), joined)
        named = LeaveGroupRequest(group, joined.member_id, [LeavingMember(joined.member_id, None, "enough")])
        left = client.ask(named)
        assert left.error_code == 0 and [one.error_code for one in left.members] in ([], [0])
        assert [one.error_code for one in client.ask(DeleteGroupsRequest([group])).results] == [0]
        assert group not in {one.group_id for one in client.ask(ListGroupsRequest()).groups}


def _commit_and_fetch(client: _Client, group: str, topic: str, topic_id: bytes, joined: Any) -> None:
    place = CommitTopic(name=topic, topic_id=topic_id, partitions=[CommitPartition(index=0, offset=2, metadata="m")])
    committed = client.ask(
        OffsetCommitRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, topics=[place]
        )
    )
    assert [one.error_code for one in committed.topics[0].partitions] == [0]
    by_id = client.version(OffsetCommitRequest) >= 10
    assert (committed.topics[0].topic_id if by_id else committed.topics[0].name) == (topic_id if by_id else topic)
    wanted = [OffsetFetchTopic(name=topic, topic_id=topic_id, partitions=[0])]
    found = client.ask(OffsetFetchRequest(group, wanted, [OffsetFetchGroup(group_id=group, topics=wanted)]))
    (offset,) = (found.groups or [found])[0].topics[0].partitions
    assert (offset.offset, offset.metadata, offset.error_code) == (2, "m", 0)


def test_kafka_17_several_coordinators_are_found_at_once(kafka, group) -> None:
    with RawClient(kafka.port) as raw:
        found = raw.ask(FindCoordinatorRequest(keys=[group, "another group"])).coordinators
        assert [(one.key, one.error_code, one.port) for one in found] == [
            (group, 0, kafka.port),
            ("another group", 0, kafka.port),
        ]
        assert raw.ask(FindCoordinatorRequest()).coordinators == []
        for kind, code in ((1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), (2, ErrorCode.INVALID_REQUEST)):
            (none,) = raw.ask(FindCoordinatorRequest(key_type=kind, keys=["a"])).coordinators
            assert (none.error_code, none.port) == (code, -1) and none.error_message
            assert raw.ask(FindCoordinatorRequest(key="a", key_type=kind), 3).error_code == code


def test_kafka_17_a_member_that_is_refused_leaves_no_group_behind(kafka, group) -> None:
    refused = {
        ErrorCode.INVALID_SESSION_TIMEOUT: _join(group, session_timeout_ms=5_999, protocols=[]),
        ErrorCode.UNKNOWN_MEMBER_ID: _join(group, "somebody"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _join(group, protocols=[]),
        ErrorCode.MEMBER_ID_REQUIRED: _join(group),
    }
    with RawClient(kafka.port) as raw:
        for version in (5, 9):
            for code, request in refused.items():
                answer = raw.ask(request, version)
                assert (answer.error_code, answer.protocol_name) == (code, None if version >= 7 else "")
        assert raw.ask(_join(group, protocol_type="")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        (shown,) = raw.ask(DescribeGroupsRequest([group])).groups
        assert (shown.error_code, shown.state) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Dead",
        ) and group in shown.error_message
        (older,) = raw.ask(DescribeGroupsRequest([group]), 5).groups
        assert (older.error_code, older.state) == (0, "Dead")
        assert group not in {one.group_id for one in raw.ask(ListGroupsRequest()).groups}
        (deleted,) = raw.ask(DeleteGroupsRequest([group])).results
        assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert kafka.api.call("GET", f"/v1/groups/{group}").status == 404


def test_kafka_17_who_plans_in_another_way_gets_no_part(kafka, group) -> None:
    with RawClient(kafka.port) as raw:
        joined = _member(raw, group)
        wrong = [{"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_name": None}]
        for other in wrong:
            answer = raw.ask(_sync(group, joined, joined.member_id, **other))
            assert (answer.error_code, answer.assignment) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, b"")
        right = raw.ask(_sync(group, joined, joined.member_id))
        assert (right.error_code, right.protocol_type, right.protocol_name) == (0, "consumer", "range")


def test_kafka_17_a_static_leader_that_comes_back_has_nothing_to_plan(kafka, group) -> None:
    with RawClient(kafka.port) as raw:
        first = _member(raw, group, group_instance_id="one")
        assert raw.ask(_sync(group, first, first.member_id, group_instance_id="one")).error_code == 0
        again = raw.ask(_join(group, group_instance_id="one"))
        assert (again.generation_id, again.leader, again.skip_assignment) == (1, again.member_id, True)
        assert [one.member_id for one in again.members] == [again.member_id]
        kept = raw.ask(_sync(group, again, group_instance_id="one"))
        assert bytes(kept.assignment) == first.member_id.encode()
        older = raw.ask(_join(group, group_instance_id="one"), 8)
        assert (older.generation_id, older.leader, older.members) == (1, again.member_id, [])


def test_kafka_17_each_member_that_leaves_has_its_own_outcome(kafka, group) -> None:
    with RawClient(kafka.port) as raw:
        joined = _member(raw, group, group_instance_id="one")
        asked = [LeavingMember("", "one", "gone"), LeavingMember("nobody", None), LeavingMember("", "two")]
        left = raw.ask(LeaveGroupRequest(group, members=asked))
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert left.error_code == 0
        assert [(one.member_id, one.group_instance_id, one.error_code) for one in left.members] == [
            ("", "one", 0),
            ("nobody", None, unknown),
            ("", "two", unknown),
        ]
        assert raw.ask(HeartbeatRequest(group, joined.generation_id, joined.member_id)).error_code == unknown
        assert raw.ask(LeaveGroupRequest(group)).error_code == 0
        assert raw.ask(LeaveGroupRequest(group, "nobody"), 2).error_code == unknown


def test_kafka_17_groups_are_listed_by_states_and_types(kafka, group) -> None:
    empty = f"{group}.empty"
    assert kafka.api.call("PUT", f"/v1/groups/{empty}", {}).status == 201
    with RawClient(kafka.port) as raw:
        _member(raw, group, protocol_type="connect")

        def names(**filters: list[str]) -> set[str]:
            found = raw.ask(ListGroupsRequest(**filters)).groups
            return {one.group_id for one in found} & {group, empty}

        assert names() == {group, empty}
        assert names(states=["empty"]) == {empty}
        assert names(states=["CompletingRebalance", "Stable"]) == {group}
        assert names(types=["Classic"]) == {group, empty}
        assert names(types=["consumer", "share"]) == names(states=["Dead"]) == names(states=["no state"]) == set()
        kinds = {one.group_id: one.protocol_type for one in raw.ask(ListGroupsRequest()).groups}
        assert (kinds[group], kinds[empty]) == ("connect", "consumer")


def test_kafka_17_the_process_that_knows_the_members_lists_the_groups(tmp_path, group) -> None:
    with kafka_running(tmp_path) as one, kafka_running(tmp_path) as two:
        assert two.api.call("PUT", f"/v1/groups/{group}", {}).status == 201
        with RawClient(one.port) as here, RawClient(two.port) as there:
            found = [raw.ask(FindCoordinatorRequest(keys=[group])).coordinators[0].port for raw in (here, there)]
            assert found in ([one.port] * 2, [two.port] * 2)
            knows, other = (here, there) if found[0] == one.port else (there, here)
            until(lambda: [one.group_id for one in knows.ask(ListGroupsRequest()).groups] == [group])
            empty = other.ask(ListGroupsRequest())
            assert (empty.error_code, empty.groups) == (0, [])
            away = ErrorCode.NOT_COORDINATOR
            assert other.ask(DescribeGroupsRequest([group])).groups[0].error_code == away
            assert other.ask(DeleteGroupsRequest([group])).results[0].error_code == away
            left = other.ask(LeaveGroupRequest(group, members=[LeavingMember("a", None)]))
            assert (left.error_code, left.members) == (away, [])


def test_kafka_17_offsets_of_several_groups_are_fetched_at_once(kafka, topic, group) -> None:
    kafka.api.put_topic(topic, partitions=2)
    place = CommitTopic(name=topic, partitions=[CommitPartition(index=1, offset=0, metadata="here")])
    commit = OffsetCommitRequest(group_id=group, generation_id=-1, member_id="", topics=[place])
    names = [OffsetFetchTopic(name=topic, partitions=[0, 1]), OffsetFetchTopic(name=f"{topic}.none", partitions=[0])]
    ids = [OffsetFetchTopic(topic_id=one, partitions=[1]) for one in (_id_of(kafka, topic), bytes(range(16)))]
    with RawClient(kafka.port) as raw:
        assert raw.ask(commit).topics[0].partitions[0].error_code == 0
        asked = [OffsetFetchGroup(group_id=one, topics=names) for one in (group, f"{group}.none", "")]
        known, unknown, refused = raw.ask(OffsetFetchRequest(groups=[*asked]), 8).groups
        assert refused.error_code == ErrorCode.INVALID_GROUP_ID and refused.topics == []
        assert _offsets(known) == [(topic, [(-1, "", 0), (0, "here", 0)]), (f"{topic}.none", [(-1, "", 0)])]
        assert _offsets(unknown) == [(topic, [(-1, "", 0), (-1, "", 0)]), (f"{topic}.none", [(-1, "", 0)])]
        everything = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=group, member_id="m", topics=None)])
        assert [_offsets(one) for one in raw.ask(everything, 9).groups] == [[(topic, [(0, "here", 0)])]]
        (by_id,) = raw.ask(OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=group, topics=ids)]), 10).groups
        assert [one.topic_id for one in by_id.topics] == [one.topic_id for one in ids]
        codes = [one.partitions[0].error_code for one in by_id.topics]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_ID] and by_id.topics[0].partitions[0].metadata == "here"
        (all_by_id,) = raw.ask(everything, 10).groups
        assert [one.topic_id for one in all_by_id.topics] == [ids[0].topic_id]
        (old,) = raw.ask(OffsetFetchRequest("", names[:1]), 1).topics
        assert {one.error_code for one in old.partitions} == {ErrorCode.INVALID_GROUP_ID}


def _offsets(group: Any) -> list[tuple[str, list[tuple[int, str, int]]]]:
    assert group.error_code == 0
    return [
        (one.name, [(part.offset, part.metadata, part.error_code) for part in one.partitions]) for one in group.topics
    ]


def test_kafka_17_a_commit_by_the_id_of_a_topic_that_was_made_anew_is_told_so(kafka, topic, group) -> None:
    kafka.api.put_topic(topic, partitions=1)
    old = _id_of(kafka, topic)
    assert kafka.api.call("DELETE", f"/v1/topics/{topic}").status == 204
    kafka.api.put_topic(topic, partitions=1)
    with RawClient(kafka.port) as raw:

        def commit(topic_id: bytes) -> int:
            place = CommitTopic(topic_id=topic_id, partitions=[CommitPartition(index=0, offset=0)])
            asked = OffsetCommitRequest(group_id=group, generation_id=-1, member_id="", topics=[place])
            (found,) = raw.ask(asked, 10).topics
            assert found.topic_id == topic_id
            return found.partitions[0].error_code

        assert commit(old) == ErrorCode.UNKNOWN_TOPIC_ID
        assert commit(_id_of(kafka, topic)) == 0


def test_kafka_17_a_commit_that_is_refused_leaves_no_group_behind(kafka, topic, group) -> None:
    kafka.api.put_topic(topic, partitions=1)

    def commit(name: str, index: int, **other: Any) -> int:
        place = CommitTopic(name=name, partitions=[CommitPartition(index=index, offset=0, **other)])
        asked = OffsetCommitRequest(group_id=group, generation_id=-1, member_id="", topics=[place])
        return raw.ask(asked).topics[0].partitions[0].error_code

    def state() -> str:
        return raw.ask(DescribeGroupsRequest([group])).groups[0].state

    with RawClient(kafka.port) as raw:
        assert commit(f"{topic}.none", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert commit(topic, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert commit(topic, 0, metadata="x" * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert state() == "Dead"
        assert commit(topic, 0) == 0
        assert state() == "Empty"


def test_kafka_17_a_producer_has_an_id_and_an_epoch_or_neither(kafka) -> None:
    with RawClient(kafka.port) as raw:
        for version in range(_APIS[InitProducerIdRequest].high + 1):
            made = raw.ask(InitProducerIdRequest(None, 1_000), version)
            assert (made.error_code, made.producer_epoch) == (0, 0) and made.producer_id >= 0
            assert (made.ongoing_producer_id, made.ongoing_producer_epoch) == (-1, -1)
        again = raw.ask(InitProducerIdRequest(None, 1_000, made.producer_id, 3))
        assert again.error_code == 0 and again.producer_id != made.producer_id
        for half in ((made.producer_id, -1), (-1, 0)):
            refused = raw.ask(InitProducerIdRequest(None, 1_000, *half))
            assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
        two_phases = InitProducerIdRequest("a transaction", 1_000, enable_two_phases=True, keep_prepared=True)
        assert raw.ask(two_phases).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
