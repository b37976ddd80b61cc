"""`deltamq consume` without a group, and for a broadcast group: how far it reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deltamq.mq.client.cli.consume import polls
from deltamq.mq.client.messages.received import ReceivedMessage
from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_service import StubService

OLD, NEW = "orders@broker-a", "orders@broker-b"


class Growing:
    """A consumer of a topic that gets messages, and a partition, after the command has begun."""

    def __init__(self) -> None:
        self._next = {OLD: 0, NEW: 0}
        self._found = [(OLD, 3), (NEW, 4), (OLD, 7)]

    def end_offsets(self) -> Mapping[str, int]:
        return {OLD: 10}

    def position(self, partition: str) -> int:
        return self._next[partition]

    def poll(self, max_messages: int, wait_ms: int) -> list[ReceivedMessage]:
        partition, count = self._found.pop(0)
        first = self._next[partition]
        self._next[partition] = first + min(count, max_messages)
        return [ReceivedMessage(partition, offset, b"") for offset in range(first, self._next[partition])]


def test_messages_that_came_later_do_not_count_against_max() -> None:
    shown = [message for found in polls(Growing(), follow=False, max_messages=8) for message in found]
    assert [(message.partition, message.offset) for message in shown] == [(OLD, offset) for offset in range(8)]


def test_it_ends_at_the_offsets_that_were_the_ends_when_it_began() -> None:
    shown = [message for found in polls(Growing(), follow=False, max_messages=None) for message in found]
    assert [(message.partition, message.offset) for message in shown] == [(OLD, offset) for offset in range(10)]


class Produced(list[str]):
    """The paths that a stub was asked for; with the first fetch, messages come that were not there before."""

    def __init__(self, log: list[dict[str, object]]) -> None:
        super().__init__()
        self._log = log

    def append(self, path: str) -> None:
        if "/partitions/" in path and len(self._log) == 3:
            self._log += [{"offset": at, "body": b"%d" % at} for at in range(3, 7)]
        super().append(path)


def test_cons_07_a_broadcast_client_commits_nothing_that_it_did_not_print(run: Run, stub: StubService) -> None:
    """Without --follow it stops at the ends of its beginning, but what came later may be polled with the last of it."""
    log = stub.create("orders", 1).log(OLD)
    log += [{"offset": at, "body": b"%d" % at} for at in range(3)]
    stub.queue.twin.create_topic("orders")
    stub.queue.twin.put_group("caches", consume_strategy="broadcast")
    stub.gets = Produced(log)
    done = run("consume", "orders", "--group", "caches", "--client-id", "web-1")
    assert (done.status, len(log)) == (0, 7)
    assert [line.split("\t")[0] for line in done.out.splitlines()] == [f"{OLD}:{offset}" for offset in range(7)]
    commits = [call.request["offsets"][OLD] for call in stub.queue.calls_of("PUT") if call.group == "caches@web-1"]
    assert commits == sorted(commits) and commits[-1] == 7, "a slow machine commits in between, too"


def test_what_a_message_holds_is_one_line_that_a_terminal_does_not_obey(run: Run, stub: StubService) -> None:
    log = stub.create("orders", 1).log(OLD)
    log += [{"offset": 0, "key": "a\tb", "tag": "t", "body": "\x1b[2J\nnext\r\u202eabc\u0085 ok \\n é".encode()}]
    done = run("consume", "orders")
    assert done.status == 0
    assert done.out == f"{OLD}:0\ta\\tb\tt\t\\x1b[2J\\nnext\\r\\u202eabc\\x85 ok \\n é\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
def test_a_full_disk_is_one_line(stub: StubService) -> None:
    stub.create("orders", 1).log(OLD).append({"offset": 0, "body": b"x"})
    for command in (["consume", "orders"], ["topic", "list"], ["topic", "list", "--json"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "deltamq.mq.client.cli", *command, "--url", stub.url],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert (done.returncode, done.stderr) == (1, "error: No space left on device\n"), command
