"""The account of a group that consumed a topic: the expected account, and the account of the workers' handlers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.jobs.flights.account import Integers, body_crcs
from deltamq.jobs.flights.replay import Ledger

#: The number of deliveries after which a message of the flights' groups is a dead letter.
MAX_ATTEMPTS: Final = 3

#: Codes (partition, offset) as one number: partitions are few, and no offset of a run comes near this factor.
_OFFSETS: Final = 1 << 40

#: Messages that a worker held when it died: offsets of their origins by partition.
Held = Mapping[str, Sequence[int]]


class GroupAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A group as seen by one side."""

    group: str
    #: Messages of the topic that are acknowledged or dead letters.
    consumed: int
    #: Consumed messages that a handler has processed.
    acknowledged: int
    dead: int
    #: Distinct origins of dead letters: a message with two dead letters shows as a difference.
    dead_distinct: int
    #: The sum of the CRC-32 of the dead letters' bodies.
    dead_crc: int
    #: Deliveries after a message's first.
    retried: int
    #: Messages that wait, are in flight, or wait for redelivery.
    left: int


def expected_account(group: str, ledger: Ledger, *, fails: bool, held: Held) -> GroupAccount:
    """Return the account that a group must have after all acknowledged events.

    Parameters
    ----------
    fails
        Whether the group's handler fails for some tails, whose events are delivered `MAX_ATTEMPTS` times.
    held
        The messages that a worker of the group held when it died; messages that do not fail are delivered twice.
    """
    events = ledger.events
    bad = failing(events["key"]) if fails else np.zeros(len(events), dtype=np.bool_)
    dead = int(bad.sum())
    lost = ledger.rows_at(held)
    return GroupAccount(
        group=group,
        consumed=len(events),
        acknowledged=len(events) - dead,
        dead=dead,
        dead_distinct=dead,
        dead_crc=int(body_crcs(events["body"].filter(bad)).sum()),
        retried=(MAX_ATTEMPTS - 1) * dead + int((~bad[lost]).sum()),
        left=0,
    )


def handled_account(group: str, deliveries: Sequence[pa.Table], *, left: int) -> GroupAccount:
    """Return the account of a group's handlers.

    Parameters
    ----------
    deliveries
        The deliveries of each worker (`DELIVERIES_SCHEMA`).
    left
        Messages that the workers did not finish, or whose outcome they could not report to the service.
    """
    rows = pa.concat_tables(deliveries)
    message_codes = _message_codes(rows)
    attempt = rows["attempt"].to_numpy()
    ok = rows["ok"].to_numpy()
    given_up = ~ok & (attempt >= MAX_ATTEMPTS)
    dead = np.unique(message_codes[given_up])
    return GroupAccount(
        group=group,
        consumed=len(np.unique(message_codes)),
        acknowledged=len(np.setdiff1d(message_codes[ok], dead)),
        dead=int(given_up.sum()),
        dead_distinct=len(dead),
        dead_crc=int(rows["body_crc"].to_numpy()[given_up].sum()),
        retried=int((attempt > 1).sum()),
        left=left,
    )


def _message_codes(rows: pa.Table) -> Integers:
    codes: Integers = rows["partition"].combine_chunks().dictionary_encode().indices.to_numpy()
    offsets: Integers = rows["offset"].to_numpy()
    numbers: Integers = codes.astype(np.int64) * _OFFSETS + offsets
    return numbers


# The aircraft for which the group `repairs` fails: about 1 in 1,000, by a checksum of the tail number.


ONE_IN: Final = 1_000
REMAINDER: Final = 13


def fails(tail: str | None) -> bool:
    """Return whether the repair of this aircraft fails, at every attempt; without a tail number it never does."""
    return tail is not None and zlib.crc32(tail.encode()) % ONE_IN == REMAINDER


def failing(tails: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each row whether the repair of its aircraft fails; each tail is computed once."""
    coded = tails.combine_chunks().dictionary_encode()
    # the additional last item is for rows without a tail number, whose index is -1
    known = np.array([fails(tail) for tail in (*coded.dictionary.to_pylist(), None)], dtype=np.bool_)
    codes: NDArray[np.int32] = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return known[codes]


class GroupsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that are left for each group, by the tables."""

    #: Messages that are stored and not committed, or in flight; None before the group's first commit is merged.
    left: dict[str, int | None]
    #: Whether `left` may have changed during the look, or checkpoints are not merged yet.
    moving: bool

    @property
    def nothing(self) -> bool:
        """Whether certainly nothing is left."""
        return not self.moving and all(count == 0 for count in self.left.values())

    def __str__(self) -> str:
        words = [f"{group} {'not begun' if left is None else f'{left:,} left'}" for group, left in self.left.items()]
        return "; ".join(words) + (", not all merged yet" if self.moving else "")
