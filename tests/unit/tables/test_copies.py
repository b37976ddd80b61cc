"""Messages that move on: dead letters as they begin again."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mq.retry import DEAD_REASON_HEADER
from tables.copies import sent_back, with_reason
from tables.schema import MESSAGE_SCHEMA

BORN = datetime(2024, 1, 1, tzinfo=UTC)


def rows_of(*messages: dict[str, object]) -> pa.RecordBatch:
    common = {"born_time": BORN, "append_time": BORN, "reconsume_times": 16, "producer_id": "revive", "producer_seq": 1}
    return pa.RecordBatch.from_pylist(
        [{**common, "offset": at, "message_id": f"m{at}", **one} for at, one in enumerate(messages)],
        schema=MESSAGE_SCHEMA,
    )


MESSAGES = rows_of(
    {
        "body": b"a",
        "key": "k",
        "tag": "t",
        "headers": [("h", "1")],
        "origin": {"topic": "o", "partition": "p", "offset": 5},
    },
    {"body": b"b", "headers": None, "origin": {"topic": "o", "partition": "p", "offset": 6}},
    {"body": b"c", "headers": [], "origin": {"topic": "o", "partition": "p", "offset": 7}},
)


@pytest.mark.parametrize("to_retry", [False, True])
def test_retry_03_what_is_sent_back_is_as_its_producer_gave_it(to_retry: bool) -> None:
    back = sent_back(with_reason(MESSAGES, ["max_attempts"] * 3), to_retry=to_retry).to_pylist()
    assert [row["headers"] for row in back] == [[("h", "1")], None, None]
    assert [(row["message_id"], row["key"], row["tag"], row["body"], row["born_time"]) for row in back] == [
        ("m0", "k", "t", b"a", BORN),
        ("m1", None, None, b"b", BORN),
        ("m2", None, None, b"c", BORN),
    ]
    assert not {"offset", "append_time", "producer_id", "producer_seq", "deliver_time"} & set(back[0])
    if to_retry:
        assert [(row["reconsume_times"], row["origin"]["offset"]) for row in back] == [(0, 5), (0, 6), (0, 7)]
    else:
        assert "origin" not in back[0] and "reconsume_times" not in back[0]


def test_retry_03_a_header_that_only_looks_like_the_reason_stays() -> None:
    rows = rows_of({"body": b"a", "headers": [(f"{DEAD_REASON_HEADER}.", "mine")], "origin": None})
    (back,) = sent_back(with_reason(rows, ["rejected"]), to_retry=False).to_pylist()
    assert back["headers"] == [(f"{DEAD_REASON_HEADER}.", "mine")]
