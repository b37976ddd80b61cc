"""Messages that move on keep what their producers gave them, whatever the rows look like (SPEC RETRY-1)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.queue.retry import DEAD_REASON_HEADER, with_reason
from deltamq.tables.queue import redelivery_rows as copies
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA, ORIGIN

names = st.sampled_from(["a", "b", DEAD_REASON_HEADER])
headers = st.none() | st.dictionaries(names, st.none() | st.text(max_size=3))
origins = st.none() | st.fixed_dictionaries(
    {"topic": st.just("t"), "partition": st.just("p@b"), "offset": st.integers(0, 9)}
)
messages = st.fixed_dictionaries(
    {
        "message_id": st.text(max_size=3),
        "key": st.none() | st.text(max_size=3),
        "tag": st.none() | st.just("T"),
        "headers": headers,
        "body": st.binary(max_size=4),
        "origin": origins,
    }
)
stored = st.lists(messages, max_size=8)


def _batch(found: list[dict[str, Any]]) -> pa.RecordBatch:
    rows = [
        {**one, "offset": at, "headers": None if one["headers"] is None else list(one["headers"].items())}
        for at, one in enumerate(found)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA)


@given(stored, st.data())
def test_retry_01_what_comes_again_is_what_was_sent_with_its_first_origin(
    found: list[dict[str, Any]], data: st.DataObject
) -> None:
    low = data.draw(st.integers(0, len(found)))
    part = found[low:]
    times = list(range(1, len(part) + 1))
    rows = copies.again(_batch(found).slice(low), "orders", "orders@b", times)
    rows.validate(full=True)
    assert set(rows.schema.names) <= set(INTERNAL_SCHEMA.names)
    for at, (row, sent) in enumerate(zip(rows.to_pylist(), part, strict=True)):
        origin = sent["origin"] or {"topic": "orders", "partition": "orders@b", "offset": low + at}
        assert (row["origin"], row["reconsume_times"]) == (origin, at + 1)
        assert {name: row[name] for name in ("message_id", "key", "tag", "body")} == {
            name: sent[name] for name in ("message_id", "key", "tag", "body")
        }
        assert (None if row["headers"] is None else dict(row["headers"])) == sent["headers"]
    assert rows.schema.field("origin").type == ORIGIN


@given(stored, st.data())
def test_retry_03_each_dead_letter_has_one_reason_the_last(found: list[dict[str, Any]], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, len(found)))
    part = found[low:]
    reasons = data.draw(st.lists(st.text(max_size=3), min_size=len(part), max_size=len(part)))
    rows = copies.with_reason(_batch(found).slice(low), reasons)
    rows.validate(full=True)
    for row, sent, reason in zip(rows.to_pylist(), part, reasons, strict=True):
        assert len(row["headers"]) == len(dict(row["headers"]))
        assert dict(row["headers"]) == with_reason(sent["headers"] or {}, reason)
        assert (row["body"], row["offset"] >= low) == (sent["body"], True)
