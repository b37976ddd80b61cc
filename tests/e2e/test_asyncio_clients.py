"""Clients on an event loop while the service dies, tasks are cancelled, and handlers fail (SPEC SEND, CONS, POP)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from deltamq import (
    Admin,
    AsyncAdmin,
    AsyncOrderlyConsumer,
    AsyncPopClient,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    DeltaMQError,
    Patience,
    PoppedMessage,
    Result,
    Sent,
    Unavailable,
)
from tests.e2e.service_process import ServiceProcess
from tests.e2e.test_client_and_crashes import bodies_by_key
from tests.e2e.up_process import Up
from tests.unit.client.test_forks import in_child

TASKS = 64
QUICK = Patience(first_wait_ms=5, wait_ms_max=200)
_PATIENCE_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with the loop free for others."""
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def restart(service: ServiceProcess) -> None:
    """Kill the service with SIGKILL and start it again, with the loop free for others."""
    await asyncio.to_thread(service.kill)
    await asyncio.to_thread(service.start)


def create(url: str, topic: str, partitions: int) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic, partitions=partitions)


# Producers ------------------------------------------------------------------------------------------------------


def test_send_05_tasks_that_await_their_sends_store_each_message_once_in_order(service: ServiceProcess) -> None:
    create(service.url, "orders", 3)
    acknowledged: dict[str, list[int]] = {f"task-{task}": [] for task in range(TASKS)}

    async def main() -> None:
        async with AsyncProducer(service.url, retries=1_000, timeout_s=60, request_timeout_s=5) as producer:
            stop = asyncio.Event()

            async def send(key: str) -> None:
                number = 0
                while not stop.is_set():
                    await producer.send("orders", str(number), key=key)
                    acknowledged[key].append(number)
                    number += 1

            async with asyncio.TaskGroup() as tasks:
                for key in acknowledged:
                    tasks.create_task(send(key))
                for again in range(3):
                    enough = producer.stats().sent + 5 * TASKS
                    await until(lambda: producer.stats().sent >= enough)  # noqa: B023  # awaited here
                    if again < 2:
                        await restart(service)
                stop.set()
            assert producer.stats().retries > 0

    asyncio.run(main())
    assert bodies_by_key(service.url, "orders") == acknowledged


@pytest.mark.parametrize(
    "runner",
    [pytest.param(asyncio.run, marks=pytest.mark.long, id="asyncio"), pytest.param(uvloop.run, id="uvloop")],
)
def test_ten_thousand_tasks_send_at_once(
    shared_service: ServiceProcess, topic: str, runner: Callable[[Coroutine[Any, Any, list[Sent]]], list[Sent]]
) -> None:
    create(shared_service.url, topic, 3)

    async def main() -> list[Sent]:
        async with AsyncProducer(shared_service.url, buffer_bytes_max=8_000_000, timeout_s=60) as producer:
            sends = (producer.send(topic, str(number), key=f"k{number % 100}") for number in range(10_000))
            return await asyncio.gather(*sends)

    sent = runner(main())
    assert len({(place.partition, place.offset) for place in sent}) == 10_000
    assert bodies_by_key(shared_service.url, topic) == {f"k{k}": list(range(k, 10_000, 100)) for k in range(100)}


def test_a_cancelled_send_is_withdrawn_while_it_is_queued_and_goes_on_once_it_is_under_way(
    service: ServiceProcess,
) -> None:
    create(service.url, "orders", 1)

    async def main() -> None:
        async with AsyncProducer(service.url, retries=1_000, request_timeout_s=0.3, wait_ms_max=50) as producer:
            await producer.send("orders", "0", key="k")
            before = producer.stats().retries  # a slow machine may have repeated that one
            service.pause()
            under_way = asyncio.create_task(producer.send("orders", "1", key="k"))
            await until(lambda: producer.stats().retries > before)
            queued = [asyncio.create_task(producer.send("orders", str(number), key="k")) for number in (2, 3)]
            await until(lambda: producer.stats().unresolved == 3)
            queued[0].cancel()
            under_way.cancel()
            assert [type(end) for end in await asyncio.gather(under_way, queued[0], return_exceptions=True)] == [
                asyncio.CancelledError
            ] * 2
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.send("orders", "4", key="k")
            assert producer.stats().unresolved == 2, "one under way, one queued that nothing has cancelled"
            service.resume()
            assert [(await queued[1]).offset, (await producer.send("orders", "5", key="k")).offset] == [2, 3]

    asyncio.run(main())
    assert bodies_by_key(service.url, "orders") == {"k": [0, 1, 3, 5]}


