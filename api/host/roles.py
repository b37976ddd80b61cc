"""The roles of one life of a service process: begun, served, passed on, lost.

    ours --taken, gained: fence, recover--> served --+--> another's: lost, its state in memory is void
                                                     '--> closing --drained: stored--> passed on

Hooks are called when a role changes: every part of the service that keeps state for a broker or the meta role has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from deltamq.mq.errors import DeltaMQError

log = logging.getLogger("deltamq.api")

#: Seconds after which a role that could not be begun is tried again.
_BEGIN_AGAIN_S: Final = 0.5
#: Seconds for which a broker that is passed on still answers requests under way.
_CLOSE_S: Final = 0.2

_Taken: TypeAlias = Callable[[Mapping[str, int]], Awaitable[None]]
_Gained: TypeAlias = Callable[[str, int], Awaitable[None]]
_Served: TypeAlias = Callable[[str], None]
_Drained: TypeAlias = Callable[[str], Awaitable[None]]
_Lost: TypeAlias = Callable[[str], None]


class Hooks(msgspec.Struct):
    """Callbacks for changes of roles, called one after the other on the event loop."""

    #: Awaited with all roles that were taken together, each with its epoch, before `gained`.
    taken: list[_Taken] = msgspec.field(default_factory=list)
    #: Awaited with a role and its epoch before it is served; after an error the role is begun again.
    gained: list[_Gained] = msgspec.field(default_factory=list)
    #: Called with a role when it begins to be served.
    served: list[_Served] = msgspec.field(default_factory=list)
    #: Awaited before a broker is passed on: store the state that is only in memory.
    drained: list[_Drained] = msgspec.field(default_factory=list)
    #: Called with a role that this process no longer has.
    lost: list[_Lost] = msgspec.field(default_factory=list)


class Roles:
    """The roles of one life of the process; used on the event loop."""

    def __init__(self, hooks: Hooks) -> None:
        #: The roles that are served, with the epoch since which each is.
        self.served: dict[str, int] = {}
        #: The roles of this process in the metadata, served or not, with their epochs.
        self.ours: dict[str, int] = {}
        #: The roles of `ours` that had no owner before.
        self.fresh: set[str] = set()
        #: The roles of `served` that take no new requests, since they are about to be passed on.
        self.closing: set[str] = set()
        #: The roles for which new requests are taken.
        self.taking: frozenset[str] = frozenset()
        self._hooks = hooks
        self._beginning: set[asyncio.Task[None]] = set()
        self._passing: dict[str, asyncio.Task[None]] = {}
        self._has_begun = False

    def serves(self, role: str) -> bool:
        """Whether new requests are taken for the role."""
        return role in self.taking

    def _note(self) -> None:
        self.taking = frozenset(self.served).difference(self.closing)

    def pause(self) -> None:
        """Stop serving all roles."""
        self.served.clear()
        self._note()

    def follow(self, mine: Mapping[str, int], before: Collection[str]) -> None:
        """Begin roles that became ours, and end roles that are no longer ours.

        `mine` are our roles in the present metadata; `before` are all roles that had an owner before it.
        """
        for role in [role for role, epoch in self.ours.items() if mine.get(role) != epoch]:
            self._forget(role)
        new = {role: epoch for role, epoch in mine.items() if role not in self.ours}
        self.ours |= new
        self.fresh |= new.keys() - set(before)
        if new:
            self._begin_soon(new)

    def _forget(self, role: str) -> None:
        self.ours.pop(role)
        self.served.pop(role, None)
        self._note()
        self.fresh.discard(role)
        self._lose(role)

    def _lose(self, role: str) -> None:
        log.info("event=role_lost role=%s", role)
        for lost in self._hooks.lost:
            lost(role)

    # Beginning.

    async def all_served(self) -> None:
        """Return when all our roles are served; raise if one cannot begin. After this call failures are tried again."""
        await asyncio.gather(*self._beginning)
        self._has_begun = True

    def _begin_soon(self, roles: Mapping[str, int]) -> None:
        task = asyncio.get_running_loop().create_task(self._begin(roles))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, roles: Mapping[str, int]) -> None:
        """Prepare and serve roles; after a failure each is begun again by itself, so that one cannot block others."""
        try:
            for taken in self._hooks.taken:
                await taken(roles)
            for gained in self._hooks.gained:
                for role, epoch in roles.items():
                    await gained(role, epoch)
        except (DeltaMQError, OSError) as error:
            code = getattr(error, "code", "os_error")
            log.error("event=roles_not_begun roles=%s code=%s detail=%r", ",".join(roles), code, str(error))
            if not self._has_begun:
                raise
            await asyncio.sleep(_BEGIN_AGAIN_S)
            for role, epoch in roles.items():
                if self.ours.get(role) == epoch:
                    self._begin_soon({role: epoch})
            return
        for role, epoch in roles.items():
            if self.ours.get(role) == epoch:
                self.served[role] = epoch
                self._note()
                log.info("event=role_begun role=%s epoch=%d", role, epoch)
                for served in self._hooks.served:
                    served(role)
            else:
                # The role went to another process meanwhile: its new state is void.
                self._lose(role)

    # Passing on, and ending.

    def pass_on(self, role: str, give: Callable[[str], Awaitable[None]]) -> None:
        """Start a task that refuses new requests for a role, stores its state that is only in memory, and calls `give`.

        `give` gives the role away; it returns when the metadata says which process has the role.
        """
        if role not in self._passing:
            task = asyncio.get_running_loop().create_task(self._pass_on(role, give))
            self._passing[role] = task
            task.add_done_callback(lambda _: self._passing.pop(role, None))

    async def _pass_on(self, role: str, give: Callable[[str], Awaitable[None]]) -> None:
        epoch = self.served.get(role)
        if epoch is None:
            return
        self.closing.add(role)
        self._note()
        try:
            # Requests under way end meanwhile; slower ones are refused, since the role has moved.
            await asyncio.sleep(_CLOSE_S)
            self.served.pop(role, None)
            self._note()
            for drained in self._hooks.drained:
                await drained(role)
            await give(role)
        except DeltaMQError as error:
            log.warning("event=role_not_stored role=%s code=%s", role, error.code)
        finally:
            self.closing.discard(role)
            if self.ours.get(role) == epoch:
                # Its state could not be stored, or no process took it: the role stays here, as memory knows it.
                self.served[role] = epoch
            self._note()

    async def end(self, *, is_over: bool) -> None:
        """Cancel begins and passings on; with `is_over` forget all roles, since this life is over."""
        tasks = [*self._beginning, *self._passing.values()]
        for task in tasks:
            task.cancel()
        if is_over:
            for role in list(self.ours):
                self._forget(role)
        await asyncio.gather(*tasks, return_exceptions=True)
