"""What a fork leaves of clients: those that ask work in the child, those that consume refuse there (SPEC SEND-8)."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.credentials import Credentials
from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.client.outbox.relay import OutboxRelay
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.produce.shared import Buffer, flush_all, flushed_at_exit
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.shells import forks
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.errors import DeltaMQError
from tests.unit.client.stub_service import StubService

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a child of a fork, and return what it returns, or the code of its error."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the stub live in this process
        child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                told = work()
            except DeltaMQError as error:
                told = error.code
            os.write(write, pickle.dumps(told))
            status = 0
        os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        raw = answer.read()
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    return pickle.loads(raw)


@pytest.mark.threads
def test_send_08_parent_and_child_of_a_fork_send_under_ids_of_their_own(
    stub: StubService, make_producer: Callable[..., Producer]
) -> None:
    stub.create("orders", 1)
    producer = make_producer()
    offsets = [producer.send("orders", "before", key="k").offset]
    offsets += in_child(lambda: [producer.send("orders", f"child {n}", key="k").offset for n in range(3)])
    offsets += [producer.send("orders", f"parent {n}", key="k").offset for n in range(3)]
    offsets += in_child(lambda: [one.offset for one in (producer.send("orders", text) for text in "ab")])
    assert offsets == list(range(9)), "each has an offset of its own"
    assert len({post.producer_id for post in stub.posts}) == 3


@pytest.mark.threads
def test_send_08_what_was_queued_before_a_fork_is_sent_by_the_parent_alone(
    stub: StubService, make_producer: Callable[..., Producer]
) -> None:
    stub.create("orders", 1)
    producer = make_producer(linger_ms=60_000)
    producer.partitions("orders")
    future = producer.send_soon("orders", "queued", key="k")

    def child() -> tuple[int, str]:
        assert producer.stats().unresolved == 0 and producer.flush(0)
        try:
            future.result(0)
        except DeltaMQError as error:
            return producer.stats().sent, error.code
        return -1, ""

    assert in_child(child) == (0, "forked_client")
    assert producer.stats().unresolved == 1
    assert not producer.close(0) and future.done()


@pytest.mark.threads
def test_send_08_locks_that_a_thread_holds_at_the_fork_stop_nobody_in_the_child(
    stub: StubService, make_producer: Callable[..., Producer]
) -> None:
    stub.create("orders", 1)
    producer = make_producer(token=lambda: "t")
    producer.send("orders", "before")
    held = [producer._hosts._lock, producer._shared.buffer._changed.lock, producer._routers._lock]
    credentials: Credentials = producer._hosts._seeds[0].credentials
    with contextlib.ExitStack() as holding:
        for lock in (*held, credentials._lock):
            holding.enter_context(lock)
        assert in_child(lambda: producer.send("orders", "child").offset) == 1


def test_send_08_calls_use_connections_of_their_own_in_the_child(stub: StubService) -> None:
    stub.create("orders", 1)
    with Admin(stub.url) as admin:
        assert admin.list_topics() == ["orders"]
        (parents,) = list(stub.connections)

        def child() -> tuple[list[str], int]:
            return admin.list_topics(), admin.hosts.endpoint()._transport._pool.num_connections

        assert in_child(child) == (["orders"], 1), "one, opened in the child: the parent's was not used"
        assert parents in stub.connections
        assert admin.list_topics() == ["orders"]


def test_send_08_a_pop_client_works_in_parent_and_child(stub: StubService) -> None:
    stub.queue.twin.create_topic("orders")
    stub.queue.twin.put_group("g")
    with PopClient(stub.url, "g") as client:
        assert client.pop("orders", wait_ms=0).messages == []
        assert in_child(lambda: client.pop("orders", wait_ms=0).messages) == []
        assert client.pop("orders", wait_ms=0).messages == []


def test_send_08_consumers_refuse_in_the_child_and_leave_the_parents_work_alone(stub: StubService) -> None:
    stub.create("orders", 1)
    stub.queue.twin.create_topic("orders")
    stub.queue.twin.put_group("g")
    pull = PullConsumer(stub.url, "orders")
    pop = PopConsumer(stub.url, "g", "orders", lambda message: None)
    orderly = OrderlyConsumer(stub.url, "o", "orders", lambda message: None)
    relay = OutboxRelay(lambda: sqlite3.connect(":memory:"), stub.url)
    with contextlib.closing(pull), contextlib.closing(relay):
        for refused in (
            pull.poll,
            pull.commit,
            pull.assign,
            pop.run,
            pop.start,
            pop.close,
            orderly.start,
            relay.run,
            relay.run_once,
        ):
            assert in_child(refused) == "forked_client", refused
        assert in_child(pull.close) is None
        assert in_child(relay.close) is None
        assert in_child(lambda: pop.__exit__(None, None, None)) is None
        assert pull.poll(wait_ms=0) == []
    for consumer in (pop, orderly):
        consumer.close()


def test_send_08_the_refusal_names_the_object_and_both_processes(stub: StubService) -> None:
    birthplace = forks.Birthplace("PopConsumer")
    parent = os.getpid()

    def child() -> str:
        try:
            birthplace.check()
        except DeltaMQError as error:
            return error.detail
        return ""

    detail = in_child(child)
    assert detail.startswith(f"this PopConsumer was made in process {parent}, ") and "make one here" in detail
    birthplace.check()


def test_send_08_clients_that_are_gone_are_forgotten(stub: StubService) -> None:
    for _ in range(1_100):
        Endpoint("http://h:1")
        forks.in_child(Credentials("t")._renew)
    gc.collect()
    assert sum(one() is None for one in forks._renewals) < 1_100


# The end of a program ------------------------------------------------------------------------------------------

_PROGRAM = """
import sys
from deltamq import Producer

def main():
    producer = Producer(sys.argv[1], linger_ms=50)
    for number in range(20):
        producer.send_soon("orders", str(number), key="k")

main()
"""


def test_send_09_a_program_that_ends_without_close_has_sent_everything(stub: StubService, tmp_path: Path) -> None:
    log = stub.create("orders", 1).log("orders@broker-a")
    done = subprocess.run([sys.executable, "-c", _PROGRAM, stub.url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(log) == 20


_CHILD = """
import multiprocessing, sys
from deltamq import Producer

def work():
    producer = Producer(sys.argv[1], linger_ms=50)
    for number in range(20):
        producer.send_soon("orders", str(number))

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_send_09_a_child_that_ends_without_close_has_sent_everything(
    stub: StubService, tmp_path: Path, start: str
) -> None:
    log, program = stub.create("orders", 1).log("orders@broker-a"), tmp_path / "program.py"
    program.write_text(_CHILD)
    done = subprocess.run([sys.executable, program, stub.url, start], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(log) == 20


def test_send_09_what_is_left_after_the_bound_is_said(caplog: pytest.LogCaptureFixture) -> None:
    full, empty = Buffer(10, ThreadShell()), Buffer(10, ThreadShell())
    assert full.try_take(1, 7)
    flushed_at_exit(full)
    flushed_at_exit(empty)
    began = time.monotonic()
    flush_all(0.01)
    assert "event=ended_unsent messages=7" in caplog.text and time.monotonic() >= began + 0.01
    threading.Timer(0.01, lambda: full.give_back(1, 7)).start()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        flush_all(60)
    assert caplog.text == ""