def test_send_soon_that_is_cancelled_while_it_waits_for_room_leaves_nothing_behind(service: ServiceProcess) -> None:
    create(service.url, "orders", 1)
    size = 1_000_000

    async def main() -> None:
        options = {"buffer_bytes_max": 2 * size + 1_000, "message_bytes_max": size}
        async with AsyncProducer(service.url, retries=1_000, request_timeout_s=0.3, **options) as producer:
            await producer.send("orders", "first", key="k")
            before = producer.stats().retries
            service.pause()
            futures = [await producer.send_soon("orders", b"x" * (size - 1_000), key="k") for _ in range(2)]
            waiting = asyncio.create_task(producer.send_soon("orders", b"y" * (size - 1_000), key="k"))
            await until(lambda: producer.stats().retries > before)
            assert not waiting.done(), "the buffer is full"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            service.resume()
            assert [(await future).offset for future in futures] == [1, 2]
            assert (await producer.send("orders", "last", key="k")).offset == 3

    asyncio.run(main())


# Consumers ------------------------------------------------------------------------------------------------------


def test_pop_14_coroutines_handle_every_message_while_the_service_is_killed(service: ServiceProcess) -> None:
    create(service.url, "orders", 4)
    handled: Counter[int] = Counter()

    async def handle(message: PoppedMessage) -> None:
        await asyncio.sleep(0.001)
        handled[int(message.body)] += 1

    async def main() -> None:
        async with AsyncProducer(service.url) as producer:
            await asyncio.gather(*(producer.send("orders", str(n), key=f"k{n % 50}") for n in range(2_000)))
        async with (
            AsyncPopConsumer(service.url, "billing", "orders", handle, concurrency=20, patience=QUICK) as one,
            AsyncPopConsumer(service.url, "billing", "orders", handle, concurrency=20, patience=QUICK) as other,
        ):
            for share in (300, 900):
                await until(lambda: len(handled) > share)  # noqa: B023  # awaited here
                await restart(service)
            await until(lambda: len(handled) == 2_000)
            await settled(service.url, "billing")
            assert (one.error, other.error) == (None, None)

    asyncio.run(main())
    assert set(handled) == set(range(2_000))


