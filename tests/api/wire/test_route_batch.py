"""Splitting a request by partition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.wire.route_batch import PartitionShare, replayed, route_messages
from deltamq.api.wire.rows import ArrowRows, Rows, to_record_batch
from deltamq.mq.errors import Conflict, NotFound
from deltamq.mq.producer import Part
from deltamq.mq.routing import new_route

ROUTE = new_route("t", 4, ["a", "b"])
keys = st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=80)
Build = Callable[[list[str | None]], Rows | ArrowRows]


def as_rows(key: list[str | None]) -> Rows:
    column = None if key.count(None) == len(key) else key
    return Rows(len(key), 100, body=[str(i) for i in range(len(key))], key=column)


def as_arrow(key: list[str | None]) -> ArrowRows:
    return ArrowRows(len(key), 100, to_record_batch([as_rows(key)]))


def bodies(share: PartitionShare) -> list[str]:
    if isinstance(share.messages, Rows):
        return [str(b) for b in share.messages.body]
    return [b.decode() for b in share.messages.batch.column("body").to_pylist()]


@pytest.mark.promise("LOG-5")
@pytest.mark.parametrize("build", [as_rows, as_arrow])
@given(key=keys, draw=st.integers(0, 2**30))
def test_route_05_every_message_goes_once_and_keys_go_by_hash(build: Build, key: list[str | None], draw: int) -> None:
    shares = route_messages("t", build(key), None, ROUTE, draw)
    assert len({s.partition for s in shares}) == len(shares)
    placed: dict[int, str] = {}
    for share in shares:
        indexes = list(range(len(key))) if share.indexes is None else [int(i) for i in share.indexes]
        assert indexes == sorted(indexes) and bodies(share) == [str(i) for i in indexes]
        placed |= dict.fromkeys(indexes, share.partition)
    assert sorted(placed) == list(range(len(key)))
    for index, k in enumerate(key):
        if k is not None:
            assert placed[index] == ROUTE.partitions[ROUTE.partition_of(k)]


@given(key=keys, draw=st.integers(0, 2**30))
def test_json_and_arrow_go_to_the_same_places(key: list[str | None], draw: int) -> None:
    def places(build: Build) -> list[tuple[str, list[str]]]:
        return sorted((s.partition, bodies(s)) for s in route_messages("t", build(key), None, ROUTE, draw))

    assert places(as_rows) == places(as_arrow)


def test_keys_of_a_sliced_column_are_hashed_at_their_places() -> None:
    whole = as_arrow([f"k{i}" for i in range(100)])
    part = whole.slice(40, 80)
    found = {s.partition: bodies(s) for s in route_messages("t", part, None, ROUTE, 0)}
    for i in range(40, 80):
        assert str(i) in found[ROUTE.partitions[ROUTE.partition_of(f"k{i}")]]


def test_more_keys_than_are_remembered_still_go_by_hash() -> None:
    key: list[str | None] = [f"key-{i}" for i in range(70_000)]
    shares = route_messages("t", as_rows(key), None, ROUTE, 0)
    for share in shares:
        assert share.indexes is not None
        for i in list(share.indexes)[::997]:
            assert share.partition == ROUTE.partitions[ROUTE.partition_of(f"key-{i}")]


@pytest.mark.parametrize("named", ["t@x", ["t@a", "t@x"], pa.array(["t@a", "t@x"])])
def test_an_unknown_partition_is_named(named: object) -> None:
    with pytest.raises(NotFound) as refused:
        route_messages("t", as_rows(["k", "l"]), named, ROUTE, 0)
    assert refused.value.code == "partition_not_found"
    assert refused.value.field == ("partition" if isinstance(named, str) else "messages[1].partition")


def _part(indexes: tuple[int, ...] | None, total: int = 4) -> Part:
    count = total if indexes is None else len(indexes)
    return Part(producer_id="p", seq=0, base_offset=7, count=count, total=total, time_ms=0, indexes=indexes)


def test_send_05_a_replay_goes_where_its_parts_are_and_only_the_rest_by_todays_route() -> None:
    shares = replayed("t", as_rows([None] * 4), None, ROUTE, 0, {"t#2@b": (_part((1, 3)),)})
    assert [(s.partition, bodies(s), [int(i) for i in np.asarray(s.indexes)]) for s in shares] == [
        ("t#2@b", ["1", "3"], [1, 3]),
        ("t@a", ["0", "2"], [0, 2]),
    ]


def test_send_05_a_replay_of_a_whole_request_is_one_share() -> None:
    (share,) = replayed("t", as_rows(["a", "b", "c", "d"]), None, ROUTE, 0, {"t@b": (_part(None),)})
    assert share.partition == "t@b" and share.indexes is None


def test_send_05_the_rest_of_a_replay_keeps_its_named_partitions() -> None:
    named = ["t@a", "t@b", "t#2@b", None]
    shares = replayed("t", as_rows([None] * 4), named, ROUTE, 0, {"t@a": (_part((0,)),)})
    found = {s.partition: [int(i) for i in np.asarray(s.indexes)] for s in shares if s.partition != "t@a"}
    assert found["t@b"] == [1] and found["t#2@b"] == [2]


def test_send_05_a_stored_request_of_another_size_is_no_replay() -> None:
    with pytest.raises(Conflict) as refused:
        replayed("t", as_rows(["a", "b"]), None, ROUTE, 0, {"t@b": (_part(None, total=3),)})
    assert refused.value.code == "producer_sequence_reused"
