"""Producers of the SDK, of both shells: tasks of one event loop, and threads, that wait for each send."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeAlias

from deltamq import AsyncProducer, DeltaMQError, Producer, Sent
from deltamq.mq.client.shells.shell import run_now
from tests.history.checker.record import Recorder
from tests.history.clients.bodies import body_of, draw_size

__all__ = ["SdkSenders"]

_KEYS: Final = 4
#: How many of a hundred sends of a task are given up, and after how long at most.
_GIVEN_UP_PERCENT: Final = 3
_GIVEN_UP_S: Final = 0.05

Send: TypeAlias = Callable[[str, bytes, str | None], Awaitable[Sent]]
Pause: TypeAlias = Callable[[float], Awaitable[None]]


class SdkSenders(threading.Thread):
    """One producer and those who send with it, each with keys of its own."""

    def __init__(
        self,
        urls: Sequence[str],
        recorder: Recorder,
        topic: str,
        seed: int,
        stop: threading.Event,
        *,
        shell: Literal["loop", "threads"],
        senders: int = 3,
        pause_s: float = 0.02,
        patience_s: float = 60.0,
    ) -> None:
        super().__init__(name=f"sdk-senders-{shell}", daemon=True)
        self._urls, self._topic, self._recorder = list(urls), topic, recorder
        self._drawn = [random.Random(f"{seed} {shell} {number}") for number in range(senders)]
        self._stopping, self._shell, self._pause_s = stop, shell, pause_s
        self._options: dict[str, Any] = {"timeout_s": patience_s, "first_wait_ms": 20, "wait_ms_max": 200}
        #: Sends that were acknowledged.
        self.answered = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            if self._shell == "loop":
                asyncio.run(self._on_a_loop())
            else:
                self._in_threads()
        except BaseException as error:
            self.failure = error

    async def _on_a_loop(self) -> None:
        async with AsyncProducer(self._urls, **self._options) as producer:

            async def send(id_: str, body: bytes, key: str | None) -> Sent:
                return await producer.send(self._topic, body, key=key, message_id=id_)

            await asyncio.gather(*(self._sends(drawn, send, asyncio.sleep, gives_up=True) for drawn in self._drawn))

    def _in_threads(self) -> None:
        with Producer(self._urls, **self._options) as producer, ThreadPoolExecutor(len(self._drawn)) as threads:

            async def send(id_: str, body: bytes, key: str | None) -> Sent:
                return producer.send(self._topic, body, key=key, message_id=id_)

            async def pause(seconds: float) -> None:
                time.sleep(seconds)

            runs = [threads.submit(run_now, self._sends(drawn, send, pause, gives_up=False)) for drawn in self._drawn]
            for run in runs:
                run.result()

    async def _sends(self, drawn: random.Random, send: Send, pause: Pause, *, gives_up: bool) -> None:
        process, count = self._recorder.process(), 0
        while not self._stopping.is_set():
            id_, count = f"{process}-{count:06d}", count + 1
            body, key = body_of(id_, draw_size(drawn)), self._key(process, drawn)
            with self._recorder.begin(
                process,
                "send",
                topic=self._topic,
                ids=[id_],
                keys=[key],
                crcs=[zlib.crc32(body)],
                partition=None,
                producer=str(process),
                due=None,
            ) as op:
                try:
                    if gives_up and drawn.randrange(100) < _GIVEN_UP_PERCENT:
                        async with asyncio.timeout(drawn.uniform(0, _GIVEN_UP_S)):
                            sent = await send(id_, body, key)
                    else:
                        sent = await send(id_, body, key)
                except TimeoutError:
                    op.info(error="given up")
                    process = self._recorder.process()
                except DeltaMQError as error:
                    if error.outcome == "not_stored":
                        op.fail(error=error.code)
                    else:
                        op.info(error=error.code)
                        process = self._recorder.process()
                else:
                    op.ok(placed=[(sent.partition, sent.offset)])
                    self.answered += 1
            await pause(drawn.uniform(0, self._pause_s))

    def _key(self, process: int, drawn: random.Random) -> str | None:
        return f"{process}.{drawn.randrange(_KEYS)}" if drawn.random() < 0.9 else None
