"""Helpers of tests of the metadata log: decisions, a store that loses answers, racing writers, and a kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from deltamq.mq.errors import Unknown
from deltamq.mq.meta.topics import Event, MetaState, decide_delete_topic
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.store.store import MemoryStore
from tests.forked import SERVER

__all__ = ["AB", "ForgetfulStore", "Open", "delete", "killed", "race"]

AB = ("broker-a", "broker-b")
Open = Callable[[], MetaLog]


def delete(name: str) -> Callable[[MetaState], tuple[Event, ...]]:
    return lambda state: decide_delete_topic(state, name)


class ForgetfulStore(MemoryStore):
    """A store that stores, and then fails `lost` calls in a row as unknown: the put, and the reads that look it up."""

    lost = 0

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        won = super().put_if_absent(key, data, durable=durable)
        self._forget()
        return won

    def _forget(self) -> None:
        if self.lost > 0:
            self.lost -= 1
            raise Unknown

    def read(self, key: str) -> pa.Buffer:
        self._forget()
        return super().read(key)


def race(write: Callable[[int], None], writers: int) -> None:
    """Call `write` in `writers` threads at the same moment, each with its number."""
    failures: list[BaseException] = []
    start = threading.Barrier(writers)

    def run(writer: int) -> None:
        try:
            start.wait()
            write(writer)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


_END_S: Final = 60


def killed(target: Callable[..., None], *arguments: str) -> None:
    """Run `target`, a module's function that arms a failpoint, in a process that is killed there."""
    process = SERVER.Process(target=target, args=arguments)
    process.start()
    process.join(_END_S)
    assert process.exitcode == -signal.SIGKILL
