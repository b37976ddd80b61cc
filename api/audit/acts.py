"""Acts as they are carried out: begun, noted, ended (SPEC SEC-40).

    begin: stored --> the act --changes of the metadata, which carry its id--> end: stored --> confirmed
      |                                                                         |
      '-- not stored: refused, nothing is done                                  '-- not stored: `audit_incomplete`

A kill before `begin` is stored leaves nothing. A kill after it leaves an act without an end, until a process settles it
(`api.audit.audit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from deltamq.mq.audit import ActBegun, ActEnded, AuditRecord, MetadataChange, bounded, outcome_of, states_of
from deltamq.mq.errors import DeltaMQError, Unavailable, Unknown
from deltamq.mq.limits import DETAIL_LENGTH_MAX, ENDS_WAITING_MAX
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.tables.failpoints import failpoint

log = logging.getLogger("deltamq.api")

E = TypeVar("E", bound=AnyEvent)

#: Seconds that an act waits until its begin is stored, and its confirmation until its end is.
_STORE_S: Final = 5.0

#: The present task's act.
_PRESENT: Final[ContextVar[Act | None]] = ContextVar("act", default=None)


class Asking(NamedTuple):
    """The caller and its call."""

    principal: str
    #: Host and port of the connection.
    address: str
    #: Method and path template, or their counterpart in another protocol.
    call: str
    #: Kind and name of the thing that it changes.
    resource: str
    name: str
    #: The parameters, without anything secret.
    asked: Mapping[str, Any]


class Act:
    """One act under way."""

    def __init__(self, begun: ActBegun) -> None:
        self.begun = begun
        self.changes: list[MetadataChange] = []
        #: Whether a change may be stored without its process knowing.
        self.is_unsure = False
        #: Whether it is over: later work of its tasks is not part of it.
        self.is_over = False

    @property
    def id(self) -> str:
        return self.begun.id

    def ended(self, time_ms: int, status: int, code: str, detail: str) -> ActEnded:
        """Return its end, with an answer of this status."""
        self.is_over = True
        before, after = states_of(self.changes)
        is_unsure = self.is_unsure or code == Unknown.code
        return ActEnded(
            id=self.id,
            time_ms=time_ms,
            outcome=outcome_of(status, changed=bool(self.changes), is_unsure=is_unsure),
            status=status,
            code=code,
            detail=detail[:DETAIL_LENGTH_MAX],
            events=tuple(event.kind for change in self.changes for event in change.events),
            before=before,
            after=after,
        )


@contextmanager
def noting(decide: Callable[[Meta], Sequence[E]]) -> Iterator[tuple[Callable[[Meta], Sequence[E]], str | None]]:
    """Yield `decide` and the id of the present act; its last decision is noted in the act at the end."""
    act = _PRESENT.get()
    if act is None or act.is_over:
        yield decide, None
        return
    last: list[MetadataChange] = []

    def noted(meta: Meta) -> Sequence[E]:
        events = decide(meta)
        last[:] = [MetadataChange(meta, events)]
        return events

    try:
        yield noted, act.id
    except (Unknown, asyncio.CancelledError):  # the thread that stores the change goes on without the task
        act.is_unsure = True
        raise
    if last and last[0].events:
        act.changes += last


class Acts:
    """The acts of this process; used on the event loop."""

    def __init__(
        self,
        store: Callable[[Sequence[AuditRecord]], Awaitable[None]],
        *,
        process: Callable[[], str],
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """`store` returns when records are durable, or raises; `process` returns the id of this process."""
        self._store = store
        self._process = process
        self._now_ms = now_ms
        self._new_id = new_id
        #: Ends that could not be stored.
        self._waiting: list[ActEnded] = []

    async def begin(self, asking: Asking) -> Act:
        """Return an act whose begin is stored.

        Raises
        ------
        Unavailable
            `audit_unavailable`: the begin could not be stored; nothing may be done.
        """
        if len(self._waiting) >= ENDS_WAITING_MAX:
            raise _unavailable(f"{ENDS_WAITING_MAX} acts wait for their end to be recorded")
        begun = ActBegun(
            id=self._new_id(),
            time_ms=self._now_ms(),
            principal=asking.principal,
            address=asking.address,
            process=self._process(),
            call=asking.call,
            resource=asking.resource,
            name=asking.name,
            asked=bounded(asking.asked),
        )
        act = Act(begun)
        failpoint("audit.before_begun")
        try:
            async with asyncio.timeout(_STORE_S):
                await self._store([begun])
        except (DeltaMQError, OSError, TimeoutError) as error:
            code = getattr(error, "code", type(error).__name__)
            log.error("event=audit_failed act=%s call=%r code=%s", act.id, asking.call, code)
            if isinstance(error, TimeoutError | Unknown):
                # The begin may be stored after all, and nothing was done.
                self._waiting.append(act.ended(self._now_ms(), 503, "audit_unavailable", "its begin was not stored"))
            raise _unavailable(f"it cannot be recorded: {code}") from error
        failpoint("audit.after_begun")
        return act

    @contextmanager
    def present(self, act: Act) -> Iterator[None]:
        """Note the changes of this task as the act's."""
        token = _PRESENT.set(act)
        try:
            yield
        finally:
            _PRESENT.reset(token)

    async def end(self, act: Act, status: int, code: str = "", detail: str = "") -> None:
        """Store the act's end.

        Raises
        ------
        Unknown
            `audit_incomplete`: the act was carried out and cannot be recorded now; this will be tried again.
        """
        failpoint("audit.before_ended")
        ended = act.ended(self._now_ms(), status, code, detail)
        try:
            async with asyncio.timeout(_STORE_S):
                await self._store([ended])
        except BaseException as error:
            self._waiting.append(ended)
            if not isinstance(error, DeltaMQError | OSError | TimeoutError):
                raise
            log.error("event=audit_incomplete act=%s outcome=%s", act.id, ended.outcome)
            raise Unknown(
                f"act {act.id} was carried out, and its outcome, {ended.outcome}, cannot be recorded now",
                code="audit_incomplete",
            ) from error
        failpoint("audit.after_ended")

    @asynccontextmanager
    async def carried_out(self, asking: Asking) -> AsyncIterator[Act]:
        """Record the block as an act; for calls that are not HTTP requests. Raises as `begin` and `end` do."""
        act = await self.begin(asking)
        try:
            with self.present(act):
                yield act
        except BaseException as error:
            known = error if isinstance(error, DeltaMQError) else DeltaMQError(type(error).__name__)
            with suppress(DeltaMQError):
                await self.end(act, known.status, known.code, known.detail)
            raise
        await self.end(act, 200)

    async def store_waiting(self) -> None:
        """Try again to store ends; those that cannot be stored wait on."""
        waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                async with asyncio.timeout(_STORE_S):
                    await self._store(waiting)
        except BaseException as error:
            self._waiting = waiting + self._waiting
            if not isinstance(error, DeltaMQError | OSError | TimeoutError):
                raise


def _unavailable(why: str) -> Unavailable:
    return Unavailable(
        f"nothing was done, since administrative acts are recorded first and {why}", code="audit_unavailable"
    )
