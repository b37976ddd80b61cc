"""Which brokers keyless messages avoid (SEND-4)."""

from __future__ import annotations

import pytest

from deltamq.mq.client.produce.shared import BrokerHealth, avoided_s

BOTH = ("broker-a", "broker-b")


@pytest.mark.parametrize(
    ("latency_s", "rest_s"), [(0.1, 0), (0.549, 0), (0.55, 2), (1, 5), (2.5, 6), (3, 10), (5, 30), (99, 60)]
)
def test_send_04_the_slower_the_longer_avoided(latency_s: float, rest_s: float) -> None:
    assert avoided_s(latency_s) == rest_s


def test_send_04_a_failing_broker_is_avoided_until_its_time_is_over() -> None:
    health = BrokerHealth()
    health.failed("broker-a", 0.01, now=100)
    assert health.avoided(BOTH, 101) == {"broker-a"}
    assert health.avoided(BOTH, 111) == frozenset()


def test_send_04_a_quick_answer_ends_it() -> None:
    health = BrokerHealth()
    health.answered("broker-a", 3.5, now=100)
    assert health.avoided(BOTH, 101) == {"broker-a"}
    health.answered("broker-a", 0.01, now=102)
    assert health.avoided(BOTH, 102) == frozenset()


def test_send_04_when_all_are_in_trouble_all_are_used() -> None:
    health = BrokerHealth()
    for broker in BOTH:
        health.failed(broker, 0.01, now=100)
    assert health.avoided(BOTH, 101) == frozenset()
    assert health.avoided(("broker-a",), 101) == frozenset()
