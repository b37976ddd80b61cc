"""The settings of a topic, and requests that change them (API `PUT /v1/topics/{topic}`)."""

from __future__ import annotations

from mq.meta.topic_settings import TopicRequest, TopicSettings


def test_send_2_and_retry_6_defaults() -> None:
    settings = TopicSettings()
    assert settings.order_strategy == "best_tried"
    assert settings.retention_ms == 3 * 24 * 3600 * 1000
    assert settings.flush is None


def test_a_request_changes_only_what_it_gives() -> None:
    before = TopicSettings(order_strategy="strict", retention_ms=5_000, message_type="x", flush="sync")
    assert TopicRequest().over(before) == before
    assert TopicRequest(flush="async").over(before) == TopicSettings(
        order_strategy="strict", retention_ms=5_000, message_type="x", flush="async"
    )
