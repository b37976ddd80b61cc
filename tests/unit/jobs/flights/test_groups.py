"""What must become of events in a group, and what handlers did with them; every difference turns a line red."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from deltamq.jobs.flights.agreement import Agreement, compare_groups
from deltamq.jobs.flights.child import JobFailed
from deltamq.jobs.flights.group_account import (
    ONE_IN,
    REMAINDER,
    GroupAccount,
    GroupsLeft,
    expected_account,
    fails,
    handled_account,
)
from deltamq.jobs.flights.groups import GROUPS, fresh_groups, left_of
from deltamq.jobs.flights.replay import Ledger
from deltamq.jobs.flights.worker import DELIVERIES_SCHEMA, deliveries_of, read_deliveries, write_deliveries
from deltamq.mq.client.messages.message import SentBatch, SentRange
from deltamq.mq.wire.groups import GroupInfo, GroupPartition, GroupTopic

BAD = next(f"N{n}" for n in range(100_000) if zlib.crc32(f"N{n}".encode()) % ONE_IN == REMAINDER)
GOOD = "N1"
A, B = "flights@a", "flights@b"
ORIGIN = pa.struct([("topic", pa.string()), ("partition", pa.string()), ("offset", pa.int64())])

#: Key and body of each event, in order.
EVENTS = [(GOOD, b"0"), (BAD, b"1"), (None, b"2"), (BAD, b"3"), (GOOD, b"4")]
BAD_CRC = zlib.crc32(b"1") + zlib.crc32(b"3")


def ledger() -> Ledger:
    """Events 0 to 2 are at offsets 0 to 2 of one partition, 3 and 4 at 0 and 1 of the other."""
    rows = {"key": [key for key, _ in EVENTS], "tag": ["t"] * 5, "body": [body for _, body in EVENTS]}
    made = Ledger(pa.table(rows, schema=pa.schema([("key", "string"), ("tag", "string"), ("body", "binary")])), (A, B))
    made.note(0, sent(A, 3))
    made.note(3, sent(B, 2))
    return made


def sent(partition: str, count: int) -> SentBatch:
    part = SentRange(partition=partition, base_offset=0, count=count, indexes=None, durable=True, duplicate=False)
    return SentBatch(ranges=(part,))


def test_a_group_that_deals_with_everything_acknowledges_everything() -> None:
    found = expected_account("tower", ledger(), fails=False, held={})
    assert found == GroupAccount(
        group="tower", consumed=5, acknowledged=5, dead=0, dead_distinct=0, dead_crc=0, retried=0, left=0
    )


def test_the_events_of_failing_tails_are_dead_after_three_deliveries() -> None:
    assert (fails(BAD), fails(GOOD)) == (True, False)
    found = expected_account("repairs", ledger(), fails=True, held={})
    assert (found.acknowledged, found.dead, found.dead_distinct, found.retried) == (3, 2, 2, 4)
    assert found.dead_crc == BAD_CRC


def test_what_a_dead_worker_held_is_delivered_again_and_what_fails_anyway_not_more_often() -> None:
    assert ledger().rows_at({A: [0, 2], B: [1]}).tolist() == [0, 2, 4]
    assert expected_account("tower", ledger(), fails=False, held={A: [0, 1], B: [1]}).retried == 3
    assert expected_account("repairs", ledger(), fails=True, held={A: [0, 1], B: [0, 1]}).retried == 4 + 2


def test_what_nobody_sent_is_expected_nowhere() -> None:
    assert ledger().rows_at({A: [3], "flights@c": [0]}).tolist() == []


# The handlers -----------------------------------------------------------------------------------------------------


def popped(*rows: tuple[str, int, int, bytes, tuple[str, int] | None]) -> pa.Table:
    """Rows of a pop: partition, offset, attempt, body, origin."""
    origins = [None if at is None else {"topic": "flights", "partition": at[0], "offset": at[1]} for *_, at in rows]
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {
            "partition": pa.array(columns[0], pa.string()),
            "offset": pa.array(columns[1], pa.int64()),
            "delivery_attempt": pa.array(columns[2], pa.int32()),
            "body": pa.array(columns[3], pa.binary()),
            "origin": pa.array(origins, ORIGIN),
        }
    )


def test_a_retried_message_is_named_by_where_it_first_was() -> None:
    rows = popped((A, 5, 1, b"x", None), ("%RETRY%g_flights@a", 0, 2, b"y", (B, 7)))
    assert deliveries_of(rows, np.array([True, False])).to_pylist() == [
        {"partition": A, "offset": 5, "attempt": 1, "ok": True, "body_crc": 0},
        {"partition": B, "offset": 7, "attempt": 2, "ok": False, "body_crc": zlib.crc32(b"y")},
    ]


def deliveries(*rows: tuple[str, int, int, bool]) -> pa.Table:
    """Partition, offset, attempt, ok; the checksum of each failure is 100."""
    keys = DELIVERIES_SCHEMA.names
    made = [dict(zip(keys, (*row, 0 if row[3] else 100), strict=True)) for row in rows]
    return pa.Table.from_pylist(made, schema=DELIVERIES_SCHEMA)


def test_the_handlers_account_counts_messages_once_and_deliveries_each() -> None:
    first = deliveries((A, 0, 1, True), (A, 1, 1, False), (A, 1, 2, False))
    second = deliveries((B, 0, 1, True), (A, 1, 3, False), (B, 0, 2, True), (B, 1, 2, True))
    assert handled_account("repairs", [first, second], left=1) == GroupAccount(
        group="repairs", consumed=4, acknowledged=3, dead=1, dead_distinct=1, dead_crc=100, retried=4, left=1
    )


def test_a_message_given_up_twice_shows() -> None:
    found = handled_account("repairs", [deliveries((A, 1, 3, False), (A, 1, 3, False))], left=0)
    assert (found.dead, found.dead_distinct, found.acknowledged) == (2, 1, 0)


def test_deliveries_come_back_from_their_file(tmp_path: Path) -> None:
    write_deliveries([], tmp_path / "none.arrow")
    assert read_deliveries(tmp_path / "none.arrow").num_rows == 0
    parts = [deliveries((A, 0, 1, True)), deliveries((B, 3, 2, False))]
    write_deliveries(parts, tmp_path / "two.arrow")
    assert read_deliveries(tmp_path / "two.arrow").equals(pa.concat_tables(parts))


# The comparison ---------------------------------------------------------------------------------------------------

RIGHT = expected_account("repairs", ledger(), fails=True, held={A: [0]})


@pytest.mark.parametrize("side", range(1, 4))
@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("consumed", "consumed"),
        ("acknowledged", "acknowledged"),
        ("retried", "delivered again"),
        ("dead", "dead letters"),
        ("dead_distinct", "distinct origins"),
        ("dead_crc", "checksum of dead"),
        ("left", "left over"),
    ],
)
def test_a_difference_on_any_side_turns_its_line_red(field: str, what: str, side: int) -> None:
    sides = [[RIGHT] for _ in range(4)]
    sides[side] = [replace(RIGHT, **{field: getattr(RIGHT, field) + 1})]
    lines = compare_groups(*sides)
    assert [line.what for line in lines if not line.agree] == [what]
    found = Agreement(lines=(), out_of_order=(), groups=lines)
    assert (found.agreed, found.exit_status) == (False, 1)


def test_what_all_say_but_the_producer_does_not_expect_is_red() -> None:
    wrong = replace(RIGHT, left=3)
    lines = compare_groups([RIGHT], [wrong], [wrong], [wrong])
    assert [line.what for line in lines if not line.agree] == ["left over"]


def test_four_sides_that_agree_are_green() -> None:
    tower = expected_account("tower", ledger(), fails=False, held={})
    lines = compare_groups(*[[tower, RIGHT]] * 4)
    assert Agreement(lines=(), out_of_order=(), groups=lines).exit_status == 0
    assert [line.group for line in lines] == ["tower"] * 7 + ["repairs"] * 7
    again = next(line for line in lines if line.group == "repairs" and line.what == "delivered again")
    assert (again.producer, again.workers, again.service, again.spark) == ("5", "5", "5", "5")


# The groups -------------------------------------------------------------------------------------------------------


def info(*partitions: GroupPartition) -> GroupInfo:
    topics = (GroupTopic(topic="flights", lag=0, partitions=partitions),) if partitions else ()
    return GroupInfo(
        group="tower",
        epoch=0,
        consume_strategy="shared",
        order=False,
        consume_from="first",
        max_attempts=3,
        retry_policy=[1000],
        invisible_ms=60_000,
        created_time=datetime.now(UTC),
        topics=topics,
    )


def test_left_is_what_waits_and_what_is_out() -> None:
    assert left_of(info(), "flights") is None
    assert left_of(info(GroupPartition(partition=A, lag=0)), "other") is None
    found = info(GroupPartition(partition=A, lag=3, in_flight=2), GroupPartition(partition=B, retry=True, lag=1))
    assert left_of(found, "flights") == 6


def test_a_partition_that_the_service_cannot_read_is_named() -> None:
    with pytest.raises(JobFailed, match=A):
        left_of(info(GroupPartition(partition=A, lag=None)), "flights")


class Groups:
    """The groups of a service."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.made: dict[str, dict[str, Any]] = {}

    def list_groups(self) -> list[str]:
        return self.names

    def create_group(self, name: str, **settings: Any) -> None:
        self.made[name] = settings


@pytest.mark.parametrize(
    ("there", "made"),
    [
        ((), ["tower", "repairs"]),
        (("Tower", "other"), ["tower-2", "repairs-2"]),
        (("tower", "repairs", "repairs-2"), ["tower-3", "repairs-3"]),
    ],
)
def test_each_run_has_groups_of_its_own(there: tuple[str, ...], made: list[str]) -> None:
    admin = Groups(*there)
    groups = fresh_groups(admin)
    assert [group.name for group in groups] == list(admin.made) == made
    assert [(group.fails, group.dies, group.workers) for group in groups] == [
        (group.fails, group.dies, group.workers) for group in GROUPS
    ]
    assert all(settings["max_attempts"] == 3 for settings in admin.made.values())


def test_nothing_is_left_only_when_it_is_certain() -> None:
    assert GroupsLeft(left={"tower": 0}, moving=False).nothing
    assert not GroupsLeft(left={"tower": 0}, moving=True).nothing
    assert not GroupsLeft(left={"tower": None}, moving=False).nothing
    assert not GroupsLeft(left={"tower": 0, "repairs": 1}, moving=False).nothing
