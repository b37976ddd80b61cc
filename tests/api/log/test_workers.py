"""The threads of commits: the warm one first, others when it is busy, and nothing submitted is left at a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from deltamq.api.log.workers import Workers
from tests.api.running import until


def test_the_thread_that_was_busy_last_gets_the_next_task() -> None:
    workers = Workers(4, name="test")
    seen: list[str] = []
    for _ in range(20):
        until(lambda: workers.idle == 4)
        workers.submit(lambda: seen.append(threading.current_thread().name))
    workers.stop()
    assert len(seen) == 20 and len(set(seen)) == 1


class Clock:
    """How long the threads have waited, as tests say."""

    def __init__(self) -> None:
        self._waited = threading.local()

    def waited(self) -> float:
        return getattr(self._waited, "seconds", 0.0)

    def wait(self, seconds: float) -> None:
        self._waited.seconds = self.waited() + seconds


def _width_after(workers: Workers, task: Callable[[], None], *, tasks: int = 60) -> int:
    for _ in range(tasks):
        until(lambda: workers.idle == 6)
        workers.submit(task)
    until(lambda: workers.idle == 6)
    return workers.width


def test_as_many_threads_work_as_the_time_allows_that_tasks_wait_for_the_store() -> None:
    clock = Clock()
    workers = Workers(6, name="test", waited=clock.waited)

    def compute() -> None:
        until_s = time.thread_time() + 0.001
        while time.thread_time() < until_s:
            pass

    def wait_three_times_as_long() -> None:
        compute()
        clock.wait(0.003)

    def wait_for_a_network() -> None:
        compute()
        clock.wait(0.5)

    assert workers.width == 6
    assert _width_after(workers, compute) == 2
    assert _width_after(workers, wait_three_times_as_long) in (3, 4)
    assert _width_after(workers, wait_for_a_network) == 6
    assert _width_after(workers, compute, tasks=200) == 2
    workers.stop()


def test_when_those_at_work_are_stuck_others_go_on() -> None:
    workers = Workers(4, name="test", waited=Clock().waited)
    gate, done = threading.Event(), threading.Semaphore(0)
    workers.submit(lambda: sum(range(100_000)) and None)
    until(lambda: workers.width == 2 and workers.idle == 4)
    for _ in range(2):
        workers.submit(lambda: gate.wait(20) and None)
    for _ in range(20):
        workers.submit(done.release)
    for _ in range(20):
        assert done.acquire(timeout=20), "by the other two threads, though only two may work"
    for _ in range(3):
        workers.submit(lambda: gate.wait(20) and None)
    until(lambda: workers.idle == 0)
    gate.set()
    workers.stop()
    assert not workers.wanted


def test_all_threads_work_when_there_is_work_and_the_rest_waits_its_turn() -> None:
    workers = Workers(3, name="test")
    gate, inside, done = threading.Event(), threading.Semaphore(0), list[int]()

    def held() -> None:
        inside.release()
        assert gate.wait(20)

    for _ in range(3):
        workers.submit(held)
    for _ in range(3):
        assert inside.acquire(timeout=20)
    assert not workers.wanted
    for number in range(50):
        workers.submit(partial(done.append, number))
    assert workers.wanted and not done
    gate.set()
    workers.stop()
    assert sorted(done) == list(range(50)) and not workers.wanted
