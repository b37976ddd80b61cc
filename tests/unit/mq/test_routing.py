"""Routes: logical partitions, first routes, expansion, and messages without a key (SPEC ROUTE)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict, Corrupt, Unavailable, Unprocessable
from deltamq.mq.partitioners import logical_partition, logical_partitions
from deltamq.mq.routing import (
    Route,
    default_route,
    expand,
    new_route,
    spread,
)
from tests.unit.mq.test_murmur3 import SPARK_HASHES, buffers

AB = ("A", "B")
counts = st.integers(1, 1024)
# A first count and the counts after each expansion, ascending.
histories = st.lists(counts, min_size=2, max_size=5, unique=True).map(sorted)
brokers = st.lists(st.sampled_from("ABCDEFG"), min_size=1, max_size=5, unique=True)


def sizes(route: Route) -> list[int]:
    return [int(size) for size in np.bincount(route.table, minlength=len(route.partitions))]


def owned(route: Route) -> dict[str, list[tuple[int, int]]]:
    """The ranges of each partition, by name."""
    ranges: dict[str, list[tuple[int, int]]] = {partition: [] for partition in route.partitions}
    for low, high, index in route.owners:
        ranges[route.partitions[index]].append((low, high))
    return ranges


@pytest.mark.parametrize("key", SPARK_HASHES)
def test_route_4_lp_is_the_positive_remainder_of_sparks_hash(key: str) -> None:
    assert logical_partition(key) == SPARK_HASHES[key] % 1024


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=40))
@example(list(SPARK_HASHES))
def test_route_4_lps_of_a_column_equal_the_lp_of_each_key(keys: list[str]) -> None:
    lps = logical_partitions(*buffers(pa.array(keys, type=pa.string())))
    assert lps.dtype == np.int16
    assert lps.tolist() == [logical_partition(key) for key in keys]


@pytest.mark.parametrize(
    ("available", "partitions"),
    [
        (["A"], ("order.book@A",)),
        (["A", "B"], ("order.book@A", "order.book@B")),
        (["A", "B", "C"], ("order.book@A", "order.book@B")),
    ],
)
def test_route_2_the_default_route_lies_on_two_brokers(available: list[str], partitions: tuple[str, ...]) -> None:
    assert default_route("order.book", available).partitions == partitions


def test_route_4_first_routes_of_the_specification() -> None:
    assert new_route("t", 1, AB).owners == ((0, 1024, 0),)
    assert new_route("t", 2, AB).owners == ((0, 512, 0), (512, 1024, 1))
    assert new_route("t", 3, AB).owners == ((0, 342, 0), (342, 683, 1), (683, 1024, 2))


def test_route_4_an_expansion_from_two_to_four_is_the_one_of_the_specification() -> None:
    grown = expand(default_route("orders", AB), "orders", 4, AB)
    assert owned(grown) == {
        "orders@A": [(0, 256)],
        "orders#1@A": [(256, 512)],
        "orders@B": [(512, 768)],
        "orders#2@B": [(768, 1024)],
    }


def test_route_3_expansion_keeps_old_partitions_and_numbers_new_ones() -> None:
    route = default_route("order.book", AB)
    four = expand(route, "order.book", 4, AB)
    seven = expand(four, "order.book", 7, AB)
    assert four.partitions == ("order.book@A", "order.book@B", "order.book#1@A", "order.book#2@B")
    assert seven.partitions == (
        *four.partitions,
        "order.book#3@A",
        "order.book#4@B",
        "order.book#5@A",
    )
    assert (route.epoch, four.epoch, seven.epoch) == (1, 2, 3)


def test_route_3_a_broker_that_is_new_gets_the_next_partitions() -> None:
    grown = expand(default_route("t", AB), "t", 5, ("A", "B", "C"))
    assert grown.partitions == ("t@A", "t@B", "t@C", "t#1@A", "t#2@B")


def test_route_3_a_broker_that_is_gone_gets_no_new_partition_and_keeps_its_own() -> None:
    grown = expand(default_route("t", AB), "t", 4, ("B",))
    assert grown.partitions == ("t@A", "t@B", "t#1@B", "t#2@B")


def test_model_1_partitions_that_are_not_named_like_the_topic_stay() -> None:
    route = Route(epoch=3, partitions=("7f-uuid@A", "t#9@B"), owners=((0, 512, 0), (512, 1024, 1)))
    assert expand(route, "t", 4, AB).partitions == ("7f-uuid@A", "t#9@B", "t#10@A", "t#11@B")


@given(counts, brokers)
def test_route_4_every_first_route_is_contiguous_and_equal_within_one(count: int, available: list[str]) -> None:
    route = new_route("t", count, available)
    assert [index for _, _, index in route.owners] == list(range(count))
    assert max(sizes(route)) - min(sizes(route)) <= 1
    assert sizes(route) == sorted(sizes(route), reverse=True)
    assert len(set(route.partitions)) == count


@given(histories, brokers)
@example([1, 1024], ["A"])
@example([600, 700, 1023, 1024], ["A", "B"])
@example([2, 3, 4, 5], ["A", "B"])
def test_route_4_expansion_moves_as_few_lps_as_can_be(history: list[int], available: list[str]) -> None:
    route = new_route("t", history[0], available)
    for count in history[1:]:
        grown = expand(route, "t", count, available)
        kept = len(route.partitions)
        assert grown.partitions[:kept] == route.partitions, "old partitions keep their places"
        assert max(sizes(grown)) - min(sizes(grown)) <= 1

        moved = np.flatnonzero(grown.table != route.table)
        assert (grown.table[moved] >= kept).all(), "an LP moved from one old partition to another"
        new_sizes = sizes(grown)[kept:]
        assert len(moved) == sum(new_sizes)
        # No balanced route has fewer: some new partition would be more than one below some old one.
        low, larger = divmod(1024, count)
        room = sum(size > low for size in sizes(route))
        assert sum(new_sizes) == low * (count - kept) + max(0, larger - room)
        route = grown


@given(histories)
@example([3, 5, 8])
def test_route_4_an_old_partition_gives_up_only_the_upper_end(history: list[int]) -> None:
    route = new_route("t", history[0], AB)
    for count in history[1:]:
        grown = expand(route, "t", count, AB)
        for index in range(len(route.partitions)):
            before = np.flatnonzero(route.table == index)
            after = np.flatnonzero(grown.table == index)
            assert (before[: after.size] == after).all()
        route = grown


@pytest.mark.parametrize("count", range(1, 1025, 31))
def test_route_4_every_count_can_grow_to_every_count(count: int) -> None:
    route = new_route("t", count, AB)
    for larger in (count, min(count + 1, 1024), min(2 * count, 1024), 1024):
        grown = expand(route, "t", larger, AB)
        assert len(set(grown.partitions)) == larger
        assert max(sizes(grown)) - min(sizes(grown)) <= 1


@given(histories, brokers)
def test_route_3_names_do_not_depend_on_the_steps(history: list[int], available: list[str]) -> None:
    route = new_route("t", history[0], available)
    for count in history[1:]:
        route = expand(route, "t", count, available)
    assert route.partitions == new_route("t", history[-1], available).partitions


def test_route_3_shrinking_is_refused() -> None:
    route = new_route("t", 4, AB)
    with pytest.raises(Conflict) as refused:
        expand(route, "t", 3, AB)
    assert (refused.value.code, refused.value.field) == ("partitions_cannot_shrink", "partitions")
    assert expand(route, "t", 4, AB) is route


@pytest.mark.parametrize("count", [-1, 0, 1025])
def test_route_4_counts_outside_1_to_1024_are_refused(count: int) -> None:
    with pytest.raises(Unprocessable) as refused:
        new_route("t", count, AB)
    assert refused.value.code == "partitions_out_of_range"
    with pytest.raises(Unprocessable):
        expand(new_route("t", 1, AB), "t", 1025, AB)


def test_a_topic_needs_a_broker() -> None:
    with pytest.raises(Unavailable) as refused:
        default_route("t", [])
    assert refused.value.code == "no_broker"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), counts)
def test_route_5_a_key_always_goes_to_the_owner_of_its_lp(key: str, count: int) -> None:
    route = new_route("t", count, AB)
    low, high, _ = route.owners[route.partition_of(key)]
    assert low <= logical_partition(key) < high


def test_a_route_equals_and_hashes_by_value_and_its_table_is_read_only() -> None:
    one, other = new_route("t", 3, AB), new_route("t", 3, AB)
    assert one.table.sum() == other.table.sum()
    assert one == other and hash(one) == hash(other)
    with pytest.raises(ValueError, match="read-only"):
        one.table[0] = 1


@given(histories)
def test_a_route_comes_back_from_json(history: list[int]) -> None:
    route = expand(new_route("t", history[0], AB), "t", history[-1], AB)
    assert Route.from_json(route.to_json()) == route


GOOD = new_route("t", 2, AB).to_json()


@pytest.mark.parametrize(
    "damage",
    [
        {"owners": []},
        {"owners": [[0, 512, 0]]},
        {"owners": [[0, 512, 0], [513, 1024, 1]]},
        {"owners": [[0, 600, 0], [512, 1024, 1]]},
        {"owners": [[0, 512, 0], [512, 1025, 1]]},
        {"owners": [[0, 512, 0], [512, 512, 1], [512, 1024, 0]]},
        {"owners": [[0, 512, 0], [512, 1024, 2]]},
        {"owners": [[0, 512, 0], [512, 1024, 0]]},
        {"owners": [[0, 256, 0], [256, 512, 0], [512, 1024, 1]]},
        {"owners": [[0, 512, 0], [512, 1024, True]]},
        {"owners": [[0, 512], [512, 1024]]},
        {"owners": 7},
        {"partitions": ["t@A", "t@A"]},
        {"partitions": ["t@A", "t"]},
        {"partitions": ["t@A", 1]},
        {"partitions": ["t@A"]},
        {"partitions": None},
        {"epoch": "1"},
    ],
    ids=str,
)
def test_a_damaged_route_is_corrupt(damage: dict[str, object]) -> None:
    with pytest.raises(Corrupt) as corrupt:
        Route.from_json(GOOD | damage)
    assert corrupt.value.code == "route_corrupt"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner),
)


@given(json_values)
def test_anything_else_is_corrupt_too(value: object) -> None:
    with pytest.raises(Corrupt):
        Route.from_json(value)


@given(st.integers(0, 100_000), counts, st.integers(0, 2**32))
@example(1, 4, 1023)
@example(31, 4, 0)
@example(64, 4, 0)
def test_route_5_messages_without_a_key_are_spread_in_contiguous_slices(count: int, partitions: int, draw: int) -> None:
    route = new_route("t", partitions, AB)
    slices = spread(count, route, draw)
    assert [0, *(high for _, _, high in slices)] == [*(low for _, low, _ in slices), count]
    lengths = [high - low for _, low, high in slices]
    assert len(slices) <= partitions and len({index for index, _, _ in slices}) == len(slices)
    if count:
        assert slices[0][0] == route.table[draw % 1024]
        assert min(lengths) >= min(count, 4_096) and max(lengths) - min(lengths) <= 1
    assert all((after[0] - before[0]) % partitions == 1 % partitions for before, after in pairwise(slices))


def test_route_5_single_messages_reach_every_partition_equally() -> None:
    route = new_route("t", 3, AB)
    first = [spread(1, route, draw)[0][0] for draw in range(1024)]
    assert np.bincount(first).tolist() == [342, 341, 341]


def test_route_5_a_large_request_uses_every_partition() -> None:
    assert {index for index, _, _ in spread(8 * 4_096, new_route("t", 8, AB), 5)} == set(range(8))
