"""What a client may ask of a group (API `PUT /v1/groups`, SPEC POP-3, RETRY-2)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.meta.group_settings import GroupRequest, GroupSettings, InvisibleBounds
from deltamq.mq.queue.progress import Start, StartKind
from deltamq.mq.queue.retry import Fixed, Waits
from tests.unit.mq.queue.test_retry import policies

settings_of_users = st.builds(
    GroupSettings,
    consume_strategy=st.sampled_from(["shared", "exclusive"]),
    allocation_strategy=st.sampled_from(["sticky", "average", "circle", "consistent_hash"]),
    order=st.sampled_from([True, False, "key"]),
    consume_from=st.sampled_from([Start(), Start(StartKind.LAST), Start(StartKind.TIME, 1_700_000_000_123)]),
    max_attempts=st.integers(1, 10_000),
    retry_policy=policies,
    invisible_ms=st.integers(1, 2**31),
)


def test_pop_03_and_retry_2_defaults() -> None:
    assert GroupSettings().to_json() == {
        "consume_strategy": "shared",
        "allocation_strategy": "sticky",
        "order": False,
        "consume_from": "first",
        "max_attempts": 17,
        "retry_policy": list(Waits().waits_ms),
        "invisible_ms": 60_000,
    }


def test_a_request_is_read_from_json() -> None:
    request = GroupRequest.from_json(
        {
            "consume_strategy": "exclusive",
            "allocation_strategy": "circle",
            "order": True,
            "consume_from": "last",
            "max_attempts": 3,
            "retry_policy": {"fixed_ms": 1_000},
            "invisible_ms": 10_000,
        }
    )
    assert request == GroupRequest(
        consume_strategy="exclusive",
        allocation_strategy="circle",
        order=True,
        consume_from=Start(StartKind.LAST),
        max_attempts=3,
        retry_policy=Fixed(1_000),
        invisible_ms=10_000,
    )


@given(settings_of_users)
def test_settings_survive_the_log(settings: GroupSettings) -> None:
    assert GroupSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@given(settings_of_users)
def test_a_request_changes_what_it_names(settings: GroupSettings) -> None:
    assert GroupRequest().over(settings) == settings
    assert GroupRequest(order=False).over(settings).order is False
    assert GroupRequest.from_json(dict.fromkeys(settings.to_json())) == GroupRequest()
    bounds = InvisibleBounds(min_ms=1, max_ms=2**31)
    assert GroupRequest.from_json(settings.to_json(), bounds).over(GroupSettings()) == settings


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("consume_strategy", "everybody", "invalid_value"),
        ("allocation_strategy", "random", "invalid_value"),
        ("order", "keys", "invalid_value"),
        ("consume_from", "middle", "invalid_value"),
        ("consume_from", 0, "invalid_type"),
        ("max_attempts", 0, "invalid_value"),
        ("max_attempts", 10_001, "invalid_value"),
        ("retry_policy", "never", "invalid_type"),
        ("invisible_ms", 9_999, "invalid_value"),
        ("invisible_ms", 12 * 3_600_000 + 1, "invalid_value"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_by_name(field: str, value: object, code: str) -> None:
    with pytest.raises(Refused) as refused:
        GroupRequest.from_json({field: value})
    assert (refused.value.field, refused.value.code) == (field, code)


@pytest.mark.parametrize("ms", [10_000, 60_000, 12 * 3_600_000])
def test_pop_03_invisible_times_from_ten_seconds_to_twelve_hours(ms: int) -> None:
    assert InvisibleBounds().check(ms) == ms


@pytest.mark.parametrize("ms", [-1, 0, 9_999, 12 * 3_600_000 + 1, 2**63])
def test_pop_03_other_invisible_times_are_refused_with_the_bounds(ms: int) -> None:
    with pytest.raises(Unprocessable) as refused:
        InvisibleBounds().check(ms)
    assert refused.value.extra == {"min": 10_000, "max": 12 * 3_600_000}
    assert refused.value.field == "invisible_ms"


def test_pop_03_bounds_can_be_configured_and_zero_returns_a_message() -> None:
    assert InvisibleBounds(min_ms=500).check(500) == 500
    assert InvisibleBounds().check(0, zero=True) == 0
    with pytest.raises(Unprocessable):
        InvisibleBounds().check(1, zero=True)


@pytest.mark.parametrize(("low", "high"), [(0, 5), (6, 5), (1, 2**40)])
def test_impossible_bounds_are_a_mistake_of_the_configuration(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="invisible"):
        InvisibleBounds(low, high)


@pytest.mark.parametrize(
    "change",
    [
        {"order": 5},
        {"consume_strategy": None},
        {"allocation_strategy": "random"},
        {"consume_from": "x"},
        {"retry_policy": 1},
    ],
)
def test_damaged_settings_are_told(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        GroupSettings.from_json({**GroupSettings().to_json(), **change})
