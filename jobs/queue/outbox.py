"""Messages on their way to other partitions: one commit for each destination, whatever the number of requests.

Each request belongs to an idempotent producer of its own, so sending it again, in this run or after a kill, stores it
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from deltamq.mq.errors import DeltaMQError
from deltamq.tables.delta.stamped import RowsPart, one_batch
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef
from deltamq.tables.settings import Flush

T = TypeVar("T")


class NotSent(msgspec.Struct, Generic[T], frozen=True):
    """Requests whose rows are not stored, or may not be."""

    tokens: Sequence[T]
    why: str


class _Waiting(msgspec.Struct, Generic[T]):
    batches: list[pa.RecordBatch] = msgspec.field(default_factory=list)
    parts: list[RowsPart] = msgspec.field(default_factory=list)
    tokens: list[T] = msgspec.field(default_factory=list)


class OutgoingRequests(Generic[T]):
    """Requests by destination; the caller's token identifies each request. For one thread."""

    def __init__(
        self,
        open_log: Callable[[PartitionRef], PartitionLog],
        *,
        after_append: str,
        fence_epochs: Callable[[PartitionRef], Mapping[str, int] | None],
        confirm: Callable[[PartitionLog, Sequence[RowsPart]], None],
    ) -> None:
        """`open_log` opens or creates a destination; `after_append` is the failpoint after each append.

        `fence_epochs` returns a destination's fences that the sender knows (see `tables.log.fences`); None if no
        fence concerns it.
        `confirm` raises if the destination's present content forbids the append (see `PartitionLog.append_rows`).
        """
        self._open = open_log
        self._after_append = after_append
        self._fence_epochs = fence_epochs
        self._confirm = confirm
        self._waiting: dict[PartitionRef, _Waiting[T]] = {}
        self.bytes = 0

    def add(self, ref: PartitionRef, rows: pa.RecordBatch, parts: Sequence[RowsPart], tokens: Sequence[T]) -> None:
        """Add requests, whose rows lie in `rows` one after another; `parts` and `tokens` have one item for each."""
        waiting = self._waiting.setdefault(ref, _Waiting())
        waiting.batches.append(rows)
        waiting.parts += parts
        waiting.tokens += tokens
        self.bytes += rows.nbytes

    def send(self) -> list[NotSent[T]]:
        """Append everything; return what failed. The outbox is empty afterwards in any case."""
        waiting, self._waiting, self.bytes = self._waiting, {}, 0
        return [failed for ref, requests in waiting.items() for failed in self._send(ref, requests)]

    def _send(self, ref: PartitionRef, waiting: _Waiting[T]) -> Iterator[NotSent[T]]:
        try:
            log = self._open(ref)
        except (DeltaMQError, OSError) as error:
            yield NotSent(waiting.tokens, _reason(error))
            return
        yield from self._append(log, one_batch(waiting.batches), waiting.parts, waiting.tokens)

    def _append(
        self, log: PartitionLog, rows: pa.RecordBatch, parts: Sequence[RowsPart], tokens: Sequence[T]
    ) -> Iterator[NotSent[T]]:
        try:
            log.append_rows(
                rows,
                parts,
                flush=Flush.SYNC,
                fence_epochs=self._fence_epochs(log.ref),
                confirm=lambda: self._confirm(log, parts),
            )
        except (DeltaMQError, OSError) as error:
            yield NotSent(tokens, _reason(error))
            return
        except (pa.ArrowException, ValueError, OverflowError) as error:
            # One of the messages is invalid: the others must not wait for it.
            if len(parts) == 1:
                yield NotSent(tokens, _reason(error))
                return
            half = len(parts) // 2
            at = sum(part.count for part in parts[:half])
            yield from self._append(log, rows.slice(0, at), parts[:half], tokens[:half])
            yield from self._append(log, rows.slice(at), parts[half:], tokens[half:])
            return
        failpoint(self._after_append)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
