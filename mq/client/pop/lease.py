"""The messages that a consumer holds, each with its current handle and the end of its invisible time.

    pop ──► HELD ──half of the invisible time──► RENEWING ──new handle──► HELD ...
             │ finish                               │ finish: waits for the new handle
             ▼                                      ▼
          settled with the newest handle: acknowledged, sent back, sent to the dead letters, or released

While a handler runs long, the invisible time of its message is renewed when half of it is over (POP-9); the new handle
is valid for a whole invisible time from then on.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from deltamq.mq.client.admin.topic_view import broker_in
from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.messages.received import Result
from deltamq.mq.client.pop.client import HANDLE_EXPIRED, PopCalls
from deltamq.mq.client.shells.shell import Shell
from deltamq.mq.errors import DeltaMQError, Unknown

log = logging.getLogger("deltamq.client")


class Release(msgspec.Struct, frozen=True):
    """Return a message unhandled: other clients of the group get it at once."""


Settlement = Result | Release


_NEVER: Final = float("inf")
_WAIT_S_MAX: Final = 3600.0


class _State(enum.Enum):
    HELD = "held"  #: the handle is valid, as far as is known
    RENEWING = "renewing"  #: a new handle is being asked for
    OVER = "over"  #: settled, or lost


class Lease:
    """One message that is held. Only `Leases` changes it. Times are of `Shell.now`."""

    __slots__ = (
        "_place",
        "expires_at",
        "handle",
        "invisible_ms",
        "offset",
        "partition",
        "perhaps_reported",
        "renew_at",
        "renew_until",
        "renewal_lost",
        "settlement",
        "state",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: str,
        offset: int,
        handle: str,
        place: str | None = None,
        *,
        invisible_ms: int,
        popped_at: float,
    ) -> None:
        """`place` is where the message was first stored, for logs; None if that is at `partition` and `offset`."""
        self.topic = topic
        self._place = place
        self.partition = partition
        self.offset = offset
        self.handle = handle
        self.invisible_ms = invisible_ms
        self.expires_at = popped_at + invisible_ms / 1000
        self.renew_at = popped_at + invisible_ms / 2000
        self.renew_until = _NEVER
        self.state = _State.HELD
        #: The handler's result, if it came while a new handle was being asked for.
        self.settlement: Settlement | None = None
        #: Whether its outcome was sent and the answer lost.
        self.perhaps_reported = False
        #: Whether a renewal was sent and the answer lost.
        self.renewal_lost = False

    @property
    def broker(self) -> str | None:
        """The broker of the message's partition; None for a logical queue, whose handles any host passes on."""
        return broker_in(self.partition)

    @property
    def place(self) -> str:
        """The partition and offset where the message was first stored, for logs."""
        return self._place or f"{self.partition}:{self.offset}"


