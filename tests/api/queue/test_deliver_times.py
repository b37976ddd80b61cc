"""RETRY-4: one rule for the times of messages, whatever the format, and one place for each message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.queue.delays import split_shares
from deltamq.api.wire.route_batch import PartitionShare, replayed, route_messages
from deltamq.api.wire.rows import ArrowRows, Rows
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import DELAY_MS_MAX
from deltamq.mq.meta.topic_settings import TopicSettings
from deltamq.mq.meta.topics import Topic
from deltamq.mq.producer import Part
from deltamq.mq.routing import new_route
from deltamq.tables.queue.deliver_times import AT_ONCE, times_of_columns, times_of_lists

NOW = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROUTE = new_route("t", 4, ["a", "b"])
TOPIC = Topic(name="t", id="id-1", route=ROUTE, settings=TopicSettings(), created_ms=0)


def at(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


# Times ----------------------------------------------------------------------------------------------------------------

moments = (
    st.none()
    | st.integers(0, 2 * NOW).map(at)
    | st.integers(-DELAY_MS_MAX, DELAY_MS_MAX + 2).map(lambda d: at(NOW + d))
)
delays = st.none() | st.sampled_from([0, 1, 5_000, DELAY_MS_MAX, DELAY_MS_MAX + 1])


@given(st.lists(st.tuples(moments, delays), min_size=1, max_size=12))
def test_retry_04_a_column_has_the_times_of_its_messages(messages: list[tuple[datetime | None, int | None]]) -> None:
    times, waits = [m[0] for m in messages], [m[1] for m in messages]
    columns = pa.array(times, pa.timestamp("us", "UTC")), pa.array(waits, pa.int64())
    try:
        expected = times_of_lists(times, waits, NOW, "messages[{}]")
    except Unprocessable as error:
        with pytest.raises(Unprocessable) as refused:
            times_of_columns(*columns, NOW)
        assert (error.field is not None and error.field.endswith(f".{refused.value.field}")) or _several(messages)
        assert refused.value.extra["row"] in range(len(messages))
        return
    found = times_of_columns(*columns, NOW)
    assert (None if found is None else found.tolist()) == (None if expected is None else expected.tolist())


def _several(messages: list[tuple[datetime | None, int | None]]) -> bool:
    """Whether more than one message is wrong, so that either may be named."""
    wrong = 0
    for time, delay in messages:
        try:
            times_of_lists([time], [delay], NOW, "{}")
        except Unprocessable:
            wrong += 1
    return wrong > 1


def test_retry_04_what_is_kept_of_a_time() -> None:
    def time_of(moment: datetime | None, delay_ms: int | None) -> int:
        found = times_of_lists([moment], [delay_ms], NOW, "{}")
        return AT_ONCE if found is None else int(found[0])

    assert time_of(None, 5) == NOW + 5
    assert time_of(at(NOW + 5), None) == NOW + 5
    assert time_of(at(NOW + 5.001), None) == NOW + 6, "never before its time"
    assert time_of(at(NOW - 5), None) == NOW - 5, "a copy of the request must be known again"
    assert time_of(at(-5), None) == 0
    assert time_of(None, 0) == time_of(None, None) == AT_ONCE


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_retry_04_arrow_times_of_every_unit_are_read(unit: str) -> None:
    moment = at(NOW + 60_000)
    found = times_of_columns(pa.array([moment, None], pa.timestamp(unit, "Europe/Berlin")), None, NOW)
    assert found is not None and found.tolist() == [NOW + 60_000, AT_ONCE]


# Places ---------------------------------------------------------------------------------------------------------------


DELAYS = {"a": "delay@a", "b": "delay@b"}


def rows_of(count: int) -> Rows:
    return Rows(count, 100 * count, body=[str(i) for i in range(count)])


def indexes_of(share: PartitionShare, count: int) -> list[int]:
    return list(range(count)) if share.indexes is None else [int(i) for i in share.indexes]


def bodies_of(share: PartitionShare) -> list[str]:
    if isinstance(share.messages, ArrowRows):
        return [body.decode() for body in share.messages.batch.column("body").to_pylist()]
    return [str(body) for body in share.messages.body]


def shares_of(
    count: int, named: list[str | None], times: np.ndarray, now_ms: int, stored: dict[str, tuple[Part, ...]]
) -> list[PartitionShare]:
    """The shares of a request as the produce call makes them."""
    here = {name: parts for name, parts in stored.items() if name not in DELAYS.values()}
    messages = rows_of(count)
    routed = replayed("t", messages, named, ROUTE, 0, here) if here else route_messages("t", messages, named, ROUTE, 0)
    return split_shares(TOPIC, messages, routed, times, now_ms=now_ms, delays=DELAYS, stored=stored)


def part_of(indexes: list[int], count: int) -> Part:
    whole = None if len(indexes) == count else tuple(indexes)
    return Part(producer_id="p", seq=0, base_offset=0, count=len(indexes), total=count, time_ms=0, indexes=whole)


@given(st.data())
def test_send_05_whatever_is_stored_of_a_request_the_rest_goes_where_none_of_it_is(data: st.DataObject) -> None:
    """First copy at one time, any of its parts stored; second copy at a later time."""
    count = data.draw(st.integers(1, 12))
    named: list[str | None] = data.draw(st.lists(st.sampled_from(ROUTE.partitions), min_size=count, max_size=count))
    waits = data.draw(st.lists(st.sampled_from([AT_ONCE, 5, 50, 500]), min_size=count, max_size=count))
    times = np.array(waits, dtype=np.int64)
    first = shares_of(count, named, times, 10, {})
    kept = [share for share in first if data.draw(st.booleans())]
    stored = {share.partition: (part_of(indexes_of(share, count), count),) for share in kept}
    second = shares_of(count, named, times, data.draw(st.sampled_from([10, 100, 1_000])), stored)
    for shares in (first, second):
        assert sorted(i for share in shares for i in indexes_of(share, count)) == list(range(count))
        assert len({share.partition for share in shares}) == len(shares), "one part of a request in a partition"
        for share in shares:
            assert bodies_of(share) == [str(i) for i in indexes_of(share, count)]
    again = {share.partition: indexes_of(share, count) for share in second}
    for share in kept:
        assert again[share.partition] == indexes_of(share, count), "what is stored stays where it is"
    late = {i for share in first if share.delay_broker is None for i in indexes_of(share, count)}
    for share in first:
        assert (share.delay_broker is not None) == all(times[i] > 10 for i in indexes_of(share, count))
    assert late == {i for i in range(count) if times[i] <= 10}


def test_send_05_a_number_used_for_a_request_of_another_size_is_refused() -> None:
    stored = {DELAYS["a"]: (part_of([0, 1], 5),)}
    with pytest.raises(Conflict) as refused:
        shares_of(3, ["t@a"] * 3, np.full(3, 50), 10, stored)
    assert refused.value.code == "producer_sequence_reused"


def test_retry_04_a_waiting_row_says_when_and_where_it_goes() -> None:
    times = np.array([AT_ONCE, 50, 60], dtype=np.int64)
    now, waits = shares_of(3, ["t@a", "t#1@a", "t@a"], times, 10, {})
    assert (now.partition, bodies_of(now)) == ("t@a", ["0"])
    assert isinstance(waits.messages, ArrowRows)
    rows = waits.messages.batch.to_pylist()
    assert [row["origin"] for row in rows] == [
        {"topic": "id-1/t", "partition": partition, "offset": -1} for partition in ("t#1@a", "t@a")
    ]
    assert [row["deliver_time"] for row in rows] == [at(50), at(60)]
