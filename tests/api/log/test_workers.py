"""The threads of commits: the warm one first, others when it is busy, and nothing submitted is left at a stop."""

from __future__ import annotations

import threading
from functools import partial

from api.log.workers import Workers
from tests.api.running import until


def test_the_thread_that_was_busy_last_gets_the_next_task() -> None:
    workers = Workers(4, name="test")
    seen: list[str] = []
    for _ in range(20):
        until(lambda: workers.idle == 4)
        workers.submit(lambda: seen.append(threading.current_thread().name))
    workers.stop()
    assert len(seen) == 20 and len(set(seen)) == 1


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
