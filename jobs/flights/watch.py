"""The main job's threads, awaited by the main thread: only this thread gets Ctrl-C and notices a dead child."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from deltamq.jobs.flights.child import Child

LOOK_EVERY_S: Final = 0.1

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` in a thread that does not delay the exit of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def await_all(futures: Sequence[Future[Any]], children: Sequence[Child]) -> None:
    """Wait until all are done; raise the first error of a future, or of a dead child, as soon as it happens.

    Children are checked first: the death of the service explains a failed request to it.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=LOOK_EVERY_S)
        failed = [future for future in done if future.exception() is not None]
        if failed:
            # the process whose death caused the failure may not have ended yet: wait a moment
            wait(pending, timeout=LOOK_EVERY_S)
        for child in children:
            child.check()
        for future in failed:
            future.result()
