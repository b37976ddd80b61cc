"""What is different on an event loop: tasks that are cancelled, back-pressure, and where a client may be used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deltamq import (
    AsyncOutboxRelay,
    AsyncPopConsumer,
    AsyncProducer,
    ForkedClient,
    PoppedMessage,
    Producer,
    Refused,
    Result,
)
from deltamq.mq.client.shells.loop import TimeOuts
from tests.outbox_database import sqlite_database
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_service import StubService
from tests.unit.client.test_forks import in_child

_WITHIN_S = 30.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while not condition():
            await asyncio.sleep(0.002)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * _WITHIN_S))


# Time-outs -------------------------------------------------------------------------------------------------------


def test_a_wait_ends_at_its_own_time_whichever_began_first() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        time_outs = TimeOuts()
        ended: list[str] = []

        async def wait(name: str, timeout_s: float, future: asyncio.Future[None]) -> None:
            time_outs.add(future, time.monotonic() + timeout_s)
            try:
                await future
            except TimeoutError:
                ended.append(name)
            finally:
                time_outs.remove(future)

        done, cancelled = loop.create_future(), loop.create_future()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait("long", 0.2, loop.create_future()))
            tasks.create_task(wait("short", 0.05, loop.create_future()))
            tasks.create_task(wait("middle", 0.1, loop.create_future()))
            tasks.create_task(wait("done", 0.05, done))
            given_up = tasks.create_task(wait("cancelled", 0.05, cancelled))
            await asyncio.sleep(0)
            done.set_result(None)
            given_up.cancel()
        assert ended == ["short", "middle", "long"] and cancelled.cancelled()

    run(main())


# Producers ------------------------------------------------------------------------------------------------------

_UNCLOSED = """
import asyncio, sys
from deltamq import AsyncProducer

async def main():
    producer = AsyncProducer(sys.argv[1], linger_ms=50)
    for number in range(20):
        await producer.send_soon("orders", str(number))

