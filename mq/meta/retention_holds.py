"""Retention: which files of a partition may be removed, and what holds them back (SPEC RETRY-6, POP-11).

    files, oldest first     [0, 400) 5 days old    [400, 900) 4 days    [900, 950) 1 day       kept for 3 days
    holds                   an open checkpoint of group billing at 620
    verdict                 the file that ends at 400 is removed; billing keeps the next one

Whole files are removed, oldest first, so that the rest has no gaps. A file is removed when its newest message is older
than the retention time, and when nothing holds an offset in it or before it. Ages follow from the append times of the
log, which never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from deltamq.mq.meta.group import GroupsState
from deltamq.mq.queue.checkpoint import LaneKey, indexes
from deltamq.mq.queue.progress import Bounds, Committed, Start, StartKind, lag_messages
from deltamq.mq.queue.revive import Life, life_of
from deltamq.mq.queue.revive_log import CheckpointState


class Dated(NamedTuple):
    """A file: its end offset, and the time from which it ages, in UTC microseconds."""

    end: int
    time_us: int
    #: The bytes of the files behind it, where their sum matters.
    bytes_behind: int = 0


class Hold(msgspec.Struct, frozen=True):
    """A hold on all messages at or above `offset`; `who` is the group or the part of the system that needs them."""

    offset: int
    who: str


class Removal(msgspec.Struct, frozen=True):
    """The decision for one partition."""

    #: Files that end at or below this offset may be removed.
    below: int
    #: The holders of files that are old enough to be removed.
    held_by: tuple[str, ...] = ()


def is_old(file: Dated, now_us: int, keep_ms: int, keep_bytes: int | None = None) -> bool:
    """Return whether all messages of a file have been kept long enough, or enough bytes are kept without it."""
    if keep_bytes is not None and file.bytes_behind >= keep_bytes:
        return True
    return file.time_us + keep_ms * 1_000 <= now_us


def decide_removal(
    files: Iterable[Dated], *, now_us: int, keep_ms: int, keep_bytes: int | None = None, holds: Iterable[Hold] = ()
) -> Removal:
    """Return what may be removed of a partition, given its files, oldest first; stops at the first that is too new.

    With `keep_bytes` files also go while as many bytes stay behind them.
    """
    holds = tuple(holds)
    limit = min((hold.offset for hold in holds), default=None)
    below = expired = 0
    for file in files:
        if not is_old(file, now_us, keep_ms, keep_bytes):
            break
        expired = file.end
        if limit is None or file.end <= limit:
            below = file.end
    return Removal(below, tuple(sorted({hold.who for hold in holds if hold.offset < expired})))


class Lag(msgspec.Struct, frozen=True):
    """The lag of a group in a partition: the number of stored messages that it has not committed."""

    group: str
    messages: int


#: The progress of groups in their current epochs, by topic id and lane.
Progress = Mapping[str, Mapping[LaneKey, Committed]]
#: The groups that consume a topic, with the progress of each in one partition; None where a group has not begun.
Readers = Mapping[str, Committed | None]


def progress_of(committed: Mapping[LaneKey, Committed], groups: GroupsState) -> Progress:
    """Return the progress of the current groups, from the offsets log and the resets."""
    progress: dict[str, dict[LaneKey, Committed]] = {}
    for lane in {*committed, *groups.resets}:
        known = groups.committed_in(lane, committed.get(lane)) if groups.find(lane.group) is not None else None
        if known is not None:
            progress.setdefault(lane.topic_id, {})[lane] = known
    return progress


def readers_of(progress: Progress, *, topic_id: str, partition: str) -> Readers:
    """Return the groups that consume a topic, with their progress in one partition of it."""
    readers: dict[str, Committed | None] = {}
    for lane, known in progress.get(topic_id, {}).items():
        if lane.retry:
            continue
        if lane.partition == partition:
            readers[lane.group] = known
        else:
            readers.setdefault(lane.group, None)
    return readers


def group_holds(readers: Readers, start_of: Callable[[str], Start]) -> Iterator[Hold]:
    """Yield holds on what the groups have not committed yet, for a retention that must wait for groups.

    A group that has not begun in the partition holds all of it, unless it begins at the end: `start_of` returns where
    (see `GroupsState.start_in`).
    """
    for name, known in readers.items():
        if known is not None:
            yield Hold(known.offset, name)
        elif start_of(name).kind is not StartKind.LAST:
            yield Hold(0, name)


def checkpoint_holds(states: Iterable[CheckpointState], groups: GroupsState, *, topic_id: str | None) -> Iterator[Hold]:
    """Yield holds on messages that were popped and are still open: revive must be able to read them (POP-11).

    `topic_id` is the id of the current topic. Checkpoints of earlier lives hold nothing, because their messages are not
    delivered again.
    """
    for state in states:
        if state.checkpoint is None or not state.open:
            continue
        pop = state.checkpoint.pop
        group = groups.groups.get(pop.group)
        life = life_of(
            state.checkpoint,
            topic_id=topic_id,
            epoch=groups.epoch_of(pop.lane),
            group_epoch=None if group is None else group.epoch,
        )
        if life is Life.PRESENT:
            yield Hold(state.checkpoint.span.offset_of(next(indexes(state.open))), pop.group)


def lease_holds(readers: Readers, *, now_ms: int, keep_ms: int) -> Iterator[Hold]:
    """Yield holds on messages of ordered pops that are not done: the next pop delivers or dead-letters them (POP-16).

    They are read again from their own place, not from the group's retries (POP-11). So they are kept after the end of
    their lease for as long as they would be kept there: a group without clients holds nothing for ever.
    """
    for name, known in readers.items():
        open_ = [lease.offset for lease in known.delivered if lease.visible_ms + keep_ms > now_ms] if known else []
        if open_:
            yield Hold(min(open_), name)


def lags_of(readers: Readers, bounds: Bounds) -> tuple[Lag, ...]:
    """Return the lag of each group in a partition, the largest first; groups without lag are left out."""
    lags = [
        Lag(group, lag_messages(None if known is None else known.offset, bounds)) for group, known in readers.items()
    ]
    return tuple(sorted((lag for lag in lags if lag.messages), key=lambda lag: (-lag.messages, lag.group)))
