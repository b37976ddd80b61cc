"""Fences: marks in a partition's log that stop writers who do not know something that is decided (SPEC META-2).

    fence "broker"   epoch of the broker's owner: a process that slept since before appends nothing more for it
    fence "route"    epoch of an expansion: from that commit on nobody appends by the route before it
    fence "reset"    epoch of a group's reset, in its retries and dead letters: what was in flight before is appended no
                     more. It concerns only the writers that name it: those that bring back what was in flight

A fence is a commit without rows: the `txn` action `mq.fence.<name>`, whose version is the epoch. A writer says what it
knows with each append. The check is made against the version that the append then beats: if a fence was faster, the
append loses the race for its version, reads the fence, and is refused. So in the log no row stands behind a fence that
its writer did not know of, whatever slept for how long.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from mq.errors import Fenced
from tables.clock import Clock
from tables.delta import encode_fence
from tables.failpoints import failpoint
from tables.log.publish import Publisher
from tables.log.state import LogState

__all__ = ["ANY_EPOCH", "BROKER_FENCE", "RESET_FENCE", "ROUTE_FENCE", "check_fences", "put_up_fence"]

#: Put up by whoever takes a broker over, with its epoch as the owner.
BROKER_FENCE: Final = "broker"
#: Put up in a partition that gives logical partitions up, with the epoch of the expansion (SPEC ROUTE-6).
ROUTE_FENCE: Final = "route"
#: Its epochs are those of groups (`mq.meta.group.GroupsState.epoch`).
RESET_FENCE: Final = "reset"
#: What a writer says that it knows of a fence that does not concern it.
ANY_EPOCH: Final = 2**63 - 1
#: What a writer knows of fences that it does not name; nothing of all others.
_UNNAMED: Final = {RESET_FENCE: ANY_EPOCH}


def check_fences(fences: Mapping[str, int], known: Mapping[str, int], where: str) -> None:
    """Raise `Fenced` if a fence of the log `where` is newer than what its writer knows.

    `extra` of the error names the `fence` and its `epoch`.
    """
    for name, epoch in fences.items():
        if epoch > known.get(name, _UNNAMED.get(name, 0)):
            raise Fenced(
                f"{where}: fence {name} is at epoch {epoch}, the writer knows {known.get(name, 0)}",
                extra={"fence": name, "epoch": epoch},
            )


def put_up_fence(state: LogState, publisher: Publisher, clock: Clock, name: str, epoch: int) -> None:
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
    if state.fences.get(name, 0) >= epoch:
        return
    batch_id = uuid.uuid4().hex
    now_ms = clock.wall_us() // 1000

    def encode(version: int) -> bytes:
        return encode_fence(
            table_id=state.table_id, version=version, batch_id=batch_id, name=name, epoch=epoch, now_ms=now_ms
        )

    failpoint("fence.before_commit")
    publisher.commit(encode, [], batch_id=batch_id, durable=True, began_ms=clock.boot_ms())
    failpoint("fence.after_commit")
