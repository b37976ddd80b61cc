"""`deltamq consume` without a group, and for a broadcast group: how far it reads."""

from __future__ import annotations

from collections.abc import Mapping

from mq.client.cli.consume import polls
from mq.client.messages import ReceivedMessage
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
    commits = [call for call in stub.queue.calls_of("PUT") if call.group == "caches@web-1"]
    assert [call.request["offsets"] for call in commits] == [{OLD: 7}]
