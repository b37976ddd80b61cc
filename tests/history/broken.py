"""Services that are broken on purpose: each breaks one promise, and a run against it must turn red (README.md).

    python -m tests.history.broken BUILD serve --warehouse ...

A checker that stays green on one of these would also stay green on a mistake of ours of that kind.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from deltamq.api.queue.handle_calls import Acking, HandleCalls
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.mq.client.cli.root import main
from deltamq.mq.meta import static_topics
from deltamq.mq.order.pull_lock import PullLocks
from deltamq.mq.producer import ProducerWindow
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.lane import Lane
from deltamq.mq.queue.ordered_pop import OrderedLane
from deltamq.mq.queue.progress import Committed
from deltamq.mq.static.logical_queue import LogicalQueue, SegmentOf
from deltamq.mq.static.mappings import QueueMapping, mappings_of
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.local import HEAD, LocalStore
from deltamq.tables.store.store import put_in_turn

__all__ = ["BUILDS", "program"]

_TOPICS: Final = "topics/"
_LATE_S: Final = 0.3


def program(build: str) -> tuple[str, ...]:
    """What to start instead of the command line."""
    return (sys.executable, "-m", "tests.history.broken", build)


def _is_commit(key: str) -> bool:
    """Whether it is a commit of messages: the first one only makes the table."""
    return key.startswith(_TOPICS) and key.endswith(".json") and not key.endswith(f"/{0:020}.json")


def _break(owner: object, name: str, instead: object) -> None:
    setattr(owner, name, instead)


def ack_before_commit() -> None:
    """Commits of topics are written a little after they were called written."""
    put = LocalStore.put_if_absent

    def late(self: LocalStore, key: str, data: bytes, *, durable: bool) -> bool:
        if not _is_commit(key):
            return put(self, key, data, durable=durable)
        threading.Timer(_LATE_S, lambda: put(self, key, data, durable=durable)).start()
        return True

    _break(LocalStore, "put_if_absent", late)
    _break(LocalStore, "put_commit", put_in_turn)


def blind_append() -> None:
    """A commit replaces any other commit of that version."""
    put = LocalStore.put_if_absent

    def blind(self: LocalStore, key: str, data: bytes, *, durable: bool) -> bool:
        if _is_commit(key) and self.exists(key):
            self.replace(key, data)
            return True
        return put(self, key, data, durable=durable)

    _break(LocalStore, "put_if_absent", blind)
    _break(LocalStore, "put_commit", put_in_turn)


def drop_last_commit() -> None:
    """A service that starts loses the newest commit of each topic's partition, with its second name."""
    warehouse = Path(sys.argv[sys.argv.index("--warehouse") + 1])
    for log in warehouse.glob("topics/*/*/_delta_log"):
        commits = sorted(log.glob("[0-9]*.json"))
        for path in (*commits[1:][-1:], log / HEAD):
            path.unlink(missing_ok=True)


def no_duplicate_window() -> None:
    """A repeated request is stored again."""
    _break(ProducerWindow, "find", lambda *_: None)


def fetch_skips() -> None:
    """Now and then an answer leaves a message out."""
    read = PartitionLog.read
    drawn = random.Random(0)

    def skipping(self: PartitionLog, offset: int, **limits: Any) -> Any:
        found = read(self, offset, **limits)
        rows = found.rows
        if found.status is FetchStatus.FOUND and rows.num_rows > 2 and drawn.random() < 0.2:
            return type(found)(found.status, rows.slice(1), found.next_offset, found.min_offset, found.max_offset)
        return found

    _break(PartitionLog, "read", skipping)


def deliver_without_lease() -> None:
    """A pop leaves its messages to the next pop, too."""
    read = Buffer.next_read
    drawn = random.Random(0)

    def again(self: Buffer, lane: Lane) -> tuple[int, int | None]:
        if drawn.random() < 0.2:
            lane.latest = lane.committed  # or the lane would notice that pops go back
        return read(self, lane)

    _break(Buffer, "next_read", again)


