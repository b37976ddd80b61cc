"""The search for messages that pass a filter: what it keeps, where it ends, and how far it goes in one call."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.queue.filtered_read import scan_filtered
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import MESSAGE_SCHEMA

TAGS = MessageFilter(tags=pa.array(["a"]))


class Log:
    """A partition whose messages have these tags, and whose reads give one page of at most `page` messages."""

    def __init__(self, *tags: str, page: int = 1_000) -> None:
        rows = [{"offset": at, "tag": tag, "body": b"x" * 100} for at, tag in enumerate(tags)]
        self._table = pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)
        self._page = page
        self.reads: list[int] = []

    def has_invalid(self, start: int, stop: int) -> bool:
        return False

    def read(self, offset: int, *, max_messages: int, max_bytes: int, columns: None) -> Fetched:
        assert max_messages > 0 and max_bytes > 0
        self.reads.append(offset)
        rows = self._table.slice(offset, min(max_messages, self._page))
        status = FetchStatus.FOUND if rows.num_rows else FetchStatus.NO_NEW_MESSAGE
        return Fetched(status, rows, offset + rows.num_rows, 0, self._table.num_rows)


def scan(log: Any, start: int = 0, *, most: int = 10, max_bytes: int = 10_000, limit: int | None = None) -> Any:
    return scan_filtered(log, start, TAGS, max_messages=most, max_bytes=max_bytes, limit=limit)


def kept(scanned: Any) -> list[int] | None:
    return None if scanned.kept is None else scanned.kept.column("offset").to_pylist()


def test_what_is_found_is_kept_and_the_page_is_passed() -> None:
    found = scan(Log("b", "a", "b", "a", "b"))
    assert kept(found) == [1, 3] and (found.reached, found.rest) == (5, None)


def test_the_first_message_without_room_is_named() -> None:
    found = scan(Log("a", "b", "a", "b", "a"), most=2)
    assert kept(found) == [0, 2] and found.rest == 4
    assert kept(scan(Log("a", "a"), max_bytes=1)) == [0], "one message at least"


def test_pages_without_the_tag_are_passed_over() -> None:
    log = Log("b", "b", "b", "a", page=1)
    found = scan(log)
    assert kept(found) == [3] and found.reached == 4 and log.reads == [0, 1, 2, 3]


def test_a_scan_ends_at_the_end_of_the_log() -> None:
    found = scan(Log("b", "b"))
    assert found.kept is None and found.reached == 2
    assert found.last.status is FetchStatus.NO_NEW_MESSAGE


@pytest.mark.parametrize(("limit", "reads"), [(3, [0]), (0, [])])
def test_nothing_is_read_from_the_limit_on(limit: int, reads: list[int]) -> None:
    log = Log("b", "b", "b", "a")
    found = scan(log, limit=limit)
    assert found.kept is None and found.reached == limit and log.reads == reads
    assert (found.last is None) == (not reads)


def test_one_call_takes_a_bounded_number_of_steps() -> None:
    log = Log(*"b" * 40, page=1)
    found = scan(log)
    assert found.kept is None and found.reached == len(log.reads) == 16
    assert found.last.status is FetchStatus.FOUND
