"""The tasks that an event loop's clients work in."""

from __future__ import annotations

import asyncio

import pytest

from deltamq.mq.client.shells.loop import LoopWorkers


def test_work_that_comes_as_a_task_ends_is_done() -> None:
    """It once waited for a task that had looked for the last time and was not counted off yet."""

    async def main() -> None:
        workers, done = LoopWorkers(1, "w"), asyncio.Event()

        async def first() -> None:
            # Right after the worker's task has ended, before what is called at its end.
            task = asyncio.current_task()
            assert task is not None
            task.get_loop().call_soon(submit)

        async def second() -> None:
            done.set()

        def submit() -> None:
            workers.submit(second)

        for _ in range(3):
            done.clear()
            workers.submit(first)
            await asyncio.wait_for(done.wait(), 20)
        await workers.close()

    asyncio.run(main())


def test_no_more_tasks_than_allowed_and_all_work_is_done() -> None:
    async def main() -> None:
        workers, running, most, done = LoopWorkers(3, "w"), 0, 0, 0

        async def work() -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running, done = running - 1, done + 1

        for _ in range(50):
            workers.submit(work)
        async with asyncio.timeout(20):
            while done < 50:
                await asyncio.sleep(0)
        assert most == 3
        await workers.close()

    asyncio.run(main())


def test_work_that_raises_ends_no_task_and_a_close_cancels_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        workers, ran, ended = LoopWorkers(1, "w"), asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            raise ValueError

        async def endless() -> None:
            ran.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        workers.submit(fail)
        workers.submit(endless)
        await asyncio.wait_for(ran.wait(), 20)
        await workers.close()
        assert ended.is_set()
        workers.submit(fail)  # nothing begins any more

    asyncio.run(main())
    assert caplog.text.count("client_task_failed") == 1
