"""The command line: what people and machines see, and exit statuses."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest

from deltamq.mq.client.cli import console
from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.cli.consume import parse_start
from deltamq.mq.client.cli.produce import _send_all, _Tally, decode_line
from deltamq.mq.client.messages.message import Message, Sent
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import DeltaMQError, Overloaded, Refused, Unauthenticated, Unavailable, Unknown
from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault


def test_help_lists_the_commands(run: Run) -> None:
    done = run("--help")
    assert done.status == 0
    for name in ("consume", "dead-letters", "doctor", "group", "produce", "topic"):
        assert f"  {name}" in done.out


@pytest.mark.parametrize("command", ["topic", "produce", "consume", "doctor", "group", "dead-letters"])
def test_each_command_has_help(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.status == 0
    assert "Usage: deltamq" in done.out


def test_every_leaf_command_takes_url_and_json() -> None:
    context = click.Context(cli.cli)
    leaves: list[click.Command] = []
    for name in ("topic", "produce", "consume", "doctor", "group", "dead-letters"):
        command = cli.cli.get_command(context, name)
        assert command is not None
        leaves += command.commands.values() if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        options = {option for parameter in leaf.params for option in parameter.opts}
        assert {"--url", "--json"} <= options, leaf.name


def test_wrong_usage_is_status_2(run: Run) -> None:
    assert run("nonsense").status == 2
    assert run("topic", "create").status == 2
    assert run("consume", "orders", "--max", "0").status == 2
    assert run("consume", "orders", "--from", "yesterday").status == 2


def test_the_version_is_shown(run: Run) -> None:
    assert run("--version").out.startswith("deltamq ")


# Topics --------------------------------------------------------------------------------------------------------


def test_topics_for_people(run: Run) -> None:
    assert run("topic", "create", "orders", "--partitions", "4").out == (
        "created orders: orders@broker-a, orders@broker-b, orders#1@broker-a, orders#2@broker-b\n"
    )
    assert run("topic", "create", "orders").out.startswith("have orders:")
    assert run("topic", "list").out == "orders\n"
    shown = run("topic", "show", "orders").out
    assert "orders: 0 messages, 4 partitions" in shown
    assert "orders#2@broker-b" in shown
    assert "[768,1024)" in shown
    assert run("topic", "delete", "orders").out == "deleted orders\n"


def test_topics_for_machines(run: Run) -> None:
    created = run("topic", "create", "orders", "--json").json
    assert created["created"] is True
    assert created["topic"]["partitions"][0]["partition"] == "orders@broker-a"
    assert run("topic", "create", "orders", "--json").json["created"] is False
    assert run("topic", "list", "--json").json == {"topics": ["orders"]}
    assert run("topic", "show", "orders", "--json").json["topic"] == "orders"
    assert run("topic", "delete", "orders", "--json").json == {"deleted": "orders"}


def test_an_error_is_one_line_with_code_and_remedy(run: Run) -> None:
    done = run("topic", "show", "nowhere")
    assert done.status == 1
    assert done.out == ""
    assert done.err.startswith("error: topic_not_found: ")
    assert "deltamq topic create" in done.err
    assert done.err.count("\n") == 1
    error = json.loads(run("topic", "show", "nowhere", "--json").err)["error"]
    assert error["code"] == "topic_not_found"


def test_a_service_that_is_not_there_is_told_with_what_to_do(run: Run) -> None:
    done = run("topic", "list", "--url", "http://127.0.0.1:1")
    assert done.status == 1
    assert "connect_failed" in done.err
    assert "deltamq serve" in done.err


def test_an_error_of_every_kind_has_a_line() -> None:
    assert "--token" in console.error_line(Unauthenticated("no"))
    assert "try again" in console.error_line(Overloaded("full"))
    assert "check before" in console.error_line(Unknown("lost"))
    assert console.error_line(Refused("bad")) == "error: invalid_request: bad"


# Produce -------------------------------------------------------------------------------------------------------

LINES = b'{"body":"a","key":"k","headers":{"h":"v"}}\n\n{"body_base64":"/wA=","tag":"T"}\n{"body":"c"}'


def test_produce_sends_each_line_of_stdin(run: Run, stub: StubService) -> None:
    stub.create("orders", 1)
    done = run("produce", "orders", stdin=LINES)
    assert done.status == 0
    assert done.out == "sent 3 messages to orders\n  orders@broker-a: 3 in offsets 0..2\n"
    assert stub.bodies("orders") == [b"a", b"\xff\x00", b"c"]
    first, second, _ = stub.topics["orders"].log("orders@broker-a")
    assert (first["key"], first["headers"], second["tag"]) == ("k", {"h": "v"}, "T")


def test_produce_sends_a_file(run: Run, stub: StubService, tmp_path: Path) -> None:
    stub.create("orders", 1)
    (tmp_path / "in.ndjson").write_bytes(b"".join(b'{"body":"%d"}\n' % n for n in range(5_000)))
    done = run("produce", "orders", str(tmp_path / "in.ndjson"), "--json")
    assert done.json == {
        "topic": "orders",
        "sent": 5_000,
        "partitions": {"orders@broker-a": {"first_offset": 0, "last_offset": 4_999, "count": 5_000}},
    }
    assert stub.bodies("orders") == [b"%d" % n for n in range(5_000)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"body":"x","colour":"red"}', "invalid_json"),
        (b'{"body":1}', "invalid_json"),
        (b'{"body":"\xff"}', "invalid_json"),
        (b'{"body_base64":"!"}', "invalid_json"),
        (b'{"key":"k"}', "invalid_body"),
        (b'{"body":"x","body_base64":"eA=="}', "invalid_body"),
        (b'{"body":"x","partition":"orders@nowhere"}', "partition_not_found"),
        (b'{"body":"x","tag":"' + b"t" * 200 + b'"}', "message_too_large"),
    ],
)
def test_produce_stops_at_a_bad_line_and_names_it(run: Run, stub: StubService, line: bytes, code: str) -> None:
    stub.create("orders", 1)
    done = run("produce", "orders", stdin=b'{"body":"1"}\n{"body":"2"}\n' + line + b'\n{"body":"4"}\n')
    assert done.status == 1
    assert done.err.startswith(f"error: {code}: line 3: ")
    assert "[2 messages were stored]" in done.err
    assert stub.bodies("orders") == [b"1", b"2"]


def test_produce_names_the_line_that_the_service_refuses(run: Run, stub: StubService) -> None:
    stub.create("orders", 1)
    stub.refuses = lambda message: message["body"] == b"2"
    done = run("produce", "orders", "--json", stdin=b'{"body":"1"}\n{"body":"2"}\n')
    error = json.loads(done.err)["error"]
    assert (done.status, error["code"], error["line"], error["sent"]) == (1, "invalid_value", 2, 1)


class Failing:
    """A producer whose sends fail when the test says so, or in the moment in which the last of `lines` begins."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._futures: list[SendFuture[Sent]] = []

    def send_soon(self, topic: str, message: Message) -> SendFuture[Sent]:
        self._futures.append(SendFuture())
        if len(self._futures) == self._lines:
            self.fail()
        return self._futures[-1]

    def fail(self) -> None:
        for future in self._futures:
            future.set_exception(Unavailable("away"))