asyncio.run(main())
"""


def test_send_09_a_loop_that_ends_with_a_producer_that_was_not_closed_says_what_is_lost(stub: StubService) -> None:
    log = stub.create("orders", 1).log("orders@broker-a")
    done = subprocess.run([sys.executable, "-c", _UNCLOSED, stub.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert f"event=ended_unsent messages={20 - len(log)} detail='the producer was not closed'" in done.stderr


def test_send_13_64_tasks_share_requests_and_each_gets_its_place(stub: StubService) -> None:
    stub.create("orders", 1)

    async def main() -> None:
        async with AsyncProducer(stub.url) as producer:
            await producer.send("orders", "first")
            sent = await asyncio.gather(*(producer.send("orders", str(number)) for number in range(64)))
            assert sorted(place.offset for place in sent) == list(range(1, 65))
            assert producer.stats().requests < 20
        assert [int(body) for body in stub.bodies("orders")[1:]] == [
            number for number, _ in sorted(enumerate(sent), key=lambda each: each[1].offset)
        ]

    run(main())


def test_send_13_send_soon_waits_for_room(stub: StubService) -> None:
    stub.create("orders", 1)
    gate = threading.Event()

    async def main() -> None:
        async with AsyncProducer(stub.url, buffer_bytes_max=1 << 22, message_bytes_max=1 << 22) as producer:
            await producer.partitions("orders")
            stub.on_post = lambda post: gate.wait(_WITHIN_S)
            first = await producer.send_soon("orders", bytes(3 << 20))
            second = asyncio.create_task(producer.send_soon("orders", bytes(3 << 20)))
            await until(lambda: stub.posts)
            await asyncio.sleep(0.05)
            assert not second.done(), "the buffer is full"
            gate.set()
            assert (await first).offset == 0 and (await (await second)).offset == 1

    run(main())


@pytest.mark.parametrize("oneway", [False, True])
def test_send_13_what_is_queued_goes_while_more_is_queued(stub: StubService, oneway: bool) -> None:
    stub.create("orders", 1)

    async def main() -> None:
        async with AsyncProducer(stub.url) as producer:
            await producer.partitions("orders")
            began = threading.Event()
            stub.on_post = lambda post: began.set()
            queue = producer.send_oneway if oneway else producer.send_soon
            for _ in range(20_000):  # a third of the buffer: none of them waits for room
                await queue("orders", b"x")
            assert began.wait(_WITHIN_S), "the loop had no turn meanwhile"

    run(main())


def test_send_13_a_cancelled_send_is_withdrawn_or_goes_on(stub: StubService) -> None:
    stub.create("orders", 1)
    gate = threading.Event()

    async def main() -> None:
        async with AsyncProducer(stub.url) as producer:
            await producer.partitions("orders")
            stub.on_post = lambda post: gate.wait(_WITHIN_S)
            under_way = asyncio.create_task(producer.send("orders", "under way"))
            await until(lambda: stub.posts)
            queued = asyncio.create_task(producer.send("orders", "queued"))
            await until(lambda: producer.stats().unresolved == 2)
            for task in (under_way, queued):
                task.cancel()
            assert [type(error) for error in await asyncio.gather(under_way, queued, return_exceptions=True)] == [
                asyncio.CancelledError,
                asyncio.CancelledError,
            ]
            assert producer.stats().unresolved == 1, "what was queued is withdrawn"
            gate.set()
            assert (await producer.send("orders", "after")).offset == 1
        assert stub.bodies("orders") == [b"under way", b"after"]

    run(main())


def test_send_13_another_loop_no_loop_and_a_child_are_refused(stub: StubService) -> None:
    stub.create("orders", 1)
    producer = AsyncProducer(stub.url)
    sending = producer.send("orders", "x")
    with pytest.raises(Refused, match="event loop") as refused:
        sending.send(None)
    assert refused.value.code == "no_event_loop"

    async def first() -> str:
        assert (await producer.send("orders", "x")).offset == 0

        def child() -> str:
            try:
                producer.shell.check()
            except ForkedClient as error:
                return error.code
            return "nothing was refused"

        return in_child(child)

    async def second() -> None:
        with pytest.raises(Refused, match="another event loop"):
            await producer.send("orders", "y")

    with asyncio.Runner() as runner:
        assert runner.run(first()) == "forked_client"
        elsewhere = threading.Thread(target=lambda: asyncio.run(second()))
        elsewhere.start()
        elsewhere.join()
        runner.run(producer.close())
    assert stub.bodies("orders") == [b"x"]


IMPORTS = """
import asyncio, sys, threading

class Seen:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("aiohttp", "pandas"):
            print(name, "in the loop" if threading.current_thread() is threading.main_thread() else "in a thread")

sys.meta_path.insert(0, Seen)
from deltamq import AsyncProducer, AsyncPullConsumer

async def sends():
    async with AsyncProducer(sys.argv[1]) as producer:
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(3)))

async def polls():
    async with AsyncPullConsumer(sys.argv[1], "orders", start="first") as consumer:
        assert await consumer.poll_arrow(wait_ms=30_000) is not None

