"""The two groups that consume the flights, and the service's side: their accounts over REST.

| group     | its handler                                         | so                                               |
|-----------|-----------------------------------------------------|--------------------------------------------------|
| `tower`   | succeeds with everything                            | every message is acknowledged at once            |
| `repairs` | fails for some tails (a checksum), always      | their messages are dead after the third delivery |

One worker of `repairs` kills itself while it holds a batch, whose messages are delivered again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from deltamq.jobs.flights.child import JobFailed
from deltamq.jobs.flights.group_account import MAX_ATTEMPTS, GroupAccount
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.dead_letter_admin import DeadLetter
from deltamq.mq.wire.groups import GroupInfo, GroupPartition

#: Short, so that a message is a dead letter a few seconds after its first failure.
RETRY_WAIT_MS: Final = 1_000
INVISIBLE_MS: Final = 60_000
DEAD_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightGroup:
    """A group of this run."""

    name: str
    workers: int
    #: Whether its handler fails for some tails.
    fails: bool = False
    #: Whether its first worker kills itself, once.
    dies: bool = False


#: The groups with the names of their first run.
GROUPS: Final = (FlightGroup(name="tower", workers=1), FlightGroup(name="repairs", workers=2, fails=True, dies=True))


def fresh_groups(admin: Admin) -> tuple[FlightGroup, ...]:
    """Create the first missing pair of tower and repairs, tower-2 and repairs-2, ..."""
    taken = {name.lower() for name in admin.list_groups()}
    endings = ("" if n == 1 else f"-{n}" for n in count(1))
    ending = next(ending for ending in endings if not any(f"{group.name}{ending}" in taken for group in GROUPS))
    made = tuple(replace(group, name=f"{group.name}{ending}") for group in GROUPS)
    for group in made:
        admin.create_group(
            group.name,
            consume_strategy="shared",
            order=False,
            consume_from="first",
            max_attempts=MAX_ATTEMPTS,
            retry_policy={"fixed_ms": RETRY_WAIT_MS},
            invisible_ms=INVISIBLE_MS,
        )
    return made


def left_of(info: GroupInfo, topic: str) -> int | None:
    """Return the number of messages that wait for the group or are in flight; None before it has begun.

    A message whose lease has expired, but which the job `revive` has not processed yet, is in neither number; the
    tables have it.
    """
    partitions = _partitions(info, topic)
    if not partitions:
        return None
    return sum(_known(partition.lag, partition) + partition.in_flight for partition in partitions)


def served_group(admin: Admin, group: str, topic: str) -> GroupAccount:
    """Return a group's account by REST: its progress in the topic, and every dead letter."""
    info = admin.get_group(group)
    partitions = _partitions(info, topic)
    consumed = sum(partition.committed_offset or 0 for partition in partitions if not partition.retry)
    dead = list(_dead_letters(admin, group))
    distinct = len({_origin(letter) for letter in dead})
    left = left_of(info, topic)
    return GroupAccount(
        group=group,
        consumed=consumed,
        acknowledged=consumed - distinct,
        dead=len(dead),
        dead_distinct=distinct,
        dead_crc=sum(zlib.crc32(letter.payload) for letter in dead),
        retried=sum(_known(partition.end_offset, partition) for partition in partitions if partition.retry),
        left=0 if left is None else left,
    )


def _partitions(info: GroupInfo, topic: str) -> tuple[GroupPartition, ...]:
    return next((state.partitions for state in info.topics if state.topic == topic), ())


def _known(number: int | None, partition: GroupPartition) -> int:
    if number is None:
        raise JobFailed(f"the service cannot read {partition.partition}: see its log")
    return number


def _dead_letters(admin: Admin, group: str) -> Iterator[DeadLetter]:
    offset: int | None = 0
    while offset is not None:
        page = admin.dead_letters(group, limit=DEAD_PAGE, offset=offset)
        yield from page.messages
        offset = page.next_offset


def _origin(letter: DeadLetter) -> tuple[str | None, int | None]:
    return (letter.origin.partition, letter.origin.offset) if letter.origin is not None else (None, None)
