"""The settings of a topic, and requests that change them (API `PUT /v1/topics/{topic}`)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from deltamq.mq.limits import RETENTION_MS_DEFAULT, RETENTION_MS_MAX
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings, limit_of, settings_after, window_of


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


@pytest.mark.parametrize("by_kafka", [False, True])
def test_send_14_a_window_is_kept_until_it_is_set_again_or_put_back(by_kafka: bool) -> None:
    def asked(window_ms: int) -> TopicRequest:
        if by_kafka:
            return TopicRequest(kafka={"deltamq.commit.window.ms": str(window_ms)})
        return TopicRequest(commit_window_ms=window_ms)

    settings, kafka = TopicSettings(), KAFKA
    assert window_of(settings) is None
    put_back = TopicRequest(kafka={"deltamq.commit.window.ms": None})
    for request, window_ms in (
        (asked(300), 300),
        (TopicRequest(flush="sync"), 300),
        (asked(0), 0),
        (TopicRequest(retention_ms=5_000), 0),
        (put_back, None),
    ):
        settings, kafka = settings_after(request, settings, kafka)
        assert (window_of(settings), kafka) == (window_ms, {})


KAFKA: Mapping[str, str] = {}


def after(*requests: TopicRequest) -> tuple[int, Mapping[str, str]]:
    """How long a new topic keeps its messages after all these, and what it keeps of Kafka's settings."""
    settings, kafka = TopicSettings(), KAFKA
    for request in requests:
        settings, kafka = settings_after(request, settings, kafka)
    return settings.retention_ms, kafka


def by_kafka(**settings: str | None) -> TopicRequest:
    names = {"policy": "cleanup.policy", "retention": "retention.ms", "segment": "segment.bytes"}
    names["size"] = "retention.bytes"
    return TopicRequest(kafka={names[name]: value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("retention", "retention_ms", "kept"),
    [
        ("60000", 60_000, {}),
        ("-1", RETENTION_MS_MAX, {"retention.ms": "-1"}),
        (str(2**63 - 1), RETENTION_MS_MAX, {"retention.ms": str(2**63 - 1)}),
        (str(RETENTION_MS_DEFAULT), RETENTION_MS_DEFAULT, {"retention.ms": str(RETENTION_MS_DEFAULT)}),
        (None, RETENTION_MS_DEFAULT, {}),
    ],
)
def test_kafka_15_a_retention_time_counts_and_its_words_are_kept(retention, retention_ms, kept) -> None:
    assert after(by_kafka(retention=retention)) == (retention_ms, kept)
    assert after(by_kafka(retention=retention), TopicRequest(retention_ms=5_000)) == (5_000, {})
    assert after(TopicRequest(retention_ms=5_000), by_kafka(retention=retention)) == (retention_ms, kept)


@pytest.mark.parametrize("policy", ["compact", ""])
def test_kafka_15_nothing_of_a_topic_without_deletion_is_removed_by_time(policy) -> None:
    forever = by_kafka(policy=policy)
    assert after(forever) == (RETENTION_MS_MAX, {"cleanup.policy": policy})
    for before in (by_kafka(retention="60000"), TopicRequest(retention_ms=60_000)):
        assert after(before, forever) == (RETENTION_MS_MAX, {"cleanup.policy": policy, "retention.ms": "60000"})
        assert after(before, forever, by_kafka(segment="1048576"))[0] == RETENTION_MS_MAX
        for again in (by_kafka(policy="delete"), by_kafka(policy=None), by_kafka(policy="compact,delete")):
            assert after(before, forever, again)[0] == 60_000, "it counts again"
        assert after(before, forever, by_kafka(policy=None, retention=None)) == (RETENTION_MS_DEFAULT, {})
    assert after(forever, by_kafka(retention="60000"))[0] == RETENTION_MS_MAX
    assert after(forever, by_kafka(policy=None))[0] == RETENTION_MS_DEFAULT


def test_kafka_15_a_time_that_is_set_otherwise_makes_a_policy_with_deletion() -> None:
    asked = TopicRequest(retention_ms=60_000)
    assert after(by_kafka(policy="compact"), asked) == (60_000, {"cleanup.policy": "compact,delete"})
    assert after(by_kafka(policy="compact", retention="-1"), asked) == (60_000, {"cleanup.policy": "compact,delete"})
    assert after(by_kafka(policy=""), asked) == (60_000, {"cleanup.policy": "delete"})
    assert after(by_kafka(policy="compact"), TopicRequest(flush="sync"))[0] == RETENTION_MS_MAX
    assert after(TopicRequest(), TopicRequest(retention_ms=5_000), TopicRequest(flush="sync")) == (5_000, {})


def test_kafka_15_other_settings_are_kept_as_they_are_until_they_are_put_back() -> None:
    assert after(by_kafka(segment="1048576"), TopicRequest(retention_ms=5_000)) == (5_000, {"segment.bytes": "1048576"})
    assert after(by_kafka(segment="1048576"), by_kafka(segment=None)) == (RETENTION_MS_DEFAULT, {})


def limits(*requests: TopicRequest) -> tuple[int, Mapping[str, str]]:
    """The bytes that a new topic keeps after all these, and what it keeps of Kafka's settings."""
    settings, kafka = TopicSettings(), KAFKA
    for request in requests:
        settings, kafka = settings_after(request, settings, kafka)
    return limit_of(settings), kafka


def test_retry_9_a_size_counts_however_it_was_set_while_the_policy_deletes() -> None:
    by_rest, none = TopicRequest(retention_bytes=5_000), TopicRequest(retention_bytes=-1)
    for first in (by_rest, by_kafka(size="5000")):
        assert limits(first) == (5_000, {})
        assert limits(first, TopicRequest(flush="sync")) == (5_000, {})
        assert limits(first, none) == limits(first, by_kafka(size=None)) == (-1, {})
        compacted = by_kafka(policy="compact")
        assert limits(first, compacted) == (-1, {"cleanup.policy": "compact", "retention.bytes": "5000"})
        assert limits(first, compacted, by_kafka(policy=None)) == (5_000, {})
    most = str(2**63 - 1)  # of Kafka; JSON has less
    assert limits(by_kafka(size=most)) == (2**53 - 1, {"retention.bytes": most})
    assert limits(by_kafka(size="-7")) == (-1, {"retention.bytes": "-7"})
    assert limits(by_kafka(policy="compact"), by_rest) == (5_000, {"cleanup.policy": "compact,delete"})
    assert limits(by_rest, TopicRequest(retention_ms=60_000))[0] == 5_000
    assert after(by_rest) == (RETENTION_MS_DEFAULT, {})
