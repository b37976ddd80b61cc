"""What strangers send reaches the log as text, never as lines or commands of a terminal (SPEC SEC-34)."""

from __future__ import annotations

import json
import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.log_lines import JsonLine, Line, fields_of


def _written(text: str) -> str:
    record = logging.LogRecord("deltamq", logging.INFO, "", 0, "event=x name=%s", (text,), None)
    return Line().format(record).partition(" logger=deltamq ")[2]


@given(st.text())
def test_sec_34_a_record_is_one_line_without_control_characters(text: str) -> None:
    line = _written(text)
    assert len(line.splitlines()) == 1
    assert not any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in line)


def test_sec_34_what_would_move_the_cursor_or_turn_text_round_is_escaped() -> None:
    assert _written("a\r\nb") == r"event=x name=a\r\nb"
    assert _written("a\x1b[2Kb\x9b") == r"event=x name=a\x1b[2Kb\x9b"
    assert _written("a\u2028b\u202ec\x85") == r"event=x name=a\u2028b\u202ec\x85"
    assert _written("größe 注文 🚚") == "event=x name=größe 注文 🚚"


def test_sec_34_a_traceback_is_one_line_too() -> None:
    try:
        raise ValueError("first\nsecond\x1b")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("deltamq", logging.ERROR, "", 0, "event=failed", (), info)
    line = Line().format(record)
    assert len(line.splitlines()) == 1 and r"first\nsecond\x1b" in line


def _json_of(message: str, *arguments: object, error: BaseException | None = None) -> dict[str, str]:
    info = None if error is None else (type(error), error, error.__traceback__)
    line = JsonLine().format(logging.LogRecord("deltamq.api", logging.ERROR, "", 0, message, arguments, info))
    assert len(line.splitlines()) == 1
    found: dict[str, str] = json.loads(line)
    return found


@given(st.text())
def test_sec_34_each_field_of_a_json_record_is_what_was_logged(text: str) -> None:
    found = _json_of("event=x name=%r count=%d", text, 5)
    assert (found["event"], found["name"], found["count"]) == ("x", text, "5")
    assert (found["level"], found["logger"]) == ("ERROR", "deltamq.api") and found["time"].endswith("Z")


def test_sec_34_what_is_not_a_field_is_the_message_and_an_error_is_told() -> None:
    found = _json_of("event=lost message=%s it is delivered again", "orders@a:3", error=ValueError("first\nsecond"))
    assert (found["event"], found["message"]) == ("lost", "it is delivered again")
    assert found["exception"].endswith("ValueError: first\nsecond")
    assert fields_of("nothing of ours") == ({}, "nothing of ours")
    assert _json_of("event=x level=fine logger='mine'")["level"] == "ERROR", "what is true of a record stays"
