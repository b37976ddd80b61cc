"""What has to be done for a catalog: little, in order, and never to what others made (SPEC SPARK-11)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.sql.catalog_plan import CatalogEntry, CatalogStep, Made, made_of, plan_steps

WAREHOUSE = "/data/it's; definition of a warehouse"
NAMES = st.sampled_from("abcdef")


def table(name: str, location: str = "x") -> CatalogEntry:
    return CatalogEntry(name=name, about="A table.", location=location)


def view(name: str, query: str = "SELECT 1") -> CatalogEntry:
    return CatalogEntry(name=name, about="A view.", query=query)


def as_made(entry: CatalogEntry, warehouse: str = WAREHOUSE) -> Made:
    return made_of(entry.name, bool(entry.query), entry.comment(warehouse))


def after(found: Sequence[Made], steps: Sequence[CatalogStep]) -> dict[str, Made]:
    """The catalog when some of the steps have been taken."""
    there = {one.name: one for one in found}
    for step in steps:
        if step.make is None:
            assert there[step.name].is_view == step.drop_view != step.drop_table
            del there[step.name]
        else:
            old = there.get(step.name)
            assert old is None or (old.is_view and step.make.query), "only a view is replaced in place"
            there[step.name] = as_made(step.make)
    return there


def test_spark_11_a_comment_says_who_made_what_from_where() -> None:
    found = as_made(table("a"))
    assert (found.warehouse, found.digest) == (WAREHOUSE, table("a").digest)
    assert made_of("a", False, "Somebody's table.").warehouse is None


def test_spark_11_views_come_last_and_go_first() -> None:
    steps, _ = plan_steps([view("v"), table("t")], [as_made(table("old")), as_made(view("older"))], WAREHOUSE)
    assert [(step.name, step.make is not None) for step in steps] == [
        ("t", True),
        ("v", True),
        ("older", False),
        ("old", False),
    ]


def test_spark_11_what_others_made_is_not_touched_and_named_when_it_is_in_the_way() -> None:
    others = [made_of("a", False, ""), as_made(table("b"), "/another/warehouse"), made_of("c", True, "mine")]
    steps, taken = plan_steps([table("a"), table("b"), table("d")], others, WAREHOUSE)
    assert [step.name for step in steps] == ["d"]
    assert taken == ["a", "b"]


ENTRIES = st.lists(
    st.builds(lambda name, what, is_view: (view if is_view else table)(name, what), NAMES, NAMES, st.booleans()),
    unique_by=lambda entry: entry.name,
)


@given(ENTRIES, ENTRIES, st.integers(0, 12))
def test_spark_11_a_run_that_was_killed_anywhere_is_made_good_by_the_next(
    before: list[CatalogEntry], wanted: list[CatalogEntry], killed: int
) -> None:
    found = [as_made(entry) for entry in before]
    steps, taken = plan_steps(wanted, found, WAREHOUSE)
    assert taken == []
    between = list(after(found, steps[:killed]).values())
    rest, _ = plan_steps(wanted, between, WAREHOUSE)
    done = after(between, rest)
    assert done == {entry.name: as_made(entry) for entry in wanted}
    assert plan_steps(wanted, list(done.values()), WAREHOUSE) == ([], [])
