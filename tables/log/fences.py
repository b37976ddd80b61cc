"""Fences: marks in a partition's log that stop writers that do not know of a decision (SPEC META-2).

    fence "broker"   epoch of the broker's owner: an earlier owner that slept appends nothing more
    fence "route"    epoch of an expansion: after this commit no writer appends by the earlier route
    fence "reset"    epoch of a group's reset, in its retries and dead letters: what was in flight before the reset is
                     not appended any more. It binds only writers that name it, which deliver messages again

A fence is a commit without rows: the `txn` action `mq.fence.<name>`, whose version is the epoch. With each append a
writer gives the epochs that it knows. They are checked against the version that the append must follow: if a fence was
faster, the append loses the race for its version, reads the fence, and is refused. So no row in the log lies behind a
fence that its writer did not know of, however long the writer slept.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from deltamq.mq.errors import Fenced
from deltamq.tables.clock import Clock
from deltamq.tables.delta.actions import NewCommit, encode_fence
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.publish import Publisher
from deltamq.tables.log.state import LogState

#: The fence that a process puts up when it takes a broker over, with its epoch as the owner.
BROKER_FENCE: Final = "broker"
#: The fence in a partition that gives up logical partitions, with the epoch of the expansion (SPEC ROUTE-6).
ROUTE_FENCE: Final = "route"
#: The fence of a reset; its epochs are the groups' epochs (`mq.meta.group.GroupsState.epoch`).
RESET_FENCE: Final = "reset"
#: The epoch that a writer gives for a fence that does not concern it.
ANY_EPOCH: Final = 2**63 - 1
#: The epochs assumed for fences that a writer does not name; 0 for all others.
_UNNAMED: Final = {RESET_FENCE: ANY_EPOCH}


def check_fences(fences: Mapping[str, int], fence_epochs: Mapping[str, int], where: str) -> None:
    """Raise `Fenced` if a fence of the log `where` has a newer epoch than its writer knows.

    `extra` of the error names the `fence` and its `epoch`.
    """
    for name, epoch in fences.items():
        if epoch > fence_epochs.get(name, _UNNAMED.get(name, 0)):
            raise Fenced(
                f"{where}: fence {name} is at epoch {epoch}, the writer knows {fence_epochs.get(name, 0)}",
                extra={"fence": name, "epoch": epoch},
            )


async def put_up_fence(state: LogState, publisher: Publisher, clock: Clock, name: str, epoch: int) -> None:
    """Try to put up a fence once, against the newest known state of the log; the log's owner holds the append lock.

    Nothing is written if the fence is there. The fence and all commits before it are durable when this returns.

    Raises
    ------
    LostRace
        Another writer committed first, and the log's state includes the other commit.
    Unknown
        The fence may be there; calling again is safe.
    """
    await publisher.sync_earlier()
    if state.fences.get(name, 0) >= epoch:
        return
    batch_id = uuid.uuid4().hex
    now_ms = clock.wall_us() // 1000

    def encode(version: int) -> NewCommit:
        return encode_fence(
            table_id=state.table_id, version=version, batch_id=batch_id, name=name, epoch=epoch, now_ms=now_ms
        )

    failpoint("fence.before_commit")
    await publisher.commit(encode, [], batch_id=batch_id, durable=True, began_ms=clock.boot_ms())
    failpoint("fence.after_commit")
