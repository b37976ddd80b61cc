"""The command line of groups: create, consume, reset, dead letters."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from deltamq.mq.client.cli.group_consume import GroupOptions, consume_for_group
from deltamq.mq.client.cli.groups import parse_policy
from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.testing.queue import MemoryQueue
from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

# Groups --------------------------------------------------------------------------------------------------------


def test_groups_for_people(run: Run, stub: StubService) -> None:
    done = run("group", "create", "billing", "--max-attempts", "3", "--retry-policy", "100,200", "--order", "key")
    assert done.out == ("created billing: shared, from first, order key, 3 attempts, invisible for 60,000 ms, lag 0\n")
    assert run("group", "create", "billing", "--invisible-ms", "20000").out.startswith("have billing: shared")
    assert run("group", "list").out == "billing\n"
    stub.queue.fill("orders", 7)
    assert run("consume", "orders", "--group", "billing", "--max", "2").status == 0
    shown = run("group", "show", "billing").out.splitlines()
    assert shown[0].endswith("invisible for 20,000 ms, lag 5")
    assert shown[2].split()[:6] == ["orders", "orders@memory", "2", "7", "5", "0"]
    assert run("group", "delete", "billing").out == "deleted billing\n"
    assert run("group", "list").out == ""


def test_groups_for_machines(run: Run, stub: StubService) -> None:
    created = run("group", "create", "billing", "--retry-policy", '{"fixed_ms": 5}', "--json").json
    assert created["created"] is True
    assert created["group"]["retry_policy"] == {"fixed_ms": 5}
    assert run("group", "create", "billing", "--order", "partition", "--json").json["group"]["order"] is True
    assert run("group", "list", "--json").json == {"groups": ["billing"]}
    assert run("group", "show", "billing", "--json").json["max_attempts"] == 17
    stub.queue.fill("orders", 3)
    reset = run("group", "reset", "billing", "orders", "--to", "last", "--json").json
    assert reset == {"group": "billing", "topic": "orders", "offsets": {"orders@memory": 3}}
    assert run("group", "delete", "billing", "--json").json == {"deleted": "billing"}


def test_pop_18_a_reset_lets_a_group_go_on_elsewhere(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 4)
    assert len(run("consume", "orders", "--group", "billing").out.splitlines()) == 4
    done = run("group", "reset", "billing", "orders", "--offset", "orders@memory=1", "--yes")
    assert done.out == "billing goes on at orders@memory:1\n"
    assert len(run("consume", "orders", "--group", "billing").out.splitlines()) == 3
    assert run("group", "reset", "billing", "orders", "--to", "2026-01-01").status == 0
    assert stub.queue.calls_of("reset")[-1].request["to"] == "2026-01-01T00:00:00+00:00"
    assert len(run("consume", "orders", "--group", "billing").out.splitlines()) == 4


def test_an_unknown_group_is_told_with_what_to_do(run: Run) -> None:
    done = run("group", "show", "nobody")
    assert done.status == 1
    assert done.err.startswith("error: group_not_found: ")
    assert "deltamq group create" in done.err
    assert json.loads(run("group", "delete", "nobody", "--json").err)["error"]["code"] == "group_not_found"


def test_wrong_usage_of_groups_is_status_2(run: Run) -> None:
    assert run("group", "create", "billing", "--order", "sideways").status == 2
    assert run("group", "create", "billing", "--retry-policy", "soon").status == 2
    assert run("group", "create", "billing", "--consume-from", "yesterday").status == 2
    assert run("group", "reset", "billing", "orders").status == 2
    assert run("group", "reset", "billing", "orders", "--to", "yesterday").status == 2
    assert run("group", "reset", "billing", "orders", "--to", "first", "--offset", "a@b=1").status == 2
    assert run("group", "reset", "billing", "orders", "--offset", "a@b").status == 2
    assert run("dead-letters", "replay", "billing", "--at", "7").status == 2
    assert run("consume", "orders", "--group", "billing", "--from", "first").status == 2
    assert run("consume", "orders", "--order", "key").status == 2
    assert run("consume", "orders", "--invisible-ms", "5").status == 2


def test_a_retry_policy_is_read_from_text() -> None:
    assert parse_policy("1000, 5000") == [1000, 5000]
    assert parse_policy("[1, 2]") == [1, 2]
    assert parse_policy('{"exponential": {"initial_ms": 5}}') == {"exponential": {"initial_ms": 5}}


# Consume -------------------------------------------------------------------------------------------------------


def test_consume_for_a_group_prints_and_acknowledges(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 600, key="k", tag="T")
    rows = [line.split("\t") for line in run("consume", "orders", "--group", "billing").out.splitlines()]
    assert [row[3] for row in rows] == [str(n) for n in range(600)]
    assert rows[0] == ["orders@memory:0", "k", "T", "0"]
    assert stub.queue.is_done("billing", "orders")
    assert run("consume", "orders", "--group", "billing").out == ""
    assert len(run("consume", "orders", "--group", "audit").out.splitlines()) == 600


def test_consume_for_a_group_for_machines(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 2, headers={"h": "v"})
    first, second = run("consume", "orders", "--group", "billing", "--json").lines
    assert first["delivery_attempt"] == 1
    assert (first["body"], first["headers"], second["offset"]) == ("0", {"h": "v"}, 1)


def test_consume_for_a_group_some(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 9, tag=lambda n: "AB"[n % 2])
    assert len(run("consume", "orders", "--group", "billing", "--max", "3").out.splitlines()) == 3
    tagged = run("consume", "orders", "--group", "billing", "--tags", "A", "--json").lines
    assert {line["tag"] for line in tagged} == {"A"}
    assert stub.queue.is_done("billing", "orders")
    followed = run("consume", "orders", "--group", "other", "--follow", "--max", "9", "--order", "partition", "--json")
    assert [line["offset"] for line in followed.lines] == list(range(9))
    assert {call.request.get("order") for call in stub.queue.calls_of("pop")} == {None, True}


def test_consume_for_a_group_of_a_topic_that_is_not_there(run: Run) -> None:
    done = run("consume", "nowhere", "--group", "billing")
    assert done.status == 1
    assert done.err.startswith("error: topic_not_found: ")


def test_a_lost_pop_is_repeated_and_its_messages_come_again(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 5)
    stub.queue.faults["pop"].extend([QueueFault.DROP_AFTER])
    done = run("consume", "orders", "--group", "billing", "--invisible-ms", "300", "--follow", "--max", "5")
    assert sorted(line.split("\t")[3] for line in done.out.splitlines()) == [str(n) for n in range(5)]
    assert done.status == 0


@pytest.mark.promise("SDK-8")
def test_sigterm_ends_a_following_consumer_well(run: Run, stub: StubService) -> None:
    stub.queue.fill("orders", 3)

    def end() -> None:
        stub.queue.wait_for(lambda: stub.queue.pops_open == 1 and len(stub.queue.calls_of("pop")) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    ending = threading.Thread(target=end)
    ending.start()
    done = run("consume", "orders", "--group", "billing", "--follow")
    ending.join()
    assert done.status == 0
    assert len(done.out.splitlines()) == 3
    assert stub.queue.is_done("billing", "orders")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.promise("SDK-8")
def test_what_is_not_written_goes_back_to_the_group(
    run: Run, stub: StubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.queue.fill("orders", 3)

    class Interrupted(io.BytesIO):
        def write(self, lines: object) -> int:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(Interrupted()))
        assert run("consume", "orders", "--group", "billing").status == 130
    # At once, and not when the invisible time of a minute is over.
    again = run("consume", "orders", "--group", "billing", "--follow", "--max", "3", "--json").lines
    assert sorted(line["body"] for line in again) == ["0", "1", "2"]
    assert {line["delivery_attempt"] for line in again} == {2}


def test_lines_printed_too_late_are_told(run: Run, stub: StubService, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.queue.fill("orders", 1)

    class Slow(io.BytesIO):
        def write(self, lines: object) -> int:
            stub.queue.wait_for(lambda: stub.queue.look(is_expired))
            return 0

    def is_expired(twin: MemoryQueue) -> bool:
        return any(not state.open for state in twin.tables.states.values())

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Slow()))
    done = run("consume", "orders", "--group", "billing", "--invisible-ms", "100", "--max", "1")
    assert done.status == 0
    assert "1 messages were printed after their invisible time had ended" in done.err


# Dead letters --------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(stub: StubService) -> StubService:
    """Three dead letters of group billing."""
    stub.queue.fill("orders", 3, key="k")
    with stub.changed:
        stub.queue.twin.put_group("billing")
        for popped in stub.queue.twin.pop("billing", "orders"):
            stub.queue.twin.dead("billing", popped.handle, "no such customer")
    stub.queue.wait_for(lambda: len(stub.queue.look(lambda twin: twin.dead_letters("billing"))) == 3)
    return stub


def test_dead_letters_for_people(run: Run, dead: StubService) -> None:
    rows = [line.split("\t") for line in run("dead-letters", "list", "billing").out.splitlines()]
    assert rows[0] == ["%DLQ%billing@memory:0", "new", "1", "no such customer", "orders@memory:0", "k", "0"]
    assert len(rows) == 3
    assert len(run("dead-letters", "list", "billing", "--max", "2").out.splitlines()) == 2


def test_dead_letters_for_machines(run: Run, dead: StubService) -> None:
    first, *_ = run("dead-letters", "list", "billing", "--json").lines
    assert (first["reason"], first["attempts"], first["body"]) == ("no such customer", 1, "0")
    assert first["origin"] == {"topic": "orders", "partition": "orders@memory", "offset": 0}


def test_retry_03_dead_letters_are_sent_back(run: Run, dead: StubService) -> None:
    assert run("dead-letters", "replay", "billing", "--at", "%DLQ%billing@memory=1").out == "sent 1 dead letters back\n"
    assert [line["body"] for line in run("consume", "orders", "--group", "billing", "--json").lines] == ["1"]
    everything = run("dead-letters", "replay", "billing", "--json").json
    assert (everything["replayed"], everything["duplicates"]) == (2, 1)
    assert dead.queue.calls_of("replay")[-1].request == {"to": "origin"}


def test_retry_08_dead_letters_are_told_apart_counted_and_deleted(run: Run, dead: StubService) -> None:
    run("dead-letters", "replay", "billing", "--at", "%DLQ%billing@memory=1")
    rows = [line.split("\t") for line in run("dead-letters", "list", "billing").out.splitlines()]
    assert [row[1] for row in rows] == ["new", "sent_back", "new"]
    assert len(run("dead-letters", "list", "billing", "--state", "new", "--max", "2").out.splitlines()) == 2
    done = run("dead-letters", "delete", "billing", "--at", "%DLQ%billing@memory=0", "--at", "%DLQ%billing@memory=9")
    assert (done.status, done.out) == (1, "deleted 1 dead letters\n")
    assert done.err == "error: offset_out_of_range: %DLQ%billing@memory:9 was not deleted\n"
    assert run("dead-letters", "count", "billing", "--json").json["counts"] == [
        {"reason": "no such customer", "new": 1, "sent_back": 1, "deleted": 1}
    ]
    assert [line.split() for line in run("dead-letters", "count", "billing").out.splitlines()[-2:]] == [
        ["no", "such", "customer", "1", "1", "1"],
        ["all", "1", "1", "1"],
    ]
    # Of all groups that have some, in the short form.
    everywhere = run("dead-letters", "--group-by", "reason")
    assert [line.split() for line in everywhere.out.splitlines()[-2:]] == [
        ["billing", "no", "such", "customer", "1", "1", "1"],
        ["all", "1", "1", "1"],
    ]
    (counted,) = run("dead-letters", "--group-by", "topic", "--json").json
    assert (counted["group"], counted["new"]) == ("billing", 1)
    assert run("dead-letters", "count", "--reason", "another").out.split()[-4:] == ["all", "0", "0", "0"]
    assert "count those of all groups" in run("dead-letters", "--help").out
    assert run("dead-letters", "delete", "billing").status == 2
    assert run("dead-letters", "delete", "billing", "--all", "--reason", "x").status == 2
    done = run("dead-letters", "delete", "billing", "--all")
    assert done.out == "deleted 2 dead letters, 1 had been deleted before\n"
    assert run("dead-letters", "list", "billing").out == ""
    assert len(run("dead-letters", "list", "billing", "--state", "deleted", "--json").lines) == 3


def test_a_dead_letter_that_is_not_there_is_told(run: Run, dead: StubService) -> None:
    done = run("dead-letters", "replay", "billing", "--at", "%DLQ%billing@memory=0", "--at", "%DLQ%billing@memory=9")
    assert done.status == 1
    assert done.out == "sent 1 dead letters back\n"
    assert done.err == "error: offset_out_of_range: %DLQ%billing@memory:9 was not sent back\n"
    done = run("dead-letters", "replay", "billing", "--at", "%DLQ%billing@memory=9", "--json")
    assert (done.json["failed_total"], json.loads(done.err)["error"]["code"]) == (1, "offset_out_of_range")


# Several processes ---------------------------------------------------------------------------------------------


@pytest.fixture
def beside(stub: StubService) -> Iterator[StubService]:
    """Another process, which has messages of its own."""
    with StubService() as other:
        stub.create("orders", 2)
        other.topics = stub.topics
        stub.hosted = other.hosted = {"broker-a": stub, "broker-b": other}
        stub.queue.fill("orders", 3)
        other.queue.fill("orders", 2, tag="other")
        yield other


def test_consume_for_a_group_takes_messages_at_all_processes(run: Run, stub: StubService, beside: StubService) -> None:
    done = run("consume", "orders", "--group", "billing")
    assert sorted(line.split("\t")[2] for line in done.out.splitlines()) == ["", "", "", "other", "other"]
    followed = run("consume", "orders", "--group", "audit", "--follow", "--max", "5")
    assert len(followed.out.splitlines()) == 5


def test_pop_01_consume_for_a_group_takes_messages_of_a_process_that_gets_partitions_meanwhile(
    stub: StubService, beside: StubService, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Turns that bring messages must not put off the look at where the topic is."""
    stub.create("orders", 1)
    stub.queue.fill("orders", 400, start=3)
    at: set[str | None] = set()

    def line(message: ReceivedMessage) -> bytes:
        if not at:
            stub.expand("orders", 2)
        at.add(message.tag)
        return b"."

    options = GroupOptions(
        topic="orders",
        partition=None,
        max_messages=None,
        follow=False,
        tags="*",
        filter=None,
        order=None,
        invisible_ms=None,
    )
    consume_for_group(stub.url, "billing", options, line, {}, hosts_age_s=0.0)
    sys.stdout.flush()
    assert (capsysbinary.readouterr().out, at) == (b"." * 405, {None, "other"})


def test_consume_for_a_group_keeps_no_connection_to_a_process_that_has_gone(
    run: Run, stub: StubService, beside: StubService
) -> None:
    stub.queue.fill("orders", 400, start=3)
    counts: list[int] = []

    def leave() -> None:
        beside.queue.wait_for(lambda: bool(beside.queue.calls_of("pop")))
        stub.hosted = {"broker-a": stub, "broker-b": stub}
        # The command looks again after a turn without messages.
        beside.queue.wait_for(lambda: not beside.connections)
        counts.append(len(stub.connections))
        stub.queue.fill("orders", 1, start=403)

    leaving = threading.Thread(target=leave)
    leaving.start()
    done = run("consume", "orders", "--group", "billing", "--follow", "--max", "406")
    leaving.join()
    assert (done.status, len(done.out.splitlines())) == (0, 406)
    assert len(counts) == 1 and counts[0] > 0, "its connections were closed while it ran"


def test_consume_for_a_group_goes_on_when_a_process_goes_away(run: Run, stub: StubService, beside: StubService) -> None:
    beside.away = True
    done = run("consume", "orders", "--group", "billing")
    assert (done.status, len(done.out.splitlines())) == (0, 3)
    assert beside.away_calls > 0
