"""Places in a log as the command line takes them: `first`, `last`, a time, or a time ago such as `-1h`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import click

from deltamq.mq.request_values import ago_ms

PLACE_HELP: Final = "first, last, -1h (s, m, h or d ago) or TIME (RFC 3339)"

#: Kafka's words are taken, too.
_WORDS: Final[dict[str, Literal["first", "last"]]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
}


def parse_moment(text: str, hint: str, *, now: datetime | None = None) -> datetime | Literal["first", "last"]:
    """Return the place that an option names; a time without a zone is in UTC. `now` is for tests."""
    if text in _WORDS:
        return _WORDS[text]
    ago = ago_ms(text)
    try:
        if ago is not None:
            return (now or datetime.now(UTC)) - timedelta(milliseconds=ago)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not {PLACE_HELP}", param_hint=hint) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_place(text: str, hint: str) -> str:
    """Return the place that an option names, as the API takes it."""
    moment = parse_moment(text, hint)
    return moment if isinstance(moment, str) else moment.isoformat()
