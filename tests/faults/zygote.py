"""Dozens of writer processes: the zygote imports everything once and forks a writer for each order.

A writer appends numbered requests of one idempotent producer to one partition and notes each acknowledgement in a
file of its own, by one system call, so that a kill -9 right after it loses no note. The bodies identify each message:
`<producer>/<sequence>/<index>`.

    python -m tests.faults.zygote        orders on stdin, answers on stdout, one JSON document a line
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from deltamq.mq.errors import DeltaMQError
from deltamq.tables import failpoints
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from tests.rows import REF, batch

__all__ = ["Ack", "Order", "Zygote", "acks_of", "bodies_of", "zygote"]

_ROOT: Final = Path(__file__).parents[2]
_ANSWER_S: Final = 60
#: Seconds for which a writer repeats a request before it gives up.
_PATIENCE_S: Final = 90.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The order to a writer: requests `[first, first + count)` of `producer`, of the `messages` sizes in turn."""

    folder: str
    producer: str
    acks: str
    first: int = 0
    count: int = 1_000_000
    messages: tuple[int, ...] = (1,)
    failpoints: str = ""
    maintain_every: int = 4
    #: Number of messages to retain after each request; -1 keeps everything.
    keep: int = -1
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class Ack(msgspec.Struct, frozen=True):
    """The answer to one request of a writer, with its time."""

    producer: str
    seq: int
    messages: int
    base_offset: int
    duplicate: bool


def bodies_of(producer: str, seq: int, messages: int) -> list[bytes]:
    """Return the bodies of one request."""
    return [f"{producer}/{seq}/{i}".encode() for i in range(messages)]


def acks_of(path: Path) -> list[Ack]:
    """Return the notes of a writer, without a last line that a kill cut off."""
    raw = path.read_bytes() if path.exists() else b""
    return [Ack(*json.loads(line)) for line in raw.split(b"\n")[:-1]]


class Zygote:
    """The test's side of the process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, order: Order) -> int:
        """Fork a writer; return its process id."""
        return int(self._ask("start", msgspec.structs.asdict(order)))

    def wait(self, pid: int) -> int:
        """Wait for a writer to end; return its exit code, negative for a signal."""
        return int(self._ask("wait", pid))

    def wait_until_stopped(self, pid: int) -> None:
        """Wait until a writer has stopped itself (or ended, which fails)."""
        assert self._ask("wait_until_stopped", pid), "the writer ended before it came to its failpoint"

    def kill(self, pid: int) -> None:
        """Kill a writer with SIGKILL, and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def run(self, order: Order) -> int:
        """Start a writer and wait for it to end; return its exit code."""
        return self.wait(self.start(order))

    def close(self) -> None:
        """End the process that forks; writers must have ended before."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_ANSWER_S)
        self._process.stdout.close()

    def _ask(self, what: str, value: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, value]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the zygote died"
        return json.loads(line)


@contextmanager
def zygote() -> Iterator[Zygote]:
    """Run a zygote until the block ends."""
    found = Zygote()
    try:
        yield found
    finally:
        found.close()


# The process that forks.


def _serve() -> None:
    for line in sys.stdin:
        what, value = json.loads(line)
        if what == "start":
            answer: object = _fork(Order(**value))
        elif what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(value, 0)[1])
        else:
            answer = os.WIFSTOPPED(os.waitpid(value, os.WUNTRACED)[1])
        print(json.dumps(answer), flush=True)


def _fork(order: Order) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _write(order)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def _write(order: Order) -> None:
    warehouse = Warehouse.open(order.folder, settings=LogSettings(**order.settings))
    log = warehouse.create(REF)
    notes = os.open(order.acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # Armed only now, because opening the log passes failpoints, too.
    failpoints.arm(order.failpoints)
    for seq in range(order.first, order.first + order.count):
        base, duplicate = _send(log, order, seq)
        note = json.dumps([order.producer, seq, _size(order, seq), base, duplicate])
        os.write(notes, f"{note}\n".encode())
        if order.keep >= 0:
            with contextlib.suppress(DeltaMQError, FailpointHit):
                log.delete_below(log.end_offset - order.keep)
        if seq % order.maintain_every == 0:
            # Failed upkeep is repeated next time; no request depends on it.
            with contextlib.suppress(DeltaMQError, FailpointHit):
                log.maintain()
    warehouse.close()


def _size(order: Order, seq: int) -> int:
    return order.messages[seq % len(order.messages)]


def _send(log: PartitionLog, order: Order, seq: int) -> tuple[int, bool]:
    """Repeat the request until it is acknowledged, as a client does."""
    request = batch(*bodies_of(order.producer, seq, _size(order, seq)), producer=order.producer, seq=seq)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            result = log.append([request])[0]
        except (DeltaMQError, FailpointHit):
            if time.monotonic() > deadline:
                raise
            continue
        return result.base_offset, result.duplicate


if __name__ == "__main__":
    _serve()
