"""What a client may ask of a topic (API `PUT /v1/topics/{topic}`)."""

from __future__ import annotations

import pytest

from mq.errors import Refused, Unprocessable
from mq.limits import MESSAGE_TYPE_LENGTH_MAX, RETENTION_MS_MAX, RETENTION_MS_MIN
from mq.meta.topic_settings import TopicRequest, TopicSettings


def test_send_2_and_retry_6_defaults() -> None:
    settings = TopicSettings()
    assert settings.order_strategy == "best_tried"
    assert settings.retention_ms == 3 * 24 * 3600 * 1000
    assert settings.flush is None


def test_a_request_is_read_from_json() -> None:
    request = TopicRequest.from_json(
        {
            "partitions": 4,
            "order_strategy": "strict",
            "retention_ms": 60_000,
            "message_type": "orders v2 / 订单",
            "flush": "async",
            "static": False,
        }
    )
    assert request == TopicRequest(
        partitions=4,
        order_strategy="strict",
        retention_ms=60_000,
        message_type="orders v2 / 订单",
        flush="async",
    )


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    nulls = dict.fromkeys(["partitions", "order_strategy", "retention_ms", "message_type", "flush", "static"])
    assert TopicRequest.from_json(nulls) == TopicRequest() == TopicRequest.from_json({})


def test_a_request_changes_only_what_it_gives() -> None:
    before = TopicSettings(order_strategy="strict", retention_ms=5_000, message_type="x", flush="sync")
    assert TopicRequest().over(before) == before
    assert TopicRequest(flush="async").over(before) == TopicSettings(
        order_strategy="strict", retention_ms=5_000, message_type="x", flush="async"
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"static": True}, "static"),
        ({"static": True, "total_queues": 8, "brokers": ["A"]}, "static"),
        ({"total_queues": 8}, "total_queues"),
        ({"brokers": ["A"]}, "brokers"),
        ({"static": "yes"}, "static"),
    ],
)
def test_static_topics_are_refused_by_name(given: dict[str, object], field: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        TopicRequest.from_json(given)
    assert (refused.value.code, refused.value.field) == ("static_topics_unavailable", field)
    assert "static" in refused.value.detail


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"partitons": 4}, "unknown_field", "partitons"),
        ({"partitions": "4"}, "invalid_type", "partitions"),
        ({"partitions": 4.0}, "invalid_type", "partitions"),
        ({"partitions": True}, "invalid_type", "partitions"),
        ({"retention_ms": [1]}, "invalid_type", "retention_ms"),
        ({"order_strategy": 1}, "invalid_type", "order_strategy"),
        ({"message_type": {}}, "invalid_type", "message_type"),
        ({"flush": False}, "invalid_type", "flush"),
    ],
)
def test_a_malformed_field_is_refused_and_named(given: dict[str, object], code: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        TopicRequest.from_json(given)
    assert (refused.value.status, refused.value.code, refused.value.field) == (400, code, field)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"order_strategy": "best"}, "order_strategy"),
        ({"order_strategy": ""}, "order_strategy"),
        ({"flush": "SYNC"}, "flush"),
        ({"retention_ms": 0}, "retention_ms"),
        ({"retention_ms": RETENTION_MS_MIN - 1}, "retention_ms"),
        ({"retention_ms": RETENTION_MS_MAX + 1}, "retention_ms"),
        ({"message_type": ""}, "message_type"),
        ({"message_type": "x" * (MESSAGE_TYPE_LENGTH_MAX + 1)}, "message_type"),
        ({"message_type": "a\r\nlevel=error"}, "message_type"),
    ],
)
def test_a_value_out_of_bounds_is_unprocessable_and_named(given: dict[str, object], field: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        TopicRequest.from_json(given)
    assert (refused.value.status, refused.value.code, refused.value.field) == (422, "invalid_value", field)


@pytest.mark.parametrize("retention_ms", [RETENTION_MS_MIN, RETENTION_MS_MAX])
def test_retention_bounds_are_inside(retention_ms: int) -> None:
    assert TopicRequest.from_json({"retention_ms": retention_ms}).retention_ms == retention_ms
