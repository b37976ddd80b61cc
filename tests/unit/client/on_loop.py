"""Clients on an event loop, used in tests as those with threads are: one table of cases for both shells."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from deltamq.mq.client.pull.consumer import AsyncPullConsumer

T = TypeVar("T")
#: No call of a test takes so long: this only makes a hang an error.
_HANG_S: Final = 120.0
#: Makes a client by its class and arguments.
InShell = Callable[..., Any]


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_HANG_S)

    def close(self) -> None:
        """End the loop; what still runs is cancelled."""
        self.run(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class OnLoop:
    """A client on an event loop whose calls wait for their results."""

    def __init__(self, loop: LoopThread, kind: Callable[..., Any], *args: Any, **options: Any) -> None:
        async def made() -> Any:
            client = kind(*args, **options)
            if isinstance(client, AsyncPullConsumer):  # one for threads begins when it is made
                await client.__aenter__()
            return client

        self._loop_thread = loop
        self._client = loop.run(made())

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return partial(self._call, value) if inspect.ismethod(value) or isinstance(value, partial) else value

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def called() -> Any:
            result = method(*args, **options)
            if inspect.isawaitable(result) and not isinstance(result, asyncio.Future):
                result = await result
            return _in_threads(result) if isinstance(result, asyncio.Future) else result

        return self._loop_thread.run(called())

    def __iter__(self) -> Iterator[Any]:
        rows = self._client.__aiter__()
        while True:
            try:
                yield self._call(rows.__anext__)
            except StopAsyncIteration:
                return

    def __enter__(self) -> OnLoop:
        self._call(self._client.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self._client.__aexit__, *error)


def _in_threads(future: asyncio.Future[Any]) -> Future[Any]:
    """Return a future for threads that ends as this one does."""
    copy: Future[Any] = Future()

    def end(ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        if error is None:
            copy.set_result(ended.result())
        else:
            copy.set_exception(error)

    future.add_done_callback(end)
    return copy
