"""Changes that wait for each other share an append of the metadata log: a hundred clients that start need only a few.

change A ──► append            change B, change C, change D ──► one append
             '── under way ──── wait ─────────────────────────'
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from deltamq.mq.errors import DeltaMQError, Unknown
from deltamq.mq.meta.fold import AnyEvent, Meta

#: Returns the events of a change, decided on a state that includes all changes before it.
Decide: TypeAlias = Callable[[Meta], Sequence[AnyEvent]]

#: Maximum number of changes in one append: deciding each takes about half a millisecond.
_CHANGES_MAX: Final = 200


class _Change:
    """One change and the future of its caller."""

    __slots__ = ("decide", "done", "error")

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Why this change was refused, when the append succeeded.
        self.error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        if self.done.done():
            return  # the caller was cancelled
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class JoinedChanges:
    """Changes of the metadata log, with one append for all that wait. Lives on one event loop."""

    def __init__(self, submit: Callable[[Decide], Awaitable[Meta]]) -> None:
        self._submit = submit
        self._waiting: list[_Change] = []
        self._running: asyncio.Task[None] | None = None

    async def store(self, decide: Decide) -> None:
        """Store the events that `decide` returns for the newest state; it may be called several times, on a thread.

        Raises
        ------
        DeltaMQError
            The error that `decide` raises, and then nothing is stored; or the error of the append, whose outcome may
            be unknown.
        """
        change = _Change(decide)
        self._waiting.append(change)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await change.done

    async def _run(self) -> None:
        try:
            while self._waiting:
                changes, self._waiting = self._waiting[:_CHANGES_MAX], self._waiting[_CHANGES_MAX:]
                await self._store(changes)
        finally:
            self._running = None

    async def _store(self, changes: Sequence[_Change]) -> None:
        try:
            await self._submit(partial(_all, changes))
        except asyncio.CancelledError:
            for change in changes:
                change.end(Unknown())
            raise
        except Exception as error:
            for change in changes:
                change.end(error)
        else:
            for change in changes:
                change.end(change.error)

    async def stop(self) -> None:
        """Stop storing; an append under way may or may not succeed."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _all(changes: Sequence[_Change], meta: Meta) -> list[AnyEvent]:
    """Return the events of all changes, each decided after those before it; a refused change affects no other."""
    events: list[AnyEvent] = []
    for change in changes:
        change.error = None
        try:
            made = change.decide(meta)
        except DeltaMQError as error:
            change.error = error
            continue
        if made:
            events += made
            meta = meta.apply_all(made)
    return events
