"""Retry policies, attempts and dead letters (SPEC RETRY-2, RETRY-3, POP-10, POP-11)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.queue.retry import (
    DEFAULT_WAITS_MS,
    Again,
    Dead,
    DeadLetterTopic,
    Exponential,
    Fixed,
    RetryPolicy,
    RetryTopic,
    Waits,
    after_failure,
    check_reason,
    policy_from_json,
    policy_to_json,
    wait_ms,
    with_reason,
    without_reason,
)

HOUR = 3_600_000
waits = st.integers(0, 12 * HOUR)
policies: st.SearchStrategy[RetryPolicy] = st.one_of(
    st.builds(Waits, st.lists(waits, min_size=1, max_size=64).map(tuple)),
    st.builds(Fixed, waits),
    st.builds(
        Exponential,
        initial_ms=st.integers(0, HOUR),
        multiplier=st.floats(1, 100),
        max_ms=st.integers(HOUR, 12 * HOUR),
        jitter=st.floats(0, 1),
    ),
)
draws = st.floats(0, 1)


def test_retry_2_the_default_waits_are_those_of_the_source() -> None:
    minutes = [wait_ms(Waits(), attempt) / 60_000 for attempt in range(1, 17)]
    assert minutes == [1 / 6, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    assert len(DEFAULT_WAITS_MS) == 16
    assert wait_ms(Waits(), 99) == 2 * HOUR


@pytest.mark.parametrize(
    ("name", "policy", "expected"),
    [
        ("fixed", Fixed(700), [700, 700, 700]),
        ("a short list goes on with its last", Waits((1, 2)), [1, 2, 2]),
        ("doubling", Exponential(initial_ms=100, max_ms=300), [100, 200, 300]),
        ("a ceiling at once", Exponential(initial_ms=100, max_ms=100), [100, 100, 100]),
        ("no growth", Exponential(initial_ms=100, multiplier=1, max_ms=300), [100, 100, 100]),
    ],
)
def test_retry_2_policies(name: str, policy: RetryPolicy, expected: list[int]) -> None:
    assert [wait_ms(policy, attempt) for attempt in (1, 2, 3)] == expected


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 50), (0.5, 100), (1.0, 150)])
def test_retry_2_jitter_is_around_the_wait(draw: float, wait: int) -> None:
    assert wait_ms(Exponential(initial_ms=100, jitter=0.5), 1, draw) == wait
    assert wait_ms(Fixed(100), 1, draw) == 100


@given(policies, st.integers(1, 10**9), draws)
def test_retry_2_a_wait_is_bounded_whatever_the_attempt(policy: RetryPolicy, attempt: int, draw: float) -> None:
    assert 0 <= wait_ms(policy, attempt, draw) <= 12 * HOUR
    if isinstance(policy, Exponential):
        assert wait_ms(policy, attempt, draw) <= policy.max_ms
        assert wait_ms(policy, attempt, 0.5) <= wait_ms(policy, attempt + 1, 0.5)


@given(policies, st.integers(1, 100))
def test_retry_3_a_message_is_delivered_exactly_as_often_as_allowed(policy: RetryPolicy, max_attempts: int) -> None:
    deliveries = 1
    while isinstance(after_failure(policy, attempt=deliveries, max_attempts=max_attempts), Again):
        deliveries += 1
    assert deliveries == max_attempts
    assert after_failure(policy, attempt=deliveries, max_attempts=max_attempts) == Dead("max_attempts")


def test_retry_3_a_lowered_limit_ends_messages_that_are_already_over_it() -> None:
    assert isinstance(after_failure(Fixed(1), attempt=7, max_attempts=3), Dead)


@given(policies)
def test_policies_survive_json(policy: RetryPolicy) -> None:
    assert policy_from_json(json.loads(json.dumps(policy_to_json(policy)))) == policy


def test_an_exponential_policy_has_defaults() -> None:
    assert policy_from_json({"exponential": {}}) == Exponential(initial_ms=5_000, multiplier=2.0, max_ms=2 * HOUR)


@pytest.mark.parametrize(
    ("value", "field", "code"),
    [
        ("fixed", "retry_policy", "invalid_type"),
        ({}, "retry_policy", "invalid_type"),
        ({"fixed_ms": 1, "exponential": {}}, "retry_policy", "invalid_type"),
        ({"fixed": 1}, "retry_policy", "invalid_type"),
        ({"fixed_ms": "1"}, "retry_policy.fixed_ms", "invalid_type"),
        ({"fixed_ms": True}, "retry_policy.fixed_ms", "invalid_type"),
        ({"fixed_ms": -1}, "retry_policy.fixed_ms", "invalid_value"),
        ({"fixed_ms": 12 * HOUR + 1}, "retry_policy.fixed_ms", "invalid_value"),
        ([], "retry_policy", "invalid_value"),
        ([1] * 65, "retry_policy", "invalid_value"),
        ([1, 2.5], "retry_policy", "invalid_type"),
        ([1, -5], "retry_policy", "invalid_value"),
        ({"exponential": 5}, "retry_policy.exponential", "invalid_type"),
        ({"exponential": {"base": 2}}, "retry_policy.exponential.base", "unknown_field"),
        ({"exponential": {"jitter": 1.5}}, "retry_policy.exponential.jitter", "invalid_value"),
        ({"exponential": {"jitter": float("nan")}}, "retry_policy.exponential.jitter", "invalid_value"),
        ({"exponential": {"multiplier": 0.5}}, "retry_policy.exponential.multiplier", "invalid_value"),
        ({"exponential": {"multiplier": float("inf")}}, "retry_policy.exponential.multiplier", "invalid_value"),
        ({"exponential": {"multiplier": "2"}}, "retry_policy.exponential.multiplier", "invalid_type"),
        ({"exponential": {"initial_ms": 1.5}}, "retry_policy.exponential.initial_ms", "invalid_type"),
        ({"exponential": {"initial_ms": 10, "max_ms": 9}}, "retry_policy.exponential.max_ms", "invalid_value"),
    ],
)
def test_an_impossible_policy_is_refused_naming_the_field(value: object, field: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        policy_from_json(value)
    assert (refused.value.field, refused.value.code) == (field, code)


def test_retry_3_a_dead_letter_carries_its_reason_and_loses_it_when_it_is_sent_back() -> None:
    headers = {"trace": "7"}
    assert with_reason(headers, "max_attempts") == {"trace": "7", "mq-dead-reason": "max_attempts"}
    assert without_reason(with_reason(headers, "x")) == headers


@pytest.mark.parametrize("reason", ["", "x" * 256, "two\nlines", "nul\0"])
def test_a_reason_that_cannot_be_shown_is_refused(reason: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        check_reason(reason)
    assert refused.value.field == "reason"
    assert check_reason("客户不存在") == "客户不存在"


names = st.text(alphabet="ab_", min_size=1, max_size=4)


@given(names, names, names, names)
def test_pop_11_retry_topics_of_different_pairs_lie_apart(group: str, topic: str, group2: str, topic2: str) -> None:
    """`%RETRY%a_b_c` may be group a_b of topic c, or group a of topic b_c."""
    one, other = RetryTopic(group, topic), RetryTopic(group2, topic2)
    assert (one == other) == (one.storage_name == other.storage_name)
    assert RetryTopic.of_storage_name(one.storage_name) == one


def test_pop_11_and_retry_3_names_for_people() -> None:
    assert RetryTopic("a_b", "c").name == RetryTopic("a", "b_c").name == "%RETRY%a_b_c"
    assert RetryTopic("billing", "orders").partition("broker-a") == "%RETRY%billing_orders@broker-a"
    dead = DeadLetterTopic("billing")
    assert (dead.name, dead.storage_name, dead.partition("A")) == ("%DLQ%billing", "billing", "%DLQ%billing@A")
