"""The light future behaves as a plain one, whenever it becomes one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import Refused


def test_a_settled_future_answers_without_waiting() -> None:
    future: SendFuture[int] = SendFuture()
    assert not future.done()
    future.set_result(7)
    assert future.done()
    assert future.result() == 7
    assert future.exception() is None
    assert not future.cancelled()
    assert not future.running()


def test_an_error_is_raised() -> None:
    future: SendFuture[int] = SendFuture()
    future.set_exception(Refused("no"))
    with pytest.raises(Refused, match="no"):
        future.result()
    assert isinstance(future.exception(), Refused)


def test_what_was_handed_over_cannot_be_cancelled() -> None:
    future: SendFuture[int] = SendFuture()
    assert future.cancel() is False
    assert future.running()
    future.set_result(1)
    assert future.result() == 1


def test_waiting_before_and_after_the_result() -> None:
    future: SendFuture[int] = SendFuture()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0.01)
    threading.Timer(0.02, future.set_result, (5,)).start()
    assert future.result(timeout=30) == 5
    assert "finished" in repr(future)


def test_callbacks_run_once_before_or_after() -> None:
    seen: list[int] = []
    early: SendFuture[int] = SendFuture()
    early.add_done_callback(lambda f: seen.append(f.result()))
    early.set_result(1)
    late: SendFuture[int] = SendFuture()
    late.set_result(2)
    late.add_done_callback(lambda f: seen.append(f.result()))
    assert seen == [1, 2]


def test_wait_and_as_completed_take_it() -> None:
    futures: list[SendFuture[int]] = [SendFuture() for _ in range(20)]
    for number, future in enumerate(futures[:10]):
        future.set_result(number)
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert (len(done), len(pending)) == (10, 10)

    def settle() -> None:
        for number, future in enumerate(futures[10:], start=10):
            future.set_result(number)

    threading.Timer(0.02, settle).start()
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, timeout=30)) == list(range(20))


def test_asyncio_takes_it() -> None:
    async def main() -> int:
        future: SendFuture[int] = SendFuture()
        threading.Timer(0.02, future.set_result, (3,)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) == 3


def test_settling_and_growing_at_once_loses_nothing() -> None:
    for _ in range(300):
        future: SendFuture[int] = SendFuture()
        seen: list[int] = []
        barrier = threading.Barrier(4)

        def wait(f: SendFuture[int] = future, b: threading.Barrier = barrier, s: list[int] = seen) -> None:
            b.wait()
            s.append(f.result(timeout=30))

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        future.set_result(9)
        for thread in threads:
            thread.join(30)
        assert seen == [9, 9, 9]


def test_an_unknown_attribute_is_still_one() -> None:
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = SendFuture().nothing_here
