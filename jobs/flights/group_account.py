"""A group that consumed a topic as few numbers: what must become of the events, and what the handlers saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from jobs.flights.account import Integers, body_crcs
from jobs.flights.replay import Ledger
from jobs.flights.tails import failing

__all__ = ["MAX_ATTEMPTS", "GroupAccount", "Held", "expected_account", "handled_account"]

#: A message of the flights' groups is delivered so often, then it is dead.
MAX_ATTEMPTS: Final = 3

#: A place as one number: partitions are few, and no offset of a run comes near it.
_OFFSETS: Final = 1 << 40

#: Messages that a worker held when it died: offsets by partition, where they first were.
Held = Mapping[str, Sequence[int]]


class GroupAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A group as one side knows it."""

    group: str
    #: Messages of the topic that the group is done with, one way or another.
    consumed: int
    #: Of these, the ones that some handler dealt with.
    acknowledged: int
    dead: int
    #: Dead letters by where they first were: a message that is dead twice shows as a difference.
    dead_distinct: int
    #: The sum of the CRC-32 of their bodies.
    dead_crc: int
    #: Deliveries after a message's first.
    retried: int
    #: Messages that wait, are out with a worker, or wait to be delivered again.
    left: int


def expected_account(group: str, ledger: Ledger, *, fails: bool, held: Held) -> GroupAccount:
    """Return what must become of the acknowledged events in a group.

    Parameters
    ----------
    fails
        Whether the group's handler fails for some tails; their events are delivered `MAX_ATTEMPTS` times.
    held
        What a worker of the group held when it died: the rest of it is delivered twice.
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
        Of each worker (`DELIVERIES_SCHEMA`).
    left
        Messages that the workers did not finish, or could not tell the service of.
    """
    rows = pa.concat_tables(deliveries)
    place = _places(rows)
    attempt = rows["attempt"].to_numpy()
    ok = rows["ok"].to_numpy()
    given_up = ~ok & (attempt >= MAX_ATTEMPTS)
    dead = np.unique(place[given_up])
    return GroupAccount(
        group=group,
        consumed=len(np.unique(place)),
        acknowledged=len(np.setdiff1d(place[ok], dead)),
        dead=int(given_up.sum()),
        dead_distinct=len(dead),
        dead_crc=int(rows["body_crc"].to_numpy()[given_up].sum()),
        retried=int((attempt > 1).sum()),
        left=left,
    )


def _places(rows: pa.Table) -> Integers:
    codes: Integers = rows["partition"].combine_chunks().dictionary_encode().indices.to_numpy()
    offsets: Integers = rows["offset"].to_numpy()
    places: Integers = codes.astype(np.int64) * _OFFSETS + offsets
    return places
