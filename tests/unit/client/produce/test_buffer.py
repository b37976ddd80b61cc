"""The bound of everything not yet resolved."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.producer import AsyncProducer
from deltamq.mq.client.produce.shared import Buffer
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.client.shells.threads import ThreadShell
from deltamq.mq.errors import Overloaded


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_a_full_buffer_raises_at_once_when_told_not_to_wait() -> None:
    buffer = Buffer(100, ThreadShell())
    run_now(buffer.take(100, 1, deadline=soon(), wait=False))
    with pytest.raises(Overloaded) as caught:
        run_now(buffer.take(1, 1, deadline=soon(), wait=False))
    assert caught.value.code == "buffer_full"
    assert (buffer.bytes, buffer.messages) == (100, 1)


def test_a_full_buffer_waits_for_room_until_the_deadline() -> None:
    buffer = Buffer(100, ThreadShell())
    run_now(buffer.take(100, 1, deadline=soon(), wait=True))
    with pytest.raises(Overloaded):
        run_now(buffer.take(1, 1, deadline=soon(0.05), wait=True))
    threading.Timer(0.05, buffer.give_back, (100, 1)).start()
    run_now(buffer.take(60, 1, deadline=soon(), wait=True))
    assert buffer.bytes == 60


def test_what_is_larger_than_the_buffer_takes_all_of_it() -> None:
    assert Buffer(100, ThreadShell()).fitted(10_000) == 100
    assert Buffer(100, ThreadShell()).fitted(10) == 10


def test_waiting_until_empty_ends_with_the_last_message() -> None:
    buffer = Buffer(100, ThreadShell())
    assert run_now(buffer.wait_empty(soon())) is True
    run_now(buffer.take(10, 2, deadline=soon(), wait=True))
    assert run_now(buffer.wait_empty(soon(0.02))) is False
    threading.Timer(0.05, buffer.give_back, (10, 2)).start()
    assert run_now(buffer.wait_empty(soon())) is True


class Moving:
    """A topic whose executor has just retired, and whose route does not come: its own executor, too."""

    def known_executor(self, _message: Message, _now: float) -> Moving:
        return self

    def put(self, _entry: Entry) -> bool:
        return False

    async def executor_for(self, _message: Message, _deadline: float) -> Moving:
        await asyncio.Event().wait()
        return self


def test_a_task_that_is_cancelled_while_it_looks_for_another_executor_returns_its_room() -> None:
    async def main() -> None:
        producer = AsyncProducer("http://127.0.0.1:9")
        message = Message(b"x")
        entry = producer._entry(message, soon(), None, None, waits=True)
        moving: Any = Moving()
        put = asyncio.create_task(producer._routers.put(moving, message, entry, waits=True, here=False))
        await asyncio.sleep(0)
        assert producer.stats().unresolved == 1
        put.cancel()
        await asyncio.gather(put, return_exceptions=True)
        assert await producer.close(timeout_s=0)

    asyncio.run(main())
