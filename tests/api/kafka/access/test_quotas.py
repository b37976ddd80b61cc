"""How much a client of Kafka may use (SPEC KAFKA-11)."""

from __future__ import annotations

import time

from deltamq.api.kafka.messages.log_messages import FetchPartition, FetchRequest, FetchTopic
from tests.api.kafka.access.callers import send
from tests.api.kafka.access.calls import ANYTHING


def test_kafka_11_a_quota_slows_its_principal_down_and_says_so(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    slow = door.caller(topic, ("topic", topic, "publish", "subscribe"))
    quick = door.caller(f"{topic}-quick", ("topic", topic, "subscribe"))
    quota = {"requests_per_s": 2}
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", quota).status == 200
    with slow.raw() as client, quick.raw() as other:
        began = time.monotonic()
        answers = [client.ask(ANYTHING[FetchRequest](topic)) for _ in range(6)]
        assert time.monotonic() - began > 1.0, "two at once, and two a second"
        assert max(one.throttle_ms for one in answers) > 100
        began = time.monotonic()
        assert {other.ask(ANYTHING[FetchRequest](topic)).throttle_ms for _ in range(20)} == {0}
        assert time.monotonic() - began < 15
    quota = {"bytes_in_per_s": 20_000}
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", quota).status == 200
    began = time.monotonic()
    send(slow.settings(**{"batch.size": 1_000, "message.timeout.ms": 30_000}), topic, *["x" * 1_000] * 60)
    assert time.monotonic() - began > 1.5, "60 KB, of which a second's worth goes at once"


def test_kafka_11_bytes_of_answers_count(door, topic) -> None:
    door.admin.put_topic(topic, partitions=1)
    door.admin.send(topic, *["x" * 10_000] * 4)
    slow = door.caller(topic, ("topic", topic, "subscribe"))
    assert door.admin.call("PUT", f"/v1/auth/quotas/{topic}", {"bytes_out_per_s": 10_000}).status == 200
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    fetch = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=100_000, topics=[FetchTopic(name=topic, partitions=[wanted])]
    )
    with slow.raw() as client:
        began = time.monotonic()
        first, second = client.ask(fetch), client.ask(fetch)
        assert first.throttle_ms > 2_000 and second.topics
        assert time.monotonic() - began > 2
