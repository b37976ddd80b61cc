"""What strangers send reaches the log as text, never as lines or commands of a terminal (SPEC SEC-34)."""

from __future__ import annotations

import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.serve import _Line


def _written(text: str) -> str:
    record = logging.LogRecord("deltamq", logging.INFO, "", 0, "event=x name=%s", (text,), None)
    return _Line("%(message)s").format(record)


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
    line = _Line("%(message)s").format(record)
    assert len(line.splitlines()) == 1 and r"first\nsecond\x1b" in line