def test_produce_names_the_first_of_several_lines_that_failed() -> None:
    producer: Any = Failing(3)
    lines = io.BytesIO(b'\n{"body":"1"}\n{"body":"2"}\n{"body":"3"}\n')
    with pytest.raises(DeltaMQError) as failed:
        _send_all(producer, "orders", lines, _Tally())
    assert (failed.value.code, failed.value.detail) == ("unavailable", "line 2: away")


def test_produce_names_a_line_that_failed_before_one_that_is_no_message() -> None:
    producer: Any = Failing(3)

    class Lines(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            if line == b"{":
                producer.fail()
            return line

    with pytest.raises(DeltaMQError) as failed:
        _send_all(producer, "orders", Lines(b'{"body":"1"}\n{"body":"2"}\n{'), _Tally())
    assert (failed.value.code, failed.value.detail) == ("unavailable", "line 1: away")


def test_produce_without_an_answer_is_an_unknown_outcome(run: Run, stub: StubService) -> None:
    stub.create("orders", 1)
    stub.faults.extend([Fault.DROP_AFTER] * 100)
    done = run("produce", "orders", "--timeout-s", "0.3", stdin=b'{"body":"1"}\n')
    assert done.status == 3
    assert "check before repeating it" in done.err


def test_a_line_is_decoded_with_its_time() -> None:
    message = decode_line(b'{"body":"x","born_time":"2013-01-01T05:15:00Z","message_id":"m","partition":"t@a"}')
    assert message.born_time == datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    assert (message.message_id, message.partition) == ("m", "t@a")


# Consume -------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(run: Run, stub: StubService) -> StubService:
    stub.create("orders", 2)
    lines = [b'{"body":"%d","key":"k%d","tag":"%s"}' % (n, n, b"AB"[n % 2 : n % 2 + 1]) for n in range(20)]
    assert run("produce", "orders", stdin=b"\n".join([*lines, b'{"body_base64":"/w==","key":"k0"}'])).status == 0
    return stub


def test_consume_prints_everything_up_to_the_present_end(run: Run, filled: StubService) -> None:
    rows = [line.split("\t") for line in run("consume", "orders").out.splitlines()]
    assert len(rows) == 21
    assert sorted(row[3] for row in rows) == sorted([*(str(n) for n in range(20)), "\\xff"])
    for place, key, _, body in rows:
        partition, _, offset = place.rpartition(":")
        stored = filled.topics["orders"].log(partition)[int(offset)]
        assert (stored["key"], stored["body"].decode("utf-8", "backslashreplace")) == (key, body)


def test_consume_for_machines(run: Run, filled: StubService) -> None:
    lines = run("consume", "orders", "--json").lines
    assert len(lines) == 21
    assert {"partition", "offset", "body", "key", "tag", "born_time", "append_time"} <= set(lines[0])
    assert [line["body_base64"] for line in lines if "body_base64" in line] == ["/w=="]


def test_cons_03_consume_filters_by_tag(run: Run, filled: StubService) -> None:
    assert {line["tag"] for line in run("consume", "orders", "--json", "--tags", "A").lines} == {"A"}


def test_cons_09_consume_filters_by_a_condition(run: Run, filled: StubService) -> None:
    found = run("consume", "orders", "--json", "--filter", "tag LIKE '_' AND tag <> 'B'").lines
    assert found and {line["tag"] for line in found} == {"A"}


def test_consume_some(run: Run, filled: StubService) -> None:
    one = run("consume", "orders", "--json", "--partition", "orders@broker-b").lines
    assert {line["partition"] for line in one} == {"orders@broker-b"}
    assert len(run("consume", "orders", "--max", "3").out.splitlines()) == 3
    assert run("consume", "orders", "--from", "last").out == ""
    assert run("consume", "orders", "--json", "--from", "2").lines[0]["offset"] == 2
    assert len(run("consume", "orders", "--from", "2013-01-01").out.splitlines()) == 21
    assert len(run("consume", "orders", "--follow", "--max", "21").out.splitlines()) == 21


def test_consume_with_an_offset_that_is_not_there(run: Run, filled: StubService) -> None:
    filled.topics["orders"].min_offsets = {"orders@broker-a": 3, "orders@broker-b": 3}
    done = run("consume", "orders", "--from", "1")
    assert done.status == 1
    assert done.err.startswith("error: offset_too_small: ")
    assert "--from first" in done.err


def test_a_start_is_read_from_text() -> None:
    assert (parse_start("first"), parse_start("last"), parse_start("17")) == ("first", "last", 17)
    assert parse_start("2013-01-01T05:15:00+01:00") == datetime(2013, 1, 1, 4, 15, tzinfo=UTC)
    assert parse_start("2013-01-01") == datetime(2013, 1, 1, tzinfo=UTC)


# Doctor --------------------------------------------------------------------------------------------------------


def test_the_doctor_tells_the_service(run: Run, stub: StubService) -> None:
    checks = run("doctor", "--json").json["checks"]
    assert checks[-1]["name"] == "service"
    assert checks[-1]["health"] == "ok"
    assert "service: " in run("doctor").out


def test_the_doctor_fails_when_something_does_not_work(run: Run) -> None:
    done = run("doctor", "--url", "http://127.0.0.1:1")
    assert done.status == 1
    assert "FAILED  service" in done.out
    assert "-> start it" in done.out
    assert run("doctor", "--url", "http://127.0.0.1:1", "--json").json["ok"] is False


@pytest.mark.parametrize(
    "command", [("topic", "show", "orders"), ("group", "show", "g"), ("consume", "orders", "--group", "g")]
)
def test_retry_7_commands_say_on_stderr_that_a_job_runs_nowhere(
    run: Run, stub: StubService, command: tuple[str, ...]
) -> None:
    stub.create("orders", 1)
    stub.queue.twin.create_topic("orders")
    stub.queue.twin.put_group("g")
    assert "warning" not in run(*command).err
    stub.missing_jobs = [{"job": name, "ok_at": None, "means": f"no {name}"} for name in ("delay", "revive")]
    done = run(*command)
    assert done.status == 0
    assert "warning: no job delay and revive run on /w: no delay, and no revive. Start `deltamq jobs run" in done.err


@pytest.mark.parametrize(("command", "extra"), [("serve", "service"), ("jobs", "spark")])
def test_a_command_whose_packages_are_not_installed_names_the_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, extra: str
) -> None:
    def load(point: EntryPoint) -> object:
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")

    monkeypatch.setattr(EntryPoint, "load", load)
    done = run(command)
    assert done.status == 1
    assert done.err == f"Error: `deltamq {command}` needs the package obstore: pip install 'deltamq[{extra}]'\n"