async def settled(url: str, group: str) -> None:
    """Wait until the group has nothing left and nothing in flight."""
    async with AsyncAdmin(url) as admin, asyncio.timeout(_PATIENCE_S):
        while any(
            lane.lag or lane.in_flight for topic in (await admin.get_group(group)).topics for lane in topic.partitions
        ):
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def with_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A service and the jobs that bring messages again."""
    made = Up(tmp_path_factory.mktemp("aio") / "warehouse", "--port", "0")
    yield made
    made.close()


async def filled(url: str, topic: str, group: str, bodies: int) -> None:
    async with AsyncAdmin(url) as admin, AsyncProducer(url) as producer:
        await admin.create_topic(topic, partitions=1)
        await admin.create_group(group, retry_policy=[100])
        await asyncio.gather(*(producer.send(topic, str(number)) for number in range(bodies)))


def test_messages_come_again_whose_handlers_raise_anything(with_jobs: Up, topic: str) -> None:
    attempts: dict[str, list[int]] = defaultdict(list)

    async def cancels_itself() -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    async def handle(message: PoppedMessage) -> Result | None:
        attempts[message.text].append(message.delivery_attempt)
        if message.delivery_attempt > 1:
            return Result.OK
        match int(message.text):
            case 0:
                raise ValueError("of its own")
            case 1:
                raise SystemExit(3)
            case 2:
                raise asyncio.CancelledError
            case 3:
                await cancels_itself()
            case 4:
                raise KeyboardInterrupt
            case 5:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(_PATIENCE_S)
        return None

    async def main() -> None:
        await filled(with_jobs.url, topic, topic, 7)
        async with AsyncPopConsumer(with_jobs.url, topic, topic, handle, patience=QUICK) as consumer:
            await until(lambda: sum(map(len, attempts.values())) == 13)
            await settled(with_jobs.url, topic)
            assert (consumer.stats().ok, consumer.stats().retried, consumer.error) == (7, 6, None)

    asyncio.run(main())
    assert attempts == {**{str(number): [1, 2] for number in range(6)}, "6": [1]}


def test_a_handler_that_never_ends_is_cancelled_at_close_and_its_message_comes_again(with_jobs: Up, topic: str) -> None:
    ends: list[str] = []

    async def never(message: PoppedMessage) -> None:
        ends.append(f"began {message.text}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(f"cancelled {message.text}")
            raise

    async def main() -> list[str]:
        await filled(with_jobs.url, topic, topic, 1)
        consumer = AsyncPopConsumer(with_jobs.url, topic, topic, never, patience=QUICK)
        await consumer.start()
        await until(lambda: ends == ["began 0"])
        closed = await consumer.close(timeout_s=0.05)
        assert (closed.unfinished, closed.untold, ends) == (1, 0, ["began 0", "cancelled 0"])
        async with AsyncPopConsumer(with_jobs.url, topic, topic, patience=QUICK) as another:
            return [message.text async for message in first(another, 1)]

    assert asyncio.run(main()) == ["0"]


def test_a_cancelled_run_closes_the_consumer_and_a_message_in_the_hands_of_an_iteration_comes_again(
    with_jobs: Up, topic: str
) -> None:
    async def main() -> list[str]:
        await filled(with_jobs.url, topic, topic, 3)
        held: list[str] = []
        async with AsyncPopConsumer(with_jobs.url, topic, topic, patience=QUICK) as consumer:
            async for message in consumer:
                held.append(message.text)
                if len(held) == 2:
                    break  # the first one is acknowledged, neither of the others is
        seen: set[str] = set()

        async def handle(message: PoppedMessage) -> None:
            seen.add(message.text)

        following = AsyncPopConsumer(with_jobs.url, topic, topic, handle, patience=QUICK)
        running = asyncio.create_task(following.run())
        await until(lambda: len(seen) == 2)
        await settled(with_jobs.url, topic)
        running.cancel()
        assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], asyncio.CancelledError)
        assert await following.close(), "it was closed as `run` ended"
        assert seen == {"0", "1", "2"} - {held[0]}
        return held

    assert asyncio.run(main())[0] in "012"


async def first(consumer: AsyncPopConsumer, count: int) -> AsyncIterator[PoppedMessage]:
    """Yield so many messages; each is acknowledged."""
    async for message in consumer:
        if count == 0:
            return
        count -= 1
        yield message
        if count == 0:
            consumer.stop()


# Where a client must not be used --------------------------------------------------------------------------------


def clients(url: str, topic: str) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Coroutine[Any, Any, object]]]]:
    """How each client is made, and a call of it."""

    async def listen(message: Any) -> None:
        return None

    return {
        "producer": (lambda: AsyncProducer(url), lambda client: client.send(topic, "x")),
        "send_soon": (lambda: AsyncProducer(url), lambda client: client.send_soon(topic, "x")),
        "pop": (lambda: AsyncPopConsumer(url, topic, topic), lambda client: client.start()),
        "orderly": (lambda: AsyncOrderlyConsumer(url, f"o-{topic}", topic, listen), lambda client: client.start()),
        "pull": (lambda: AsyncPullConsumer(url, topic), lambda client: client.poll(1, wait_ms=0)),
        "popper": (lambda: AsyncPopClient(url, topic), lambda client: client.pop(topic, wait_ms=0)),
        "admin": (lambda: AsyncAdmin(url), lambda client: client.get_topic(topic)),
    }


KINDS = ("producer", "send_soon", "pop", "orderly", "pull", "popper", "admin")
#: What a client is refused with after its close.
CLOSED = dict(zip(KINDS, ("producer_closed",) * 2 + ("consumer_closed",) * 3 + ("client_closed",) * 2, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_is_refused_where_it_cannot_work(shared_service: ServiceProcess, kind: str) -> None:
    topic = f"refused-{kind}"
    create(shared_service.url, topic, 1)
    make, call = clients(shared_service.url, topic)[kind]
    codes: dict[str, str | None] = {}

    async def code_of(client: Any) -> str | None:
        """Return the code of the error that the call raises."""
        try:
            await call(client)
        except DeltaMQError as error:
            assert error.outcome == "not_stored"
            return error.code
        return None

    def outside(client: Any) -> str | None:
        """Drive the call without any loop."""
        work = code_of(client)
        try:
            work.send(None)
        except StopIteration as ended:
            return str(ended.value)
        work.close()
        return None

    with asyncio.Runner() as runner, asyncio.Runner() as other:

        async def begun() -> Any:
            client = make()
            if kind in ("pull", "popper", "admin"):
                await client.__aenter__()
            await call(client)
            return client

        client = runner.run(begun())
        codes["loop"] = other.run(code_of(client))
        codes["no loop"] = outside(client)
        if hasattr(os, "fork"):
            assert in_child(lambda: asyncio.run(code_of(client))) == "forked_client"
        runner.run(client.close())
        runner.run(client.close())
        codes["closed"] = runner.run(code_of(client))
    assert codes == {"loop": "another_event_loop", "no loop": "no_event_loop", "closed": CLOSED[kind]}


def test_a_producer_whose_service_is_gone_says_at_its_close_what_is_not_stored(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "warehouse")

    async def main() -> None:
        producer = AsyncProducer(service.url, retries=1_000)
        await producer.send("orders", "0")
        before = producer.stats().retries
        await asyncio.to_thread(service.kill)
        sends = [asyncio.create_task(producer.send("orders", str(number))) for number in range(100)]
        await until(lambda: producer.stats().retries > before)
        closed = await producer.close(timeout_s=0.05)
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(end, DeltaMQError) for end in ends)
        assert not closed and closed.not_sent + closed.unresolved == 100
        assert sum(isinstance(end, Unavailable) and end.code == "not_sent" for end in ends) == closed.not_sent

    try:
        asyncio.run(main())
    finally:
        service.close()
