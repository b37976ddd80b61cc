"""Clients on an event loop, beside those with threads: one that waits, 64 tasks, a stream of sends, 1,000 handlers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from deltamq import AsyncPopConsumer, AsyncProducer, PoppedMessage, Producer
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session

__all__: list[str] = []

_TOPIC: Final = "bench"
_BODY: Final = b"x" * 100
_TASKS: Final = 64
_HANDLERS: Final = 1_000
_WORK_S: Final = 0.1
_WITHIN_S: Final = 120.0


@bench("loop")
def _loop(session: Session) -> Iterator[Figure]:
    """What asyncio's users wait for; the windows of one waiting client alternate with those of threads."""
    quick = session.effort.name == "quick"
    windows, sends = (1, 50) if quick else (5, 500)
    with running_service(session.fresh("loop")) as service:
        service.make_topic(_TOPIC, 4)
        url = _url(service)
        threads, loop = [], []
        for _ in range(windows):
            threads.append(_alone_in_threads(url, sends))
            loop.append(asyncio.run(_alone(url, sends)))
        yield session.figure("loop.send.threads.p50_ms", "one thread waits for each send", "ms", threads)
        yield session.figure("loop.send.p50_ms", "one task awaits each send", "ms", loop)
        yield session.figure("loop.send.ratio", "one task to one thread", "x", [median(loop) / median(threads)])
        many = [asyncio.run(_many(url, sends * 8)) for _ in range(windows)]
        yield session.figure("loop.send.64.rate", f"{_TASKS} tasks that each await a send", "msg/s", many)
        soon = [asyncio.run(_soon(url, sends * 200)) for _ in range(windows)]
        yield session.figure("loop.send_soon.rate", "send_soon of 100 B, and all futures", "msg/s", soon)
        soon = [asyncio.run(_soon(url, sends * 200, flushes=True)) for _ in range(windows)]
        yield session.figure("loop.send_soon.flush.rate", "send_soon of 100 B, and flush", "msg/s", soon)
        messages = 2_000 if quick else 20_000
        handled = [asyncio.run(_handled(url, f"g{at}", at, messages)) for at in range(1 if quick else 3)]
        what = f"{_HANDLERS:,} handlers of {_WORK_S * 1e3:.0f} ms in one process"
        yield session.figure("loop.handlers.rate", what, "msg/s", handled)


def _url(service: Service) -> str:
    host, port = service.address
    return f"http://{host}:{port}"


def _alone_in_threads(url: str, count: int) -> float:
    with Producer(url) as producer:
        producer.send(_TOPIC, _BODY)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            producer.send(_TOPIC, _BODY)
            took.append(time.perf_counter() - began)
    return median(took) * 1e3


async def _alone(url: str, count: int) -> float:
    async with AsyncProducer(url) as producer:
        await producer.send(_TOPIC, _BODY)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            await producer.send(_TOPIC, _BODY)
            took.append(time.perf_counter() - began)
    return median(took) * 1e3


async def _many(url: str, count: int) -> float:
    async with AsyncProducer(url) as producer:

        async def task() -> None:
            for _ in range(count // _TASKS):
                await producer.send(_TOPIC, _BODY)

        await producer.send(_TOPIC, _BODY)
        began = time.perf_counter()
        await asyncio.gather(*(task() for _ in range(_TASKS)))
        return count // _TASKS * _TASKS / (time.perf_counter() - began)


async def _soon(url: str, count: int, *, flushes: bool = False) -> float:
    async with AsyncProducer(url) as producer:
        await producer.send(_TOPIC, _BODY)
        began = time.perf_counter()
        futures = [await producer.send_soon(_TOPIC, _BODY) for _ in range(count)]
        if flushes:
            await producer.flush()
            for future in futures:
                future.result()
        else:
            await asyncio.gather(*futures)
        return count / (time.perf_counter() - began)


async def _handled(url: str, topic: str, number: int, count: int) -> float:
    """Return the rate of a new group that begins at the first message."""
    async with AsyncProducer(url) as producer:
        await producer.send_batch(topic, [_BODY] * count)
    handled, ended = 0, asyncio.Event()
    gc.collect()
    gc.freeze()  # as `deltamq worker` does (mq/client/cli/worker.py)
    began = time.perf_counter()

    async def handle(message: PoppedMessage) -> None:
        nonlocal handled
        await asyncio.sleep(_WORK_S)
        handled += 1
        if handled == count:
            ended.set()

    async with AsyncPopConsumer(url, f"loop-{number}", topic, handle, concurrency=_HANDLERS, max_messages=_HANDLERS):
        try:
            await asyncio.wait_for(ended.wait(), _WITHIN_S)
        except TimeoutError as error:
            raise LoadError(f"{count - handled} of {count} messages are missing") from error
        rate = count / (time.perf_counter() - began)
    gc.unfreeze()
    return rate
