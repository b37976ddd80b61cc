"""One rule says what a tag is, where it is sent and where it is subscribed (SPEC CONS-10)."""

from __future__ import annotations

import json
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.client.messages.message import Message, check_message
from deltamq.mq.errors import Unprocessable
from deltamq.mq.names import TAG_NOT_IN, check_tag, is_tag
from deltamq.tables.message_limits import check_column
from tests.api.running import ARROW, NDJSON, Api, arrow_stream

NO_TAGS = ["", " ", "A B", "A,B", "A && B", "A&&B", "a||b", "a|b", "*", "a*", "a\tb", "a\nb", "a\x00"]
TAGS = ["a", "order.created", "a-b_c/d:e", "Grün", "注文", "100%", "(x)", "a;b"]


@pytest.mark.parametrize("tag", NO_TAGS)
def test_cons_10_what_cannot_be_subscribed_cannot_be_sent(api: Api, topic: str, tag: str) -> None:
    refused = api.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"body": "x", "tag": tag}]})
    assert (refused.status, refused.json["code"], refused.json["field"]) == (422, "invalid_tag", "messages[0].tag")
    several = [{"body": "x", "tag": "good"}, {"body": "y", "tag": tag}]
    refused = api.call("POST", f"/v1/topics/{topic}/messages", {"messages": several})
    assert (refused.status, refused.json["field"]) == (422, "messages[1].tag")
    lines = "".join(json.dumps(one) + "\n" for one in several)
    assert api.produce(topic, lines, NDJSON).status == 422
    refused = api.produce(topic, arrow_stream(body=[b"x", b"y"], tag=["good", tag]), ARROW)
    assert (refused.status, refused.json["code"], refused.json["row"]) == (422, "invalid_tag", 1)
    with pytest.raises(Unprocessable, match="several are written"):
        check_message(Message(b"x", tag=tag))
    assert api.call("GET", f"/v1/topics/{topic}").status == 404, "nothing was stored, and no topic made"


@pytest.mark.parametrize("tags", ["A,B", "A && B", "A B", "a||", "||a", "a||*", "a|b", "a || b c"])
def test_cons_10_what_cannot_be_sent_cannot_be_subscribed(api: Api, topic: str, tags: str) -> None:
    api.put_topic(topic, partitions=1)
    path = api.messages_path(topic, f"{topic}@broker-a")
    refused = api.call("GET", f"{path}?tags={quote(tags)}")
    assert (refused.status, refused.json["code"], refused.json["field"]) == (422, "invalid_tag_filter", "tags")
    refused = api.call("POST", f"/v1/groups/g/topics/{topic}/pop", {"tags": tags})
    assert (refused.status, refused.json["code"]) == (422, "invalid_tag_filter")


@pytest.mark.parametrize("tag", TAGS)
def test_cons_10_what_is_sent_is_found_by_its_tag(api: Api, topic: str, tag: str) -> None:
    assert api.send(topic, {"body": "x", "tag": tag}, {"body": "y", "tag": "other"}).status == 200
    found = [
        message["body"]
        for partition in api.call("GET", f"/v1/topics/{topic}").json["partitions"]
        for message in api.call(
            "GET", f"{api.messages_path(topic, partition['partition'])}?tags={quote(f'none||{tag}')}"
        ).json["messages"]
    ]
    assert found == ["x"]


@given(st.text(max_size=20))
def test_cons_10_columns_and_single_tags_follow_one_rule(tag: str) -> None:
    try:
        check_column("tag", pa.array([None, tag], pa.string()))
        whole = True
    except Unprocessable as error:
        assert error.extra["row"] == 1
        whole = False
    assert whole == is_tag(tag), TAG_NOT_IN
    if whole:
        assert check_tag(tag) == tag


def test_cons_11_a_header_that_a_message_has_twice_is_refused_by_arrow(api: Api, topic: str) -> None:
    headers = pa.array(
        [[("a", "1"), ("b", "2")], None, [("b", "1"), ("a", "1"), ("b", "2")]], pa.map_(pa.string(), pa.string())
    )
    refused = api.produce(topic, arrow_stream(body=[b"x", b"y", b"z"], headers=headers), ARROW)
    assert (refused.status, refused.json["field"], refused.json["row"]) == (422, "headers", 2)
    assert "'b' twice" in refused.json["detail"]
    fine = pa.array([[("a", "1"), ("b", "2")], [], [("a", "1"), ("b", "2")]], headers.type)
    assert api.produce(topic, arrow_stream(body=[b"x", b"y", b"z"], headers=fine), ARROW).status == 200
    check_column("headers", headers.slice(0, 2))
    with pytest.raises(Unprocessable, match="row 0 has"):
        check_column("headers", headers.slice(2, 1))
