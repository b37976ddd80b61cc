"""`deltamq backup` beside a service and jobs that work, and what runs on the warehouse that is restored."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deltamq import Admin, Message, PopConsumer, Producer, PullConsumer, Result
from deltamq.mq.client.cli.root import cli
from deltamq.mq.errors import DeltaMQError
from tests.api.running import until
from tests.e2e.up_process import Up

#: Messages whose number is a multiple fail at their first delivery.
FAILS = 7
SENT_BEFORE = 400


def backup(*arguments: object) -> Any:
    """Run `deltamq backup`, which must succeed; return its JSON if it prints any."""
    result = CliRunner().invoke(cli, ["backup", *map(str, arguments)], standalone_mode=False)
    assert result.return_value in (None, 0), result.output
    assert result.exception is None, result.exception
    return json.loads(result.stdout) if "--json" in arguments else result.output


class Load:
    """Producers and a group that are at work until `stop`; `sent` and `done` are what was acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopped = threading.Event()
        self.sent: list[tuple[str, int, str]] = []
        self.done: set[str] = set()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._make_topics)]
        for thread in self._threads:
            thread.start()
        self._consumer = PopConsumer(url, "billing", "orders", self._handle, concurrency=4, invisible_ms=2_000)
        self._consumer.start()

    def _send(self) -> None:
        number = 0
        # The process is killed at the end.
        with contextlib.suppress(DeltaMQError), Producer(self._url, timeout_s=2.0) as producer:
            while not self._stopped.is_set():
                bodies = [str(at) for at in range(number, number + 10)]
                later = {"delay_ms": 1_500} if number % 50 == 0 else {}
                sent = producer.send_batch("orders", [Message(body.encode(), key=body, **later) for body in bodies])
                if not later:
                    self.sent += [(one.partition, one.offset, body) for one, body in zip(sent, bodies, strict=True)]
                number += 10

    def _make_topics(self) -> None:
        """Topics that come while the backup is made: it is made again until it has them all, or none of them."""
        with contextlib.suppress(DeltaMQError), Producer(self._url, timeout_s=2.0) as producer:
            for number in range(20):
                producer.send(f"topic-{number}", "x")
                if self._stopped.wait(0.2):
                    return

    def _handle(self, message: Any) -> Result:
        if int(message.text) % FAILS == 0 and message.delivery_attempt == 1:
            return Result.RETRY
        self.done.add(message.text)
        return Result.OK

    def stop(self) -> None:
        self._stopped.set()
        self._consumer.close(timeout_s=0.1)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "w", "--port", "0")
    yield made
    made.close()


@pytest.mark.long
def test_rely_12_13_what_was_acknowledged_before_a_backup_is_there_after_kill_and_restore(
    up: Up, tmp_path: Path
) -> None:
    load = Load(up.url)
    until(lambda: len(load.sent) >= SENT_BEFORE and len(load.done) >= SENT_BEFORE // 2)
    first = backup("create", tmp_path / "kept", "--warehouse", tmp_path / "w", "--json")
    sent = list(load.sent)
    second = backup("create", tmp_path / "kept", "--warehouse", tmp_path / "w", "--json")
    done = set(load.done)
    up.kill()
    load.stop()
    assert first["damaged"] == second["damaged"] == {}
    assert second["messages"] > first["messages"] > SENT_BEFORE
    assert "0 damages found" in backup("verify", tmp_path / "kept")

    backup("restore", tmp_path / "kept", "--to", tmp_path / "restored")
    checked = CliRunner().invoke(cli, ["verify", "--warehouse", str(tmp_path / "restored")], standalone_mode=False)
    assert checked.return_value == 0, checked.output
    again = Up(tmp_path / "restored", "--port", "0")
    try:
        assert stored(again.url) >= set(sent)
        came: set[str] = set()

        def handle(message: Any) -> None:
            came.add(message.text)

        with PopConsumer(again.url, "billing", "orders", handle, concurrency=4) as consumer:
            thread = threading.Thread(target=consumer.run)
            thread.start()
            # What the group had done before the backup may come again; all the rest must come.
            missing = {body for _, _, body in stored(again.url)} - done
            until(lambda: missing <= came and lag(again.url) == 0)
            consumer.stop()
            thread.join()
    finally:
        again.close()


def stored(url: str) -> set[tuple[str, int, str]]:
    """Return what the topic has."""
    found: set[tuple[str, int, str]] = set()
    with PullConsumer(url, "orders") as consumer:
        ends = consumer.end_offsets()
        while any(consumer.position(name) < end for name, end in ends.items()):
            found |= {(one.partition, one.offset, one.text) for one in consumer.poll(10_000, wait_ms=1_000)}
    return found


def lag(url: str) -> int:
    """Return how many messages the group has before it, those in flight included."""
    with Admin(url) as admin:
        return admin.get_group("billing").lag
