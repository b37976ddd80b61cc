"""`deltamq outbox relay`, `show` and `send-again` (SEND-7)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.outbox_database import OutboxDatabase, sqlite_database
from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_service import StubService


@pytest.fixture
def database(tmp_path: Path) -> OutboxDatabase:
    return sqlite_database(tmp_path)


def arguments(database: OutboxDatabase) -> tuple[str, ...]:
    return ("--database", database.url, "--table", database.table)


def test_send_07_relay_once_sends_what_is_there(run: Run, stub: StubService, database: OutboxDatabase) -> None:
    stub.create("orders", 1)
    database.put("1", "2", key="k")
    done = run("outbox", "relay", *arguments(database), "--once")
    assert (done.status, done.out) == (0, "sent 2 messages; 0 set aside\n")
    assert stub.bodies("orders") == [b"1", b"2"]
    database.put("3", key="k")
    done = run("outbox", "relay", *arguments(database), "--once", "--json")
    assert (done.json["sent"], done.json["duplicates"], done.json["requests"]) == (1, 0, 1)


def test_send_07_messages_that_cannot_be_sent_are_reported_shown_and_sent_again(
    run: Run, stub: StubService, database: OutboxDatabase
) -> None:
    stub.auto_create = False
    database.put("1", "2", key="k")
    done = run("outbox", "relay", *arguments(database), "--once")
    assert (done.status, done.out) == (1, "sent 0 messages; 2 set aside\n")
    assert "topic_not_found: 2 messages for orders were set aside" in done.err
    shown = run("outbox", "show", *arguments(database))
    assert "0 messages wait, 2 were set aside" in shown.out
    assert "topic_not_found" in shown.out
    state = run("outbox", "show", *arguments(database), "--json").json
    assert (state["waiting"], state["set_aside"]) == (0, 2)
    assert [(one["topic"], one["key"], one["code"]) for one in state["messages"]] == [
        ("orders", "k", "topic_not_found")
    ] * 2
    ids = [str(one["id"]) for one in state["messages"]]
    assert run("outbox", "send-again", *arguments(database), *ids).out == "2 messages are sent again\n"
    assert run("outbox", "send-again", *arguments(database), ids[0], "--json").json == {"again": 0}
    stub.create("orders", 1)
    assert run("outbox", "relay", *arguments(database), "--once").status == 0
    assert stub.bodies("orders") == [b"1", b"2"]


def test_show_names_what_waits_and_fails(run: Run, stub: StubService, database: OutboxDatabase) -> None:
    database.put("1", key="k")
    assert "1 messages wait, 0 were set aside" in run("outbox", "show", *arguments(database)).out
    database.change(
        f"INSERT INTO {database.table}_lanes VALUES ('orders/01', 'p', 0, '[1]', 0, '', 0, 3, 1000, 'unavailable', 'x')"
    )
    shown = run("outbox", "show", *arguments(database)).out
    assert "orders/01" in shown
    assert "1970-01-01T00:00:01+00:00" in shown


def test_a_database_that_cannot_be_used_is_named_with_a_remedy(
    run: Run, stub: StubService, database: OutboxDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("outbox", "show", "--database", f"sqlite:///{tmp_path}/other.db")
    assert (done.status, "database_not_found" in done.err) == (1, True)
    done = run("outbox", "show", "--database", database.url, "--table", "other")
    assert done.status == 1
    assert "outbox_not_found" in done.err and "Outbox(table=...).create" in done.err
    done = run("outbox", "relay", "--database", database.url, "--table", "other", "--once")
    assert (done.status, "outbox_not_found" in done.err) == (1, True)
    # As on a machine without the driver: Python then raises ImportError.
    monkeypatch.setitem(sys.modules, "psycopg", None)
    done = run("outbox", "show", "--database", "postgresql://host/name")
    assert done.status == 1
    assert "driver_missing" in done.err and "pip install 'deltamq[postgres]'" in done.err


def test_the_help_of_the_commands_loads_no_database_driver(run: Run) -> None:
    assert "relay" in run("outbox", "--help").out
    assert "--database" in run("outbox", "relay", "--help").out
