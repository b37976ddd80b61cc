"""The report goes red: accounts of rows that were tampered with in each way that a log can fail."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from deltamq.jobs.flights.account import ROWS_SCHEMA, Account, account_of
from deltamq.jobs.flights.agreement import Agreement, compare

Row = dict[str, object]
Rows = list[Row]

ENDS = {"flights@a": 4, "flights@b": 2}


def row(partition: str, offset: int, key: str | None, tag: str, body: bytes) -> Row:
    return dict(zip(ROWS_SCHEMA.names, (partition, offset, key, tag, body), strict=True))


def produced() -> Rows:
    """Two aircraft and a flight without one, in the order in which they happened."""
    return [
        row("flights@a", 0, "N1", "departure", b"one"),
        row("flights@b", 0, "N2", "departure", b"two"),
        row("flights@a", 1, "N1", "arrival", b"three"),
        row("flights@a", 2, "N1", "departure", b"four"),
        row("flights@b", 1, "N2", "arrival", b"five"),
        row("flights@a", 3, None, "cancellation", b"six"),
    ]


def account(rows: Rows, *, ends: dict[str, int] | None = None, in_row_order: bool = False) -> Account:
    table = pa.Table.from_pylist(rows, schema=ROWS_SCHEMA)
    return account_of(table, ends=ENDS if ends is None else ends, in_row_order=in_row_order)


def agreement(service: Rows, spark: Rows | None = None) -> Agreement:
    return compare(account(produced(), in_row_order=True), account(service), account(spark or produced()))


def red(found: Agreement) -> set[str]:
    return {line.what for line in found.lines if not line.agree}


def test_the_same_rows_agree_whatever_order_they_were_fetched_in() -> None:
    found = agreement(produced()[::-1])
    assert red(found) == set()
    assert (found.agreed, found.exit_status, found.out_of_order) == (True, 0, ())
    shown = {line.what: (line.producer, line.service, line.spark) for line in found.lines}
    assert shown["messages"] == ("6", "6", "6")
    assert shown["flights@a"] == ("4", "4", "4")
    assert shown["aircraft in order"] == ("2", "2", "2")
    checksum = f"{sum(zlib.crc32(body) for body in (b'one', b'two', b'three', b'four', b'five', b'six')):x}"
    assert shown["checksum of bodies"] == (checksum, checksum, checksum)


def missing(rows: Rows) -> Rows:
    return rows[:2] + rows[3:]


def repeated(rows: Rows) -> Rows:
    return [*rows, rows[2]]


def stored_twice(rows: Rows) -> Rows:
    return [*rows, {**rows[4], "offset": 2}]


def reordered(rows: Rows) -> Rows:
    changed = [dict(r) for r in rows]
    changed[2]["body"], changed[3]["body"] = changed[3]["body"], changed[2]["body"]
    changed[2]["tag"], changed[3]["tag"] = changed[3]["tag"], changed[2]["tag"]
    return changed


def one_body_differs(rows: Rows) -> Rows:
    return [*rows[:-1], {**rows[-1], "body": b"6"}]


def another_partition(rows: Rows) -> Rows:
    return [*rows[:3], {**rows[3], "partition": "flights@b", "offset": 2}, *rows[4:]]


def another_tag(rows: Rows) -> Rows:
    return [*rows[:-1], {**rows[-1], "tag": "departure"}]


def another_key(rows: Rows) -> Rows:
    return [*rows[:-1], {**rows[-1], "key": "N1"}]


def a_gap(rows: Rows) -> Rows:
    return [*rows[:-1], {**rows[-1], "offset": 7}]


FAULTS: list[tuple[Callable[[Rows], Rows], str]] = [
    (missing, "messages"),
    (missing, "flights@a"),
    (missing, "checksum of bodies"),
    (repeated, "messages"),
    (repeated, "gapless partitions"),
    (stored_twice, "aircraft in order"),
    (reordered, "aircraft in order"),
    (one_body_differs, "checksum of bodies"),
    (another_partition, "aircraft kept together"),
    (another_tag, "cancellations"),
    (another_key, "aircraft in order"),
    (a_gap, "gapless partitions"),
]


@pytest.mark.parametrize(("fault", "line"), FAULTS, ids=lambda part: getattr(part, "__name__", part))
def test_a_fault_turns_its_line_red_on_either_side(fault: Callable[[Rows], Rows], line: str) -> None:
    for found in (agreement(fault(produced())), agreement(produced(), fault(produced()))):
        assert line in red(found)
        assert (found.agreed, found.exit_status) == (False, 1)


def test_reordered_alone_is_seen_by_the_order_alone() -> None:
    found = agreement(reordered(produced()))
    assert red(found) == {"aircraft in order"}
    assert found.out_of_order == ("N1",)


def test_what_all_three_say_is_red_when_it_is_wrong() -> None:
    both = another_partition(produced())
    found = compare(account(both, in_row_order=True), account(both), account(both))
    assert red(found) == {"gapless partitions", "aircraft kept together"}


def test_an_end_that_was_announced_and_is_not_reached_is_red() -> None:
    announced = account(produced(), ends={**ENDS, "flights@b": 3})
    found = compare(account(produced(), in_row_order=True), announced, account(produced()))
    assert red(found) == {"gapless partitions"}


def test_an_aircraft_that_one_side_alone_knows_is_red() -> None:
    found = agreement([r for r in produced() if r["key"] != "N2"])
    assert {"aircraft", "aircraft in order"} <= red(found)
    assert found.out_of_order == ("N2",)


def test_nothing_at_all_agrees_with_itself() -> None:
    nothing = account([], ends={"flights@a": 0})
    found = compare(nothing, nothing, nothing)
    assert found.agreed
    assert {line.what for line in found.lines} >= {"messages", "aircraft"}