class Leases:
    """All leases of one consumer.

    It calls `settle` with each finished lease and its settlement.
    """

    def __init__(
        self, shell: Shell, settle: Callable[[Lease, Settlement], None], *, renew_for_s: float | None = None
    ) -> None:
        self._shell = shell
        self._settle = settle
        self._renew_for_s = renew_for_s
        self._changed = shell.condition()
        self._live: dict[Lease, None] = {}
        self._waiting_until = _NEVER
        #: Whether a lease must be renewed before `wait_due` would wake.
        self._sooner = False
        self._closed = False
        #: Number of messages whose invisible time ended while they were held; they are delivered again.
        self.lost = 0

    def __len__(self) -> int:
        return len(self._live)

    def hold(self, leases: Sequence[Lease]) -> None:
        """Add leases; wakes `wait_due` if one of them must be renewed earlier than it would wake."""
        with self._changed.lock:
            for lease in leases:
                if self._renew_for_s is not None:
                    lease.renew_until = self._shell.now() + self._renew_for_s
                self._live[lease] = None
            if leases and leases[0].renew_at < self._waiting_until:
                self._sooner = True
                self._changed.notify()

    def is_valid(self, lease: Lease) -> bool:
        """Return whether the consumer still holds the message."""
        return lease.state is not _State.OVER and self._shell.now() < lease.expires_at

    def finish(self, leases: Iterable[Lease], settlement: Settlement) -> None:
        """Settle leases with this outcome; only the first settlement of a lease counts."""
        settled = []
        with self._changed.lock:
            for lease in leases:
                if lease.state is _State.HELD:
                    self._end(lease)
                    settled.append(lease)
                elif lease.state is _State.RENEWING and lease.settlement is None:
                    lease.settlement = settlement
        for lease in settled:
            self._settle(lease, settlement)

    def _end(self, lease: Lease) -> None:
        lease.state = _State.OVER
        del self._live[lease]

    def live(self) -> list[Lease]:
        """Return all leases held now."""
        with self._changed.lock:
            return list(self._live)

    # Renewals ---------------------------------------------------------------------------------------------------

    async def wait_due(self) -> list[Lease]:
        """Wait until leases must be renewed, and return them; returns none once closed."""
        while not self._closed:
            with self._changed.lock:
                now = self._shell.now()
                self._drop_expired(now)
                self._sooner = False
                due = [lease for lease in self._live if lease.renew_at <= now < lease.renew_until]
                self._waiting_until = 0.0 if due else min(map(_wake_at, self._live), default=_NEVER)
            if due:
                return due
            await self._changed.until(lambda: self._closed or self._sooner, min(self._waiting_until - now, _WAIT_S_MAX))
        return []

    def begin(self, lease: Lease) -> bool:
        """Mark a lease as being renewed; returns False if it is already over."""
        with self._changed.lock:
            if lease.state is not _State.HELD:
                return False
            lease.state = _State.RENEWING
            return True

    def _drop_expired(self, now: float) -> None:
        for lease in [lease for lease in self._live if lease.expires_at <= now and lease.state is _State.HELD]:
            self.lost += 1
            self._end(lease)

    def renewed(self, lease: Lease, handle: str, now: float) -> None:
        """Note a renewal: the new handle, valid for the invisible time from `now`."""
        with self._changed.lock:
            lease.handle = handle
            lease.expires_at = now + lease.invisible_ms / 1000
            lease.renew_at = now + lease.invisible_ms / 2000
            self._again(lease)

    def not_renewed(self, lease: Lease, again_at: float) -> None:
        """Note an unanswered renewal: it is repeated at `again_at`, if the old handle is still valid then."""
        with self._changed.lock:
            lease.renew_at = again_at
            self._again(lease)

    def _again(self, lease: Lease) -> None:
        settlement = lease.settlement
        lease.state = _State.HELD
        if settlement is not None:
            self._end(lease)
            # The settler only queues it, and never waits for this lock while it holds its own: no deadlock.
            self._settle(lease, settlement)

    def lose(self, lease: Lease) -> None:
        """Drop a lease whose handle the service refused: its handler's result comes too late."""
        with self._changed.lock:
            if lease.state is not _State.OVER:
                self.lost += 1
                self._end(lease)

    def close(self) -> None:
        """Let `wait_due` return."""
        with self._changed.lock:
            self._closed = True
            self._changed.notify()


def _wake_at(lease: Lease) -> float:
    return min(lease.renew_at, lease.expires_at) if lease.renew_at < lease.renew_until else lease.expires_at


_CALL_S_MIN: Final = 0.05


class Renewer:
    """Renews the leases of one consumer, in `run`, until `leases` is closed."""

    def __init__(self, client: PopCalls, leases: Leases) -> None:
        self._client = client
        self._leases = leases
        self._failures = 0
        self.renewed = 0

    async def run(self) -> None:
        """Renew leases when they are due."""
        while due := await self._leases.wait_due():
            for lease in due:
                if self._leases.begin(lease):
                    await self._renew(lease)

    async def _renew(self, lease: Lease) -> None:
        asked_at = self._client.shell.now()
        remaining_s = lease.expires_at - asked_at
        timeout_s = max(_CALL_S_MIN, min(self._client.patience.request_timeout_s, remaining_s / 2))
        try:
            handle = await self._client.change_once(lease.handle, lease.invisible_ms, timeout_s, lease.broker)
        except DeltaMQError as error:
            self._not_renewed(lease, error)
            return
        self._failures = 0
        self.renewed += 1
        lease.renewal_lost = False
        # Counted from before the call: the service's count began later.
        self._leases.renewed(lease, handle, asked_at)

    def _not_renewed(self, lease: Lease, error: DeltaMQError) -> None:
        if not is_worth_retrying(error):
            if lease.renewal_lost and error.code == HANDLE_EXPIRED:
                log.warning("event=new_handle_lost message=%s it is delivered again", lease.place)
            else:
                log.warning("event=message_lost message=%s code=%s it is delivered again", lease.place, error.code)
            self._leases.lose(lease)
            return
        lease.renewal_lost = lease.renewal_lost or isinstance(error, Unknown)
        self._failures += 1
        wait_s = self._client.patience.wait_s(self._failures, random.random(), error)
        log.warning("event=renewal_failed message=%s code=%s again_s=%.3f", lease.place, error.code, wait_s)
        self._leases.not_renewed(lease, self._client.shell.now() + wait_s)
