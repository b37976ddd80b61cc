"""Requests on the wire and their answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deltamq.mq.client.messages.message import Message, SentRange
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.wire import encode_request, read_ranges, shares
from deltamq.mq.errors import Unknown

BORN_US = 1_700_000_000_123_456


def entry(*messages: Message, **settings: Any) -> Entry:
    return Entry(list(messages), len(messages), 1, 0.0, [None], [BORN_US], **settings)


def encode(*entries: Entry, partition: str | None = "t@a") -> Any:
    return encode_request(entries, partition=partition, producer_id="p", producer_seq=3)


def test_one_message_travels_as_json() -> None:
    request = encode(entry(Message(b"h\xc3\xa9", "k", "t", {"a": "b"})), partition="t@a")
    assert request.headers["Content-Type"] == "application/json"
    assert request.query == {}
    assert json.loads(request.body) == {
        "messages": [
            {
                "body": "hé",
                "key": "k",
                "tag": "t",
                "headers": {"a": "b"},
                "partition": "t@a",
                "born_time": "2023-11-14T22:13:20.123456Z",
            }
        ],
        "producer": {"id": "p", "seq": 3},
    }


def test_a_body_that_is_no_text_travels_as_base64() -> None:
    (message,) = json.loads(encode(entry(Message(b"\xff\x00"))).body)["messages"]
    assert message["body_base64"] == "/wA="
    assert "body" not in message


def test_an_expected_offset_is_part_of_the_request() -> None:
    assert json.loads(encode(entry(Message(b"x"), expected_offset=0)).body)["expected_offset"] == 0
    large = encode(entry(Message(b"x" * 100_000), expected_offset=0))
    assert large.query == {"partition": "t@a", "expected_offset": 0}


def test_several_messages_travel_as_arrow_with_only_the_columns_that_are_filled() -> None:
    request = encode(entry(Message(b"a", key="k")), entry(Message(b"b"), Message(b"c", headers={"h": "v"})))
    assert request.headers == {
        "Content-Type": "application/vnd.apache.arrow.stream",
        "Producer-Id": "p",
        "Producer-Seq": "3",
    }
    assert request.query == {"partition": "t@a"}
    assert request.count == 3
    rows = pa.ipc.open_stream(request.body).read_all()
    assert rows.column_names == ["key", "headers", "body", "born_time"]
    assert rows.column("body").to_pylist() == [b"a", b"b", b"c"]
    assert rows.column("key").to_pylist() == ["k", None, None]
    assert rows.column("headers").to_pylist() == [None, None, [("h", "v")]]
    assert rows.column("born_time")[0].value == BORN_US


def test_a_large_single_message_travels_as_arrow() -> None:
    assert "arrow" in encode(entry(Message(b"x" * 20_000))).headers["Content-Type"]


def test_a_born_time_of_the_producer_is_kept() -> None:
    moment = datetime(2013, 1, 1, 5, 15, 0, 250, tzinfo=UTC)
    rows = pa.ipc.open_stream(encode(entry(Message(b"a", born_time=moment), Message(b"b"))).body).read_all()
    assert rows.column("born_time").to_pylist()[0] == moment
    (message,) = json.loads(encode(entry(Message(b"a", born_time=moment))).body)["messages"]
    assert message["born_time"] == "2013-01-01T05:15:00.000250Z"


def test_no_partition_lets_the_service_route() -> None:
    assert "partition" not in json.loads(encode(entry(Message(b"x")), partition=None).body)["messages"][0]
    assert encode(entry(Message(b"x"), Message(b"y")), partition=None).query == {}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"ranges":[]}', b'{"ranges":[{"partition":"t@a","base_offset":0,"count":1}]}']
)
def test_send_05_an_unreadable_answer_is_an_unknown_outcome(body: bytes) -> None:
    with pytest.raises(Unknown):
        read_ranges(body, 2)


def test_an_answer_is_read_with_more_fields_than_known() -> None:
    ranges = b'[{"partition":"t@a","base_offset":5,"count":2,"new":1}]'
    body = b'{"ranges":%s,"duplicate":true,"durable":true,"message_ids":["a"],"more":0}' % ranges
    assert read_ranges(body, 2) == [SentRange(partition="t@a", base_offset=5, count=2, duplicate=True)]


def test_ranges_of_a_routed_request_are_cut_into_those_of_its_calls() -> None:
    ranges = [
        SentRange(partition="a", base_offset=10, count=3, indexes=np.array([0, 2, 4])),
        SentRange(partition="b", base_offset=70, count=2, indexes=np.array([1, 3])),
    ]
    first, second, third = shares(ranges, [1, 2, 2])
    assert [(r.partition, r.base_offset, r.count, r.indexes) for r in first] == [("a", 10, 1, None)]
    assert [(r.partition, r.base_offset, list(r.indexes)) for r in second if r.indexes is not None] == [
        ("a", 11, [1]),
        ("b", 70, [0]),
    ]
    assert [(r.partition, r.base_offset, list(r.indexes)) for r in third if r.indexes is not None] == [
        ("a", 12, [1]),
        ("b", 71, [0]),
    ]
