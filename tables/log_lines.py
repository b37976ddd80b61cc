"""The log of a service or of jobs: one line or one JSON object for each event, on stderr, without bodies and keys.

    log.info("event=topic_put topic=%r", name) --> time=... level=INFO logger=deltamq.api event=topic_put topic='orders'
                                               '-> {"time": ..., "event": "topic_put", "topic": "orders"}

`log_format` chooses the form, `log_level` what is logged, in `service` and in `jobs`.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from deltamq.tables.config_sections import LogFormat, LogLevel

#: The logger whose level is changed, with all below it.
OURS: Final = "deltamq"
#: These would write a line for each request, forwarded ones included, or for each call of Spark's JVM.
_CHATTY: Final = ("uvicorn", "httpx", "httpcore", "py4j")
#: What could end a line, move a terminal's cursor or turn text round: control characters, Unicode's among them.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
#: A field of a message: its value is a word, or a text as Python quotes it.
_FIELD: Final = re.compile(r"""([a-z_]\w*)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S*)\s*""")


class Line(logging.Formatter):
    """Keeps each record on one line and escapes control characters."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda match: repr(match[0])[1:-1], super().format(record))


class JsonLine(Line):
    """Makes a JSON object of each record: the fields of its message, all as texts, beside time, level and logger."""

    def format(self, record: logging.LogRecord) -> str:
        fields, rest = fields_of(record.getMessage())
        shown = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        if rest:
            shown["message"] = rest
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        # A field never replaces what is true of every record.
        return msgspec.json.encode({**fields, **shown}).decode()


def fields_of(message: str) -> tuple[dict[str, str], str]:
    """Return the fields `name=value` with which a message begins, and the rest of it."""
    fields: dict[str, str] = {}
    at = 0
    while (found := _FIELD.match(message, at)) is not None and found.end() > at:
        fields[found[1]] = _unquoted(found[2])
        at = found.end()
    return fields, message[at:]


def _unquoted(value: str) -> str:
    if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
        try:
            return str(ast.literal_eval(value))
        except (SyntaxError, ValueError):
            return value
    return value


def log_to_stderr(form: LogFormat, level: LogLevel) -> None:
    """Log from here on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if form is LogFormat.JSON else Line())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger(OURS).setLevel(level.name)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


@contextmanager
def logged_to_stderr(form: LogFormat, level: LogLevel) -> Iterator[None]:
    """Log so until the block ends; for a command that runs in a process with a log of its own."""
    root, ours = logging.getLogger(), logging.getLogger(OURS)
    before = (list(root.handlers), root.level, ours.level)
    log_to_stderr(form, level)
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])
