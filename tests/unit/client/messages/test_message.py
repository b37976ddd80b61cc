"""What the producer refuses before anything is sent (SEND-6)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from deltamq.mq.client.messages.message import Message, as_bytes, as_messages, check_message
from deltamq.mq.errors import Refused, TooLarge, Unprocessable
from deltamq.mq.limits import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    TAG_BYTES_MAX,
)

AT_THE_LIMITS = [
    Message(b"x" * MESSAGE_BYTES_MAX),
    Message(b"", key="k" * KEY_BYTES_MAX),
    Message(b"", key="é" * (KEY_BYTES_MAX // 2)),
    Message(b"", tag="t" * TAG_BYTES_MAX),
    Message(b"", message_id="i" * MESSAGE_ID_BYTES_MAX),
    Message(b"", headers={f"{n:04}": "v" * (HEADER_BYTES_MAX - 4) for n in range(HEADERS_MAX)}),
    Message(b"", born_time=datetime.now(UTC)),
]
OVER_THE_LIMITS = [
    ("body", Message(b"x" * (MESSAGE_BYTES_MAX + 1))),
    ("key", Message(b"", key="k" * (KEY_BYTES_MAX + 1))),
    ("key", Message(b"", key="é" * (KEY_BYTES_MAX // 2 + 1))),
    ("tag", Message(b"", tag="t" * (TAG_BYTES_MAX + 1))),
    ("message_id", Message(b"", message_id="i" * (MESSAGE_ID_BYTES_MAX + 1))),
    ("headers", Message(b"", headers={str(n): "" for n in range(HEADERS_MAX + 1)})),
    ("headers.h", Message(b"", headers={"h": "v" * HEADER_BYTES_MAX})),
]


@pytest.mark.parametrize("message", AT_THE_LIMITS, ids=range(len(AT_THE_LIMITS)))
def test_send_06_a_message_at_its_limits_is_taken(message: Message) -> None:
    check_message(message)


@pytest.mark.parametrize(("field", "message"), OVER_THE_LIMITS, ids=range(len(OVER_THE_LIMITS)))
def test_send_06_a_message_over_a_limit_is_refused_and_the_limit_told(field: str, message: Message) -> None:
    with pytest.raises(TooLarge) as caught:
        check_message(message)
    assert caught.value.field == field
    assert isinstance(caught.value.extra["limit"], int)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Unprocessable) as caught:
        check_message(Message(b"", born_time=datetime(2026, 1, 1)))
    assert caught.value.field == "born_time"


def test_bodies_may_be_text_or_any_bytes() -> None:
    assert [as_bytes(body) for body in ("é", b"x", bytearray(b"y"), memoryview(b"z"))] == [
        "é".encode(),
        b"x",
        b"y",
        b"z",
    ]
    with pytest.raises(Refused) as caught:
        as_bytes(17)
    assert caught.value.field == "body"
    assert as_messages([b"a", "b", Message(b"c", key="k")]) == [Message(b"a"), Message(b"b"), Message(b"c", key="k")]


def test_the_size_of_a_message_counts_its_body_key_and_headers() -> None:
    plain = Message(b"12345").size_bytes()
    assert Message(b"12345", key="678", headers={"a": "bc", "d": "e"}).size_bytes() - plain == 3 + 5
