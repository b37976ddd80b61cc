"""Many messages split by partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from deltamq.mq.client.admin.topic_view import TopicView
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.slices import Slice, checked_rows, chunk_of, chunk_starts, split_messages, split_rows
from deltamq.mq.errors import Refused, TooLarge
from deltamq.mq.limits import KEY_BYTES_MAX
from deltamq.mq.routing import new_route

VIEW = TopicView(new_route("t", 4, ["a", "b"]), strict=False)
KEYS = [f"key-{n % 37}" for n in range(1_000)]


def home(key: str) -> str:
    return VIEW.partitions[VIEW.route.partition_of(key)]


def rows_of(keys: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.string()), "body": [str(n).encode() for n in range(len(keys))]})


def assert_covers(slices: list[Slice], count: int) -> None:
    """Every position is in exactly one slice, ascending in each."""
    together = np.concatenate([s.indexes for s in slices])
    assert sorted(together.tolist()) == list(range(count))
    for part in slices:
        assert (np.diff(part.indexes) > 0).all()
        content = part.messages if part.rows is None else part.rows
        assert len(content) == len(part.indexes)


@pytest.mark.parametrize("count", [1, 10, 1_000])
def test_route_05_keyed_messages_go_where_their_key_lives(count: int) -> None:
    messages = [Message(str(n).encode(), key=KEYS[n]) for n in range(count)]
    slices = split_messages(messages, VIEW, 0)
    assert_covers(slices, count)
    for part in slices:
        assert part.messages == [messages[i] for i in part.indexes]
        assert {home(m.key or "") for m in part.messages} == {part.partition}


def test_route_05_keyed_rows_go_where_their_key_lives() -> None:
    slices = split_rows(rows_of(list(KEYS)), VIEW, 0)
    assert_covers(slices, len(KEYS))
    for part in slices:
        assert part.rows is not None
        assert {home(key) for key in part.rows.column("key").to_pylist()} == {part.partition}
        assert part.rows.column("body").to_pylist() == [str(i).encode() for i in part.indexes]


def test_rows_of_a_slice_of_a_larger_column_are_hashed_right() -> None:
    batch = rows_of(["zzz", "yyy", *KEYS]).slice(2)
    for part in split_rows(batch, VIEW, 0):
        assert part.rows is not None
        assert {home(key) for key in part.rows.column("key").to_pylist()} == {part.partition}


def test_keyless_rows_are_cut_into_contiguous_slices_that_share_their_memory() -> None:
    batch = pa.record_batch({"body": [b"x" * 100] * 40_000})
    slices = split_rows(batch, VIEW, 5)
    assert_covers(slices, 40_000)
    assert {len(s.indexes) for s in slices} == {10_000}
    data = batch.column("body").buffers()[2].address
    assert all(s.rows is not None and s.rows.column("body").buffers()[2].address == data for s in slices)


def test_rows_with_and_without_a_key_are_all_placed() -> None:
    keys = [None if n % 3 == 0 else key for n, key in enumerate(KEYS)]
    slices = split_rows(rows_of(keys), VIEW, 7)
    assert_covers(slices, len(KEYS))
    for part in slices:
        assert part.rows is not None
        assert {home(key) for key in part.rows.column("key").to_pylist() if key is not None} <= {part.partition}
    assert_covers(split_messages([Message(b"", key=key) for key in keys], VIEW, 7), len(KEYS))


def test_route_07_messages_that_name_their_partition_make_slices_of_their_own() -> None:
    messages = [Message(b"0", key="k"), Message(b"1", key="k", partition="t@b"), Message(b"2", partition="t@b")]
    slices = split_messages(messages, VIEW, 0)
    assert_covers(slices, 3)
    named = [s for s in slices if s.named]
    assert [(s.partition, s.indexes.tolist()) for s in named] == [("t@b", [1, 2])]


def test_without_a_route_everything_unnamed_stays_together() -> None:
    assert [s.partition for s in split_messages([Message(b"a"), Message(b"b", key="k")], None, 0)] == [None]
    assert [s.partition for s in split_rows(rows_of(["a", "b"]), None, 0)] == [None]


def test_rows_get_the_wires_types() -> None:
    table = pa.table(
        {
            "body": pa.array(["a", "b"], pa.large_string()),
            "key": pa.array(["k", None], pa.string()).dictionary_encode(),
            "tag": pa.array([None, None], pa.null()),
        }
    )
    checked = checked_rows(table, 100)
    assert [(f.name, f.type) for f in checked.schema] == [("key", pa.string()), ("body", pa.binary())]
    assert checked.column("key").to_pylist() == ["k", None]


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"body": [b"a"], "offset": [1]}, "offset"),
        ({"key": ["k"]}, "body"),
        ({"body": [b"a", None]}, "body"),
        ({"body": [1.5]}, "body"),
        ({"body": [b"a"], "born_time": ["yesterday"]}, "born_time"),
    ],
)
def test_rows_that_the_service_would_refuse_are_refused_here(columns: dict[str, list[object]], field: str) -> None:
    with pytest.raises(Refused) as caught:
        checked_rows(pa.table(columns), 100)
    assert caught.value.field == field


def test_send_06_an_oversized_row_is_named() -> None:
    with pytest.raises(TooLarge) as caught:
        checked_rows(pa.table({"body": [b"", b"x" * 101]}), 100)
    assert (caught.value.field, caught.value.extra) == ("body", {"limit": 100, "row": 1})
    with pytest.raises(TooLarge) as caught:
        checked_rows(pa.table({"body": [b""], "key": ["k" * (KEY_BYTES_MAX + 1)]}), 100)
    assert caught.value.field == "key"


def test_chunks_are_bounded_in_bytes_and_rows_and_follow_from_the_table_alone() -> None:
    table = pa.table({"body": [b"x" * n for n in (10, 10, 500, 10, 10, 10)]})
    assert chunk_starts(table, 100, 1_000) == [0, 2, 3, 5, 6]
    assert chunk_starts(table, 10**6, 4) == [0, 4, 6]
    assert chunk_starts(pa.concat_tables([table.slice(0, 3), table.slice(3)]), 100, 1_000) == [0, 2, 3, 5, 6]
    assert chunk_starts(table.slice(0, 0), 100, 10) == [0]
    assert chunk_of(table, 1, 3).column("body").to_pylist() == [b"x" * 10, b"x" * 500]


def test_a_table_may_have_more_bodies_than_one_chunk_can_hold() -> None:
    """One MiB, many times: together the bodies are over 2 GiB, where the offsets in a chunk of Arrow end."""
    mib = pa.array([b"x" * 2**20], pa.binary())
    table = pa.table({"body": pa.chunked_array([mib] * 2_200)})
    before = pa.total_allocated_bytes()
    starts = chunk_starts(table, 16 * (2**20 + 32), 10_000)
    assert starts == [*range(0, 2_200, 16), 2_200]
    assert pa.total_allocated_bytes() < before + 2**20, "nothing was put together"
    low, high = starts[-2:]
    assert chunk_of(table, low, high).column("body").to_pylist() == [b"x" * 2**20] * (high - low)
