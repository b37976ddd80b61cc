"""A worker of a group in a process of its own: takes messages through the SDK's `PopConsumer`, as Arrow tables.

It gets its task as a JSON line on standard input, and prints a JSON line for each event:

    Task -->                        --> Started
            ... messages ...        --> Dying     (only the worker that is to die: the messages it holds, then SIGKILL)
    stop -->                        --> Closed    (its deliveries are in the file that the task names)

Messages that a dead worker held are delivered again, to any worker of its group, when their invisible time is over.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.flights.account import body_crcs
from deltamq.jobs.flights.group_account import failing
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import Result
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.errors import DeltaMQError

#: For the worker that will die: the shortest invisible time that the service allows by default.
DYING_INVISIBLE_MS: Final = 10_000
#: On a machine that is busy with Spark's start, an answer may take long; messages of a lost answer are delivered again.
PATIENCE: Final = Patience(request_timeout_s=60, timeout_s=120)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a worker."""

    url: str
    group: str
    topic: str
    #: Whether the handler fails for some tails.
    fails: bool
    #: Whether the process kills itself in its first batch.
    dies: bool
    #: The file to which the deliveries are written at the end.
    file: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """The worker has begun to consume."""


class Dying(msgspec.Struct, frozen=True, tag=True):
    """The worker is about to kill itself; it holds these offsets, by partition."""

    held: dict[str, list[int]]


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The worker has ended normally; `left` messages were not finished, or their outcome could not be reported."""

    left: int


Word = Started | Dying | Closed


class _Handler:
    def __init__(self, task: Task) -> None:
        self._task = task
        self.deliveries: list[pa.Table] = []

    def __call__(self, rows: pa.Table) -> list[Result] | None:
        bad = failing(rows["key"]) if self._task.fails else np.zeros(len(rows), dtype=np.bool_)
        noted = deliveries_of(rows, ~bad)
        if self._task.dies:
            _die(noted)
        self.deliveries.append(noted)
        return [Result.RETRY if failed else Result.OK for failed in bad.tolist()] if bad.any() else None


def main() -> None:
    """Work until standard input has a line "stop" or ends; exit with an error if the service refuses for good."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # On SIGTERM it does not wait for answers: unacknowledged messages are delivered again.
    signal.signal(signal.SIGTERM, _leave)
    line = sys.stdin.readline()
    if not line:
        return
    task = msgspec.json.decode(line, type=Task)
    handler = _Handler(task)
    consumer = PopConsumer(
        task.url,
        task.group,
        task.topic,
        handler,
        concurrency=1,
        format="arrow",
        # One batch is handled while the next is fetched; a worker that dies must hold exactly the messages that it
        # names.
        prefetch=0 if task.dies else 1,
        invisible_ms=DYING_INVISIBLE_MS if task.dies else None,
        patience=PATIENCE,
    )
    threading.Thread(target=_await_stop, args=(consumer,), name="stdin", daemon=True).start()
    _say(Started())
    try:
        consumer.run()
    except DeltaMQError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    closed = consumer.close()
    write_deliveries(handler.deliveries, Path(task.file))
    _say(Closed(left=closed.unfinished + closed.untold))


def _await_stop(consumer: PopConsumer) -> None:
    sys.stdin.readline()
    consumer.stop()


def _die(noted: pa.Table) -> None:
    held: dict[str, list[int]] = {}
    for partition, offset in zip(noted["partition"].to_pylist(), noted["offset"].to_pylist(), strict=True):
        held.setdefault(partition, []).append(offset)
    _say(Dying(held))
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # this thread does nothing after the kill


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _say(word: Word) -> None:
    print(msgspec.json.encode(word).decode(), flush=True)


# The messages that the handlers got, with their verdicts: one row for each delivery. A message is identified by its
# origin, the partition and offset where it was stored first.


DELIVERIES_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("attempt", pa.int32()),
        # The handler's verdict.
        pa.field("ok", pa.bool_()),
        # The CRC-32 of the body of a failed message; its dead letter must have the same.
        pa.field("body_crc", pa.int64()),
    ]
)


def deliveries_of(rows: pa.Table, ok: NDArray[np.bool_]) -> pa.Table:
    """Return one delivery for each popped row."""
    crcs = np.zeros(len(rows), dtype=np.int64)
    crcs[~ok] = body_crcs(rows["body"].filter(pa.array(~ok)))
    origin = rows["origin"].combine_chunks()
    columns = [
        pc.coalesce(pc.struct_field(origin, "partition"), rows["partition"]),
        pc.coalesce(pc.struct_field(origin, "offset"), rows["offset"]),
        rows["delivery_attempt"],
        pa.array(ok),
        pa.array(crcs),
    ]
    return pa.table(columns, schema=DELIVERIES_SCHEMA)


def write_deliveries(parts: Sequence[pa.Table], file: Path) -> None:
    """Write the deliveries of one worker, batches of `DELIVERIES_SCHEMA`, as an Arrow file."""
    with pa.ipc.new_file(file, DELIVERIES_SCHEMA) as sink:
        for part in parts:
            sink.write_table(part)


def read_deliveries(file: Path) -> pa.Table:
    """Return the deliveries that `write_deliveries` wrote."""
    with pa.ipc.open_file(file) as source:
        return source.read_all()


if __name__ == "__main__":
    main()
