"""Places in a log as the command line takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from deltamq.mq.client.cli.groups import parse_moment, parse_place

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("first", "first"),
        ("earliest", "first"),
        ("latest", "last"),
        ("-90m", NOW - timedelta(minutes=90)),
        ("-7d", NOW - timedelta(days=7)),
        ("2026-01-01T12:00:00", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2026-01-01T12:00:00+02:00", datetime(2026, 1, 1, 10, tzinfo=UTC)),
    ],
)
def test_a_place_is_a_word_a_time_or_a_time_ago(text: str, moment: object) -> None:
    assert parse_moment(text, "--to", now=NOW) == moment


@pytest.mark.parametrize("text", ["", "-h", "-1", "1h", "-1w", "-0h", "-999999d", "-٣h", "yesterday", "-1.5h"])
def test_any_other_text_names_the_option_and_what_it_takes(text: str) -> None:
    with pytest.raises(click.BadParameter, match="first, last, -1h") as refused:
        parse_moment(text, "--to", now=NOW)
    assert refused.value.param_hint == "--to"


def test_the_api_gets_words_and_times() -> None:
    assert parse_place("latest", "--to") == "last"
    assert datetime.fromisoformat(parse_place("-1h", "--to")) < datetime.now(UTC)
