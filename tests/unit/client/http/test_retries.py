"""Waits between attempts, and when they end."""

from __future__ import annotations

import threading
import time

import pytest

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.http.retries import Attempts, Patience, asked_s, is_worth_retrying
from deltamq.mq.client.shells.shell import Stop, run_now
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.errors import (
    Corrupt,
    DeltaMQError,
    Fenced,
    NotFound,
    OffsetMismatch,
    Overloaded,
    Refused,
    Unavailable,
    Unknown,
)


def attempts(patience: Patience, *, deadline_s: float = 10.0, retries: int | None = 3, failures: int = 0) -> Attempts:
    return Attempts(
        patience, shell=ThreadShell(), deadline=time.monotonic() + deadline_s, retries=retries, failures=failures
    )


def test_waits_double_up_to_the_longest_and_carry_jitter() -> None:
    patience = Patience(first_wait_ms=10, wait_ms_max=100)
    assert [patience.wait_s(n, 0.0) for n in (1, 2, 3, 4, 5, 99)] == [0.005, 0.01, 0.02, 0.04, 0.05, 0.05]
    assert patience.wait_s(1, 0.5) == pytest.approx(0.0075)
    assert patience.wait_s(10_000, 0.0) == 0.05


def test_retries_are_counted_also_those_of_another_partition() -> None:
    run = attempts(Patience(first_wait_ms=1), retries=2)
    assert [run_now(run.may_go_on(Unavailable())) for _ in range(3)] == [True, True, False]
    assert run_now(attempts(Patience(first_wait_ms=1), retries=2, failures=2).may_go_on(Unavailable())) is False


def test_without_a_count_only_the_deadline_ends_it() -> None:
    run = attempts(Patience(first_wait_ms=1, wait_ms_max=1), deadline_s=0.2, retries=None)
    began = time.monotonic()
    count = 0
    while run_now(run.may_go_on(Unavailable())):
        count += 1
    assert count > 10
    assert 0.15 < time.monotonic() - began < 30


def test_retry_after_makes_the_wait_longer_but_never_longer_than_the_deadline() -> None:
    error = Overloaded()
    error.extra = {"retry_after_s": 3600}
    began = time.monotonic()
    assert run_now(attempts(Patience(first_wait_ms=1), deadline_s=600).may_go_on(error)) is False
    assert time.monotonic() - began < 30, "it does not wait for what comes too late"


def test_sec_21_a_wait_is_at_least_as_long_as_the_service_asks() -> None:
    patience = Patience(first_wait_ms=10, wait_ms_max=20)
    told = error_of(429, {"retry-after": "7"}, b'{"code": "quota_exceeded"}')
    assert patience.wait_s(1, 0.5, told) == 7.0
    assert patience.wait_s(9, 0.999, Overloaded()) <= 1.0
    assert patience.wait_s(9, 0.5) <= 0.02
    assert asked_s(None) == 0.0


def test_a_closing_producer_ends_the_wait() -> None:
    stop = Stop(ThreadShell())
    run = Attempts(
        Patience(first_wait_ms=60_000, wait_ms_max=60_000),
        shell=ThreadShell(),
        deadline=time.monotonic() + 600,
        retries=9,
        stop=stop,
    )
    threading.Timer(0.05, stop.set).start()
    began = time.monotonic()
    assert run_now(run.may_go_on(Unavailable())) is False
    assert time.monotonic() - began < 30


def test_an_attempt_gets_what_is_left_of_the_time() -> None:
    assert attempts(Patience(request_timeout_s=5)).timeout_s() == 5
    assert 30 < attempts(Patience(request_timeout_s=100), deadline_s=60).timeout_s() <= 60
    assert attempts(Patience(request_timeout_s=5), deadline_s=-1).timeout_s() == 0.001


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (Overloaded(), True),
        (Unavailable(), True),
        (Unknown(), True),
        (Fenced(), True),
        (Corrupt(), True),
        (Refused(), False),
        (NotFound(), False),
        (OffsetMismatch(), False),
    ],
)
def test_only_trouble_that_may_pass_is_worth_a_retry(error: DeltaMQError, worth: bool) -> None:
    assert is_worth_retrying(error) is worth


@pytest.mark.parametrize("field", ["timeout_s", "request_timeout_s", "first_wait_ms", "wait_ms_max", "retries"])
def test_patience_out_of_its_bounds_is_refused(field: str) -> None:
    with pytest.raises(Refused) as caught:
        Patience(**{field: -1})
    assert caught.value.field == field
