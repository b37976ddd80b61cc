"""The pure parts of the outbox: rows, requests that fit, dialects, what becomes of a request (SEND-7)."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.client.cli.outbox import connector_of
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.outbox.ledger import fitting
from deltamq.mq.client.outbox.next_step import REPEATABLE_MS, NextStep, step_after, too_late
from deltamq.mq.client.outbox.outbox import lane_of, message_of, row_of, topic_of
from deltamq.mq.client.outbox.statements import POSTGRESQL, SQLITE, OutboxDialect, Tables, dialect_of
from deltamq.mq.errors import (
    Conflict,
    DeltaMQError,
    Forbidden,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from deltamq.mq.limits import PRODUCER_WINDOW_MS

text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
moments = st.datetimes(
    min_value=datetime(1970, 1, 2), max_value=datetime(2099, 1, 1), timezones=st.just(timezone(timedelta(hours=2)))
)
messages = st.builds(
    Message,
    st.binary(max_size=50),
    st.none() | text,
    st.none() | text,
    st.none() | st.dictionaries(text, text, max_size=3),
    st.none() | text,
    text.filter(bool),
    moments,
    st.none(),
    st.none() | moments,
)


@given(messages)
def test_send_07_a_row_gives_the_message_that_was_put(message: Message) -> None:
    lane, *columns = row_of("orders", message)
    assert message_of(columns) == message
    assert lane == lane_of("orders", message.key)
    assert topic_of(str(lane)) == "orders"


def test_type_30_a_row_gives_the_value_that_was_put() -> None:
    made = row_of("orders", Message(value={"id": 2**53 + 1}, key="k"))
    read = message_of(made[1:])
    assert (read.value, read.body, read.key) == (b'{"id":9007199254740993}', b"", "k")
    # A row that another program wrote as text.
    assert message_of(("t", None, None, None, '{"id": 1}', None, "m", 0, None, 1)).value == b'{"id": 1}'


def test_send_07_a_message_gets_id_and_time_when_it_is_put() -> None:
    before = datetime.now(UTC)
    read = message_of(row_of("orders", Message(b"x", delay_ms=5_000))[1:])
    assert read.message_id and read.born_time is not None and read.born_time >= before.replace(microsecond=0)
    assert read.deliver_time == read.born_time + timedelta(seconds=5)


@given(
    st.lists(st.tuples(st.sampled_from([None, "p@a", "q@a"]), st.integers(0, 100)), max_size=20), st.integers(1, 200)
)
def test_a_request_is_a_beginning_of_one_partition_that_fits(rows: list[tuple[str | None, int]], most: int) -> None:
    first = [(number, partition, size) for number, (partition, size) in enumerate(rows)]
    ids = fitting(first, most)
    assert ids == list(range(len(ids)))
    assert bool(ids) is bool(rows)
    if len(ids) > 1:
        assert len({rows[one][0] for one in ids}) == 1
        assert sum(rows[one][1] for one in ids) <= most
    if len(ids) < len(rows):
        after = rows[len(ids)]
        assert after[0] != rows[0][0] or sum(rows[one][1] for one in ids) + after[1] > most


@given(text)
def test_keys_have_sixteen_lanes_and_messages_without_a_key_one_more(key: str) -> None:
    assert lane_of("a|b%c", key) in {f"a|b%c/{number:02}" for number in range(16)}
    assert lane_of("a|b%c", None) == "a|b%c/-"


@pytest.mark.parametrize(
    "columns",
    [
        ("t", 5, None, None, b"x", None, "m", 0, None, 0),
        ("t", "k", None, '["no map"]', b"x", None, "m", 0, None, 0),
        ("t", "k", None, None, 5, None, "m", 0, None, 0),
        ("t", "k", None, None, b"x", None, "m", "noon", None, 0),
        ("t", "k", None, None, b"x", None, "m", 10**30, None, 0),
    ],
)
def test_a_row_that_holds_no_message_is_refused(columns: tuple[Any, ...]) -> None:
    with pytest.raises(Refused) as caught:
        message_of(columns)
    assert caught.value.code == "row_unreadable"


def test_a_body_that_another_program_wrote_as_text_is_taken() -> None:
    for body in ("text", bytearray(b"text"), memoryview(b"text")):
        assert message_of(("t", None, None, None, body, None, "m", 0, None, 0)).body == b"text"


# Verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "one", "several"),
    [
        (None, NextStep.STORED, NextStep.STORED),
        (Unavailable(), NextStep.REPEAT, NextStep.REPEAT),
        (Overloaded(), NextStep.REPEAT, NextStep.REPEAT),
        (Unknown(), NextStep.REPEAT, NextStep.REPEAT),
        (Conflict(), NextStep.REPEAT, NextStep.REPEAT),
        (DeltaMQError(), NextStep.REPEAT, NextStep.REPEAT),
        (Unauthenticated(), NextStep.REPEAT, NextStep.REPEAT),
        (Forbidden(), NextStep.REPEAT, NextStep.REPEAT),
        (TooLarge(), NextStep.SET_ASIDE, NextStep.DIVIDE),
        (Refused(), NextStep.SET_ASIDE, NextStep.DIVIDE),
        (NotFound(code="topic_not_found"), NextStep.SET_ASIDE, NextStep.SET_ASIDE),
        (NotFound(code="partition_not_found"), NextStep.SET_ASIDE, NextStep.SET_ASIDE),
        (Conflict(code="producer_sequence_out_of_order"), NextStep.SET_ASIDE, NextStep.SET_ASIDE),
    ],
)
def test_send_07_what_becomes_of_a_request(error: DeltaMQError | None, one: NextStep, several: NextStep) -> None:
    assert (step_after(error, 1), step_after(error, 7)) == (one, several)


def test_send_07_a_request_is_repeated_only_while_the_service_remembers_it() -> None:
    assert REPEATABLE_MS < PRODUCER_WINDOW_MS
    assert too_late(1_000, 1_000 + REPEATABLE_MS - 1) is None
    error = too_late(1_000, 1_000 + REPEATABLE_MS)
    assert error is not None and error.code == "outbox_outcome_unknown"


# Dialects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paramstyle", "sql", "parameters"),
    [
        ("qmark", "a = ? AND b = ?", (1, "x")),
        ("format", "a = %s AND b = %s", (1, "x")),
        ("pyformat", "a = %s AND b = %s", (1, "x")),
        ("numeric", "a = :1 AND b = :2", (1, "x")),
        ("named", "a = :p1 AND b = :p2", {"p1": 1, "p2": "x"}),
    ],
)
def test_a_dialect_speaks_the_drivers_paramstyle(paramstyle: str, sql: str, parameters: Any) -> None:
    dialect = OutboxDialect(name="other", paramstyle=paramstyle, id_column="", bytes_type="")
    assert dialect.sql("a = ? AND b = ?") == sql
    assert dialect.parameters([1, "x"]) == parameters


def test_an_unknown_paramstyle_or_driver_is_refused() -> None:
    with pytest.raises(Refused):
        OutboxDialect(name="other", paramstyle="guess", id_column="", bytes_type="").sql("a = ?")
    with pytest.raises(Refused) as caught:
        dialect_of(object())
    assert caught.value.code == "dialect_unknown"


def test_the_dialect_is_that_of_the_driver_also_of_a_subclass() -> None:
    class Traced(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Traced)
    assert dialect_of(connection) is SQLITE
    connection.close()
    assert POSTGRESQL.sql("a = ?") == "a = %s"


@pytest.mark.parametrize("name", ["", "a b", "a;b", "1a", "a.b.c", "a" * 60, 'a"'])
def test_a_table_is_a_plain_name(name: str) -> None:
    with pytest.raises(Refused):
        Tables(name)
    assert Tables("shop.outbox").lanes == "shop.outbox_lanes"


# URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "shop.db", "mysql://host/name", "sqlite:shop.db"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(Refused) as caught:
        connector_of(url)
    assert caught.value.code == "invalid_database_url"


def test_a_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with pytest.raises(NotFound) as caught:
        connector_of(f"sqlite:///{path}")
    assert caught.value.code == "database_not_found"
    path.touch()
    connect = connector_of(f"sqlite:///{path}")
    path.unlink()
    with pytest.raises(sqlite3.OperationalError):
        connect()
    assert not path.exists()
