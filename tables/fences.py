"""Fences: marks in a partition's log that stop writers who do not know something that is decided (SPEC META-2).

    fence "broker"   epoch of the broker's owner: a process that slept since before appends nothing more for it
    fence "route"    epoch of an expansion: from that commit on nobody appends by the route before it

A fence is a commit without rows: the `txn` action `mq.fence.<name>`, whose version is the epoch. A writer says what it
knows with each append. The check is made against the version that the append then beats: if a fence was faster, the
append loses the race for its version, reads the fence, and is refused. So in the log no row stands behind a fence that
its writer did not know of, whatever slept for how long.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mq.errors import Fenced
from tables.actions import encode_fence
from tables.clock import Clock
from tables.failpoints import failpoint
from tables.publish import Publisher

if TYPE_CHECKING:
    from tables.log import PartitionLog

__all__ = ["check_fences", "put_up_fence"]


def check_fences(fences: Mapping[str, int], known: Mapping[str, int], where: str) -> None:
    """Raise `Fenced` if a fence of the log `where` is newer than what its writer knows.

    `extra` of the error names the `fence` and its `epoch`.
    """
    for name, epoch in fences.items():
        if epoch > known.get(name, 0):
            raise Fenced(
                f"{where}: fence {name} is at epoch {epoch}, the writer knows {known.get(name, 0)}",
                extra={"fence": name, "epoch": epoch},
            )


def put_up_fence(log: PartitionLog, publisher: Publisher, clock: Clock, name: str, epoch: int) -> None:
    """Try it once, against the state that the log knows; its owner holds the append lock.

    Nothing is written if the fence is there. All before it, and it, are durable when this returns.

    Raises
    ------
    LostRace
        Somebody else committed first, and the log has caught up.
    Unknown
        It may be there; asking again is safe.
    """
    publisher.settle()
    if log.fences.get(name, 0) >= epoch:
        return
    batch_id = uuid.uuid4().hex
    now_ms = clock.wall_us() // 1000

    def encode(version: int) -> bytes:
        return encode_fence(
            table_id=log.table_id, version=version, batch_id=batch_id, name=name, epoch=epoch, now_ms=now_ms
        )

    failpoint("fence.before_commit")
    publisher.commit(encode, [], batch_id=batch_id, durable=True, began_ms=clock.boot_ms())
    failpoint("fence.after_commit")
