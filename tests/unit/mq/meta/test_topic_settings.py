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


def test_stored_settings_come_back_and_may_lack_what_is_new() -> None:
    settings = TopicSettings(order_strategy="strict", retention_ms=7_000, message_type="m", flush="async")
    assert TopicSettings.from_json(settings.to_json()) == settings
    assert TopicSettings.from_json({"retention_ms": 7_000, "of_a_newer_release": 1}) == TopicSettings(
        retention_ms=7_000
    )


def test_stored_settings_are_read_without_the_bounds_of_requests() -> None:
    assert TopicSettings.from_json({"retention_ms": 1}).retention_ms == 1
