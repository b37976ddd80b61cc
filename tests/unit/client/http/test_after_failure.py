"""What becomes of a request whose attempt failed: every row of the table in `mq.client.http.retries`."""

from __future__ import annotations

import pytest

from deltamq.mq.client.http.retries import AfterFailure, certainly_not_applied, judge
from deltamq.mq.errors import (
    Conflict,
    Corrupt,
    DeltaMQError,
    Fenced,
    Forbidden,
    NotFound,
    OffsetMismatch,
    Overloaded,
    Refused,
    StorageFull,
    TooLarge,
    Unavailable,
    Unknown,
)

CONNECT_FAILED = Unavailable(code="connect_failed")
NO_PARTITION = NotFound(code="partition_not_found")
NO_TOPIC = NotFound(code="topic_not_found")


@pytest.mark.parametrize(
    ("name", "error", "uncertain", "calls", "may_go_on", "step"),
    [
        ("trouble, tries left", Unavailable(), True, 1, True, AfterFailure.RETRY),
        ("queue full, tries left", Overloaded(), False, 3, True, AfterFailure.RETRY),
        ("lost answer, nothing left", Unknown(), True, 1, False, AfterFailure.UNKNOWN),
        ("queue full at last, lost answer before", Overloaded(), True, 1, False, AfterFailure.UNKNOWN),
        ("queue full every time", Overloaded(), False, 1, False, AfterFailure.FAIL),
        ("never connected", CONNECT_FAILED, False, 1, False, AfterFailure.FAIL),
        ("fenced, tries left", Fenced(), False, 1, True, AfterFailure.RETRY),
        ("wrong partition", NO_PARTITION, False, 2, False, AfterFailure.REROUTE),
        ("topic gone", NO_TOPIC, False, 1, False, AfterFailure.REROUTE),
        ("wrong partition after a lost answer", NO_PARTITION, True, 1, False, AfterFailure.UNKNOWN),
        ("another 404", NotFound(), False, 1, False, AfterFailure.FAIL),
        ("bad message among several", Refused(), False, 2, False, AfterFailure.SPLIT),
        ("bad message alone", TooLarge(), False, 1, False, AfterFailure.FAIL),
        ("bad message after a lost answer", Refused(), True, 2, False, AfterFailure.FAIL),
        ("large message after a lost answer", TooLarge(code="message_too_large"), True, 1, False, AfterFailure.FAIL),
        ("over a limit after a lost answer", TooLarge(code="request_too_large"), True, 1, False, AfterFailure.UNKNOWN),
        ("over a proxy's limit after a lost answer", TooLarge(), True, 1, False, AfterFailure.UNKNOWN),
        ("over a limit every time", TooLarge(code="request_too_large"), False, 1, False, AfterFailure.FAIL),
        ("token expired after a lost answer", Forbidden(), True, 1, False, AfterFailure.UNKNOWN),
        ("end offset has moved", OffsetMismatch(), False, 1, False, AfterFailure.FAIL),
        ("end offset has moved, lost answer before", OffsetMismatch(), True, 1, False, AfterFailure.UNKNOWN),
    ],
)
def test_what_follows_a_failure(
    name: str, error: DeltaMQError, uncertain: bool, calls: int, may_go_on: bool, step: AfterFailure
) -> None:
    assert judge(error, uncertain=uncertain, calls=calls, may_go_on=may_go_on) is step, name


@pytest.mark.parametrize(
    ("error", "certain"),
    [
        (Refused(), True),
        (Conflict(), True),
        (Overloaded(), True),
        (StorageFull(), True),
        (CONNECT_FAILED, True),
        (Unavailable(), False),
        (Unknown(), False),
        (Corrupt(), False),
        (DeltaMQError(), False),
    ],
)
def test_send_05_a_5xx_or_a_broken_connection_may_have_been_applied(error: DeltaMQError, certain: bool) -> None:
    assert certainly_not_applied(error) is certain
