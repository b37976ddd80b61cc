"""The threads that run executors' turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from deltamq.mq.client.shells.shell import Work, run_now
from deltamq.mq.client.shells.threads import ThreadWorkers


def wait_until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.005)


def named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def setting(event: threading.Event) -> Work:
    async def task() -> None:
        event.set()

    return task


def test_no_more_threads_than_allowed_and_every_task_runs() -> None:
    workers = ThreadWorkers(2, "w-bound")
    gate = threading.Event()
    done: list[int] = []

    async def task(number: int) -> None:
        gate.wait(30)
        done.append(number)

    for number in range(6):
        workers.submit(partial(task, number))
    assert named("w-bound") == 2
    gate.set()
    wait_until(lambda: sorted(done) == list(range(6)))
    run_now(workers.close())
    wait_until(lambda: named("w-bound") == 0)


def test_idle_threads_end_and_later_tasks_still_run() -> None:
    workers = ThreadWorkers(3, "w-idle", idle_s=0.02)
    for _ in range(3):
        ran = threading.Event()
        workers.submit(setting(ran))
        assert ran.wait(30)
        wait_until(lambda: named("w-idle") == 0)
    run_now(workers.close())


async def fail() -> None:
    raise ValueError


def test_a_task_that_raises_ends_neither_thread_nor_pool(caplog: pytest.LogCaptureFixture) -> None:
    workers = ThreadWorkers(1, "w-raise")
    workers.submit(fail)
    ran = threading.Event()
    workers.submit(setting(ran))
    assert ran.wait(30)
    assert "client_task_failed" in caplog.text
    run_now(workers.close())