def ack_ignored() -> None:
    """Every third acknowledgement is answered, and nothing is done."""
    begin = HandleCalls.begin_ack
    asked = itertools.count(1)

    def ignoring(self: HandleCalls, group: str, handles: Sequence[str]) -> Acking:
        return Acking(handles) if next(asked) % 3 == 0 else begin(self, group, handles)

    _break(HandleCalls, "begin_ack", ignoring)


def order_ignored() -> None:
    """Messages of one key are given away without waiting for each other."""
    add = KeyedPop._add

    def adding(self: KeyedPop, offset: int, key: Any) -> None:
        add(self, offset, None)

    _break(KeyedPop, "_add", adding)


def leases_forgotten() -> None:
    """A process that begins to serve a lane in order counts on, but gives away at once what clients have."""
    begin = OrderedLane.__init__

    def beginning(self: OrderedLane, start: Committed, *, max_attempts: int | None) -> None:
        begin(self, start, max_attempts=max_attempts)
        for flight in self.flights.values():
            flight.visible_ms = 0

    _break(OrderedLane, "__init__", beginning)


def locks_for_all() -> None:
    """Everybody gets every pull lock, and may pull and commit."""
    _break(PullLocks, "take", lambda self, lane, client, *_, **__: 1)
    _break(PullLocks, "pull", lambda *_: None)
    _break(PullLocks, "check_commit", lambda *_, **__: None)


def moves_ignored() -> None:
    """After an expansion nobody waits for what a key has in its old partition."""

    async def nothing(*_: Any, **__: Any) -> None:
        """Let the group have all messages."""

    _break(MovedProgress, "blocked", nothing)


def undecided_as_zero() -> None:
    """A segment whose logical offset is not decided yet, which takes a little longer, is shown as if it began at 0."""
    fence = PartitionLog.fence

    def late(self: PartitionLog, name: str, epoch: int) -> int:
        if name == ROUTE_FENCE:
            threading.Event().wait(_LATE_S)
        return fence(self, name, epoch)

    def shown(self: SegmentOf, offset: int) -> int:
        return max(self.segment.logic_offset, 0) + offset

    _break(PartitionLog, "fence", late)
    _break(SegmentOf, "shown", shown)


def two_leaders() -> None:
    """A remapping records the end of the old leader, and does not close it."""
    fence = PartitionLog.fence

    def open_still(self: PartitionLog, name: str, epoch: int) -> int:
        return self.end_offset if name == ROUTE_FENCE else fence(self, name, epoch)

    _break(PartitionLog, "fence", open_still)


def sealed_short() -> None:
    """A remapping records an end of the old leader that lies before its last message."""
    fence = PartitionLog.fence

    def short(self: PartitionLog, name: str, epoch: int) -> int:
        end = fence(self, name, epoch)
        return max(0, end - 1) if name == ROUTE_FENCE else end

    _break(PartitionLog, "fence", short)


def lost_copy() -> None:
    """A remapping hands the new leader no more than the newest two segments."""
    store = mappings_of

    def forgetting(queues: Iterable[LogicalQueue], brokers: Iterable[str], epoch: int) -> dict[str, QueueMapping]:
        return store([LogicalQueue(queue.index, queue.segments[-2:]) for queue in queues], brokers, epoch)

    _break(static_topics, "mappings_of", forgetting)


#: What each build breaks, by its name.
BUILDS: Final[dict[str, Callable[[], None]]] = {
    "ack-before-commit": ack_before_commit,
    "blind-append": blind_append,
    "drop-last-commit": drop_last_commit,
    "no-duplicate-window": no_duplicate_window,
    "fetch-skips": fetch_skips,
    "deliver-without-lease": deliver_without_lease,
    "ack-ignored": ack_ignored,
    "order-ignored": order_ignored,
    "leases-forgotten": leases_forgotten,
    "locks-for-all": locks_for_all,
    "moves-ignored": moves_ignored,
    "undecided-as-zero": undecided_as_zero,
    "two-leaders": two_leaders,
    "sealed-short": sealed_short,
    "lost-copy": lost_copy,
}

if __name__ == "__main__":
    BUILDS[sys.argv.pop(1)]()
    main()
