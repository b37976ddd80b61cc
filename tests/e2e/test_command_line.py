"""The installed command line against the real service, as processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import COMMANDS
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.produce.producer import Producer
from tests.e2e.service_process import DELTAMQ, ServiceProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(shared_service: ServiceProcess) -> Run:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [*DELTAMQ, *arguments, "--url", shared_service.url]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.long
def test_from_topic_to_topic(run: Run, topic: str) -> None:
    assert run("topic", "create", topic, "--partitions", "4").returncode == 0
    lines = "".join(json.dumps({"body": f"{n}", "key": f"k{n % 7}", "tag": "AB"[n % 2]}) + "\n" for n in range(5_000))
    produced = run("produce", topic, stdin=lines)
    assert produced.returncode == 0, produced.stderr
    assert produced.stdout.startswith(f"sent 5,000 messages to {topic}\n")
    assert produced.stderr == ""
    consumed = [json.loads(line) for line in run("consume", topic, "--json").stdout.splitlines()]
    assert sorted(int(message["body"]) for message in consumed) == list(range(5_000))
    by_key: dict[str, list[int]] = {}
    for message in sorted(consumed, key=lambda m: (m["partition"], m["offset"])):
        by_key.setdefault(message["key"], []).append(int(message["body"]))
    assert by_key == {f"k{k}": list(range(k, 5_000, 7)) for k in range(7)}
    assert len(run("consume", topic, "--tags", "A").stdout.splitlines()) == 2_500
    shown = json.loads(run("topic", "show", topic, "--json").stdout)
    assert sum(partition["messages"] for partition in shown["partitions"]) == 5_000
    assert run("topic", "delete", topic).returncode == 0
    assert topic not in run("topic", "list").stdout


def test_retry_08_dead_letters_tell_what_became_of_them_also_after_a_crash(service: ServiceProcess) -> None:
    def run(*arguments: str) -> str:
        command = [*DELTAMQ, "dead-letters", *arguments, "--url", service.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    with Admin(service.url) as admin, Producer(service.url) as producer, PopClient(service.url, "billing") as client:
        admin.create_topic("orders", partitions=1)
        admin.create_group("billing", order=True)
        producer.send_batch("orders", [Message(body) for body in ("a", "b", "c")])
        assert client.dead([one.handle for one in client.pop("orders").messages], "no such customer") == []
        (place,) = {one.partition for one in admin.dead_letters("billing").messages}
        assert run("replay", "billing", "--at", f"{place}=0") == "sent 1 dead letters back\n"
        assert run("delete", "billing", "--at", f"{place}=1") == "deleted 1 dead letters\n"
        service.kill()
        service.start()
        assert [line.split("\t")[:2] for line in run("list", "billing").splitlines()] == [
            [f"{place}:0", "sent_back"],
            [f"{place}:2", "new"],
        ]
        assert run("replay", "billing") == "sent 1 dead letters back, 1 had been sent before\n"
        assert [message.body for message in client.pop("orders").messages] == [b"a", b"c"]


@pytest.mark.long
def test_cons_07_clients_of_a_broadcast_group_each_print_everything_once(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "1")
    run("produce", topic, stdin="".join(json.dumps({"body": f"{n}"}) + "\n" for n in range(4)))
    assert run("group", "create", topic, "--strategy", "broadcast").returncode == 0

    def consume(*options: str) -> list[str]:
        done = run("consume", topic, "--group", topic, *options)
        assert done.returncode == 0, done.stderr
        return [line.split("\t")[-1] for line in done.stdout.splitlines()]

    assert consume("--client-id", "one", "--max", "3") == ["0", "1", "2"]
    assert consume("--client-id", "two") == ["0", "1", "2", "3"]
    assert consume("--client-id", "one") == ["3"]
    shown = run("group", "show", topic).stdout
    assert "broadcast" in shown and "one" in shown and "two" in shown
    refused = run("consume", topic, "--group", topic, "--order", "key")
    assert refused.returncode == 2 and "--order" in refused.stderr


def test_a_failing_line_is_named_and_the_status_is_not_0(run: Run, topic: str) -> None:
    done = run("produce", topic, stdin='{"body":"1"}\n{"body":\n')
    assert done.returncode == 1
    assert "line 2" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run("consume", topic).stdout.endswith("\t1\n")


def test_produce_sends_a_line_as_soon_as_it_is_there(shared_service: ServiceProcess, run: Run, topic: str) -> None:
    run("topic", "create", topic)
    command = [*DELTAMQ, "produce", topic, "--url", shared_service.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write('{"body":"first"}\n')
        process.stdin.flush()
        assert run("consume", topic, "--follow", "--max", "1").stdout.endswith("first\n")
        out, _ = process.communicate('{"body":"second"}\n', timeout=30)
    assert process.returncode == 0
    assert out.startswith("sent 2 messages")


@pytest.mark.long
def test_a_reader_that_goes_away_is_no_error(shared_service: ServiceProcess, run: Run, topic: str) -> None:
    run("produce", topic, stdin="".join(f'{{"body":"{n}"}}\n' for n in range(20_000)))
    deltamq = " ".join(DELTAMQ)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{deltamq} consume {topic} --url {shared_service.url} | head -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_finds_the_service_in_order(run: Run) -> None:
    checks = json.loads(run("doctor", "--json").stdout)["checks"]
    (service,) = [check for check in checks if check["name"] == "service"]
    assert service["health"] == "ok"


def test_help_imports_nothing_large_and_lists_the_other_layers_commands() -> None:
    """It is there at once: about 0.2 s on a machine that has nothing else to do."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([*DELTAMQ, "--help"], capture_output=True, text=True, check=True, env=environment)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    large = {"api", "asyncio", "fastapi", "jobs", "numpy", "pandas", "pyarrow", "pyspark", "rich", "tables", "urllib3"}
    assert not imported & large
    assert "serve " in done.stdout, f"is the project installed? the entry points {COMMANDS} are missing"
    assert "jobs " in done.stdout