asyncio.run({"sends": sends, "polls": polls}[sys.argv[2]]())
"""


@pytest.mark.parametrize("what", ["sends", "polls"])
def test_send_13_what_the_first_call_imports_is_imported_in_a_thread(stub: StubService, what: str) -> None:
    stub.create("orders", 1)
    with Producer(stub.url) as producer:
        producer.send("orders", b"x")
    command = [sys.executable, "-c", IMPORTS, stub.url, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_WITHIN_S)
    assert done.stdout.splitlines() == ["aiohttp in a thread", "pandas in a thread"]


# Consumers ------------------------------------------------------------------------------------------------------


def test_cons_16_coroutines_run_at_once_and_plain_functions_in_threads(stub: StubService) -> None:
    stub.queue.fill("orders", 40)
    meeting, names = threading.Barrier(4), set[str]()

    async def main() -> None:
        running, everybody = 0, asyncio.Event()

        async def coroutine(message: PoppedMessage) -> None:
            nonlocal running
            running += 1
            if running == 20:
                everybody.set()
            await everybody.wait()

        async with AsyncPopConsumer(stub.url, "billing", "orders", coroutine, concurrency=20, patience=QUICK) as one:
            await until(lambda: one.stats().ok == 40)

        def plain(message: PoppedMessage) -> None:
            names.add(threading.current_thread().name)
            meeting.wait(_WITHIN_S)

        async with AsyncPopConsumer(stub.url, "audit", "orders", plain, concurrency=4, patience=QUICK) as other:
            await until(lambda: other.stats().ok == 40)

    run(main())
    assert len(names) == 4 and threading.main_thread().name not in names


def test_cons_16_an_iterated_message_is_acknowledged_when_the_next_is_asked_for(stub: StubService) -> None:
    stub.queue.fill("orders", 5)

    async def main() -> None:
        seen = []
        async with AsyncPopConsumer(stub.url, "billing", "orders", patience=QUICK) as consumer:
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 3:
                    break
        async with AsyncPopConsumer(stub.url, "billing", "orders", patience=QUICK) as consumer:
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 6:
                    consumer.stop()
        assert sorted(seen) == sorted([*range(5), seen[2]]), "the third was not acknowledged, and came again"
        stub.queue.wait_for(lambda: stub.queue.is_done("billing", "orders"))

    run(main())


def test_cons_16_a_handler_that_never_ends_is_cancelled_at_the_close(stub: StubService) -> None:
    stub.queue.fill("orders", 1)

    async def main() -> None:
        attempts: list[int] = []

        async def endless(message: PoppedMessage) -> Result:
            attempts.append(message.delivery_attempt)
            if len(attempts) == 1:
                await asyncio.Event().wait()
            return Result.OK

        consumer = AsyncPopConsumer(stub.url, "billing", "orders", endless, patience=QUICK)
        await consumer.start()
        await until(lambda: attempts)
        assert (await consumer.close(timeout_s=0.05)).unfinished == 1
        async with AsyncPopConsumer(stub.url, "billing", "orders", endless, patience=QUICK) as again:
            await until(lambda: again.stats().ok == 1)
        assert len(attempts) == 2

    run(main())


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), ValueError("no")], ids=repr)
def test_cons_16_whatever_a_handler_raises_brings_its_message_again(stub: StubService, error: BaseException) -> None:
    stub.queue.fill("orders", 3)
    stub.queue.twin.put_group("billing", retry_policy={"fixed_ms": 1})

    async def main() -> None:
        raised: list[int] = []

        async def fail_once(message: PoppedMessage) -> None:
            if message.offset == 1 and not raised:
                raised.append(message.offset)
                raise error

        async with AsyncPopConsumer(stub.url, "billing", "orders", fail_once, patience=QUICK) as consumer:
            await until(lambda: consumer.stats().ok == 3)
            assert consumer.stats().retried == 1

    run(main())


# The outbox -----------------------------------------------------------------------------------------------------


def test_send_07_a_relay_on_a_loop_sends_what_is_committed_when_it_is_woken(stub: StubService, tmp_path: Path) -> None:
    stub.create("orders", 1)
    database = sqlite_database(tmp_path)

    async def main() -> None:
        async with AsyncOutboxRelay(database.connect, stub.url, table=database.table, poll_ms=3_600_000) as relay:
            assert (await relay.run_once()).sent == 0
            running = asyncio.create_task(relay.run())
            database.put("1", "2", key="k")
            relay.wake()
            await until(lambda: relay.stats().sent == 2)
            database.put("3", key="k")
            relay.wake()
            await until(lambda: relay.stats().sent == 3)
            relay.stop()
            await running
        assert stub.bodies("orders") == [b"1", b"2", b"3"]

    run(main())
