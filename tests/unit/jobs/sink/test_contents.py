"""What a batch brings is the same in any order and any split, and differs when a row does."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.sink.batch import decoded, stage_rows
from deltamq.jobs.sink.contents import content_sum
from tests.unit.jobs.sink.sinks import Sink, keyed

ROWS = st.lists(
    st.tuples(st.none() | st.text(max_size=3), st.none() | st.sampled_from("ab"), st.none() | st.binary(max_size=3)),
    max_size=8,
)


def _batch(rows: list[tuple[str | None, str | None, bytes | None]]) -> pa.RecordBatch:
    keys, tags, bodies = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(keys, pa.string()), pa.array(tags, pa.string()), pa.array(bodies, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "tag", "body"])


@given(ROWS, st.data())
def test_spark_17_a_content_does_not_depend_on_the_order_of_rows_and_tasks(rows, data) -> None:
    mixed = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = content_sum(_batch(mixed[:cut])) + content_sum(_batch(mixed[cut:]))
    assert parts % 2**64 == content_sum(_batch(rows))


@given(ROWS, ROWS)
def test_spark_17_other_rows_are_another_content(one, other) -> None:
    same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert ((content_sum(_batch(one)), len(one)) == (content_sum(_batch(other)), len(other))) is same


def test_spark_17_only_what_may_come_again_is_summed_up() -> None:
    sink = Sink()
    sink.put_topic()
    rows = keyed(["a", "b", "c"])
    for named in (True, False):
        message = stage_rows(sink.place, sink.columns, "orders", iter([rows]), name="w", batch=0, task=0, named=named)
        (staged,) = decoded([message])
        assert all(bool(section.total) is named for section in staged.sections) and staged.sections
