"""An ordered consumer's rights to its partitions: allocation and pull locks (SPEC ORDER-4, ORDER-5).

    allocated ──► lock asked for ──► granted: a work begins ──► renewed ... ──► handed over, or lost ──► released
                       ▲                                                                                    │
                       └── refused: another client still has it                  repeated until answered ◄──┘

Nothing here runs by itself: `tick` finds what is due, and requests go out in the background. While the release of
a lock is unanswered, the lock is not asked for again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from deltamq.mq.client.http.retries import certainly_not_applied, is_worth_retrying
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.orderly.work import Key, OrderlyWork, monotonic_ms
from deltamq.mq.client.shells.shell import Workers
from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.order.authorization import Authorization
from deltamq.mq.order.keyed import KeyedRun
from deltamq.mq.order.orderly import OrderlyRun, OrderlySettings, Right
from deltamq.mq.order.pull_lock import ClientLock
from deltamq.mq.static.queue_names import is_queue_name
from deltamq.mq.wire.groups import LocksGiven

log = logging.getLogger("deltamq.client")

#: Milliseconds that a request waits at the service for a lock; the next one includes newly allocated partitions.
_LOCK_WAIT_MS: Final = 200
#: Wait before the next request for partitions whose request failed or was not answered, in milliseconds.
_AGAIN_MS: Final = 200
_LOCK_TIMEOUT_S: Final = 4.0

PARTITION_MOVED: Final = "partition_moved"


class Rights:
    """The works of one consumer, and the locks that it asks brokers for."""

    def __init__(
        self,
        calls: OrderlyCalls,
        authorization: Authorization,
        requests: Workers,
        *,
        settings_of: Callable[[str], Coroutine[Any, Any, OrderlySettings]],
        begun: Callable[[OrderlyWork], None],
        wake: Callable[[OrderlyWork], None],
        poke: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._authorization = authorization
        self._requests = requests
        self._settings_of = settings_of
        self._begun = begun
        self._wake = wake
        self._poke = poke
        self._changed = calls.shell.condition()
        self._allocation: frozenset[Key] = frozenset()
        self._works: dict[Key, OrderlyWork] = {}
        #: Partitions whose locks are being asked for, and being released.
        self._asking: set[Key] = set()
        self._releasing: set[Key] = set()
        #: Locks to release: number (None: any that a lost answer may have granted), and the earliest time.
        self._releases: dict[Key, tuple[int | None, int]] = {}
        self._ask_after_ms: dict[Key, int] = {}
        self._leaving = False
        #: Counts of granted renewals, and of lost works.
        self.renewals = 0
        self.lost = 0

    # The allocation ---------------------------------------------------------------------------------------------

    def allocated(self, allocation: Mapping[str, Sequence[str]]) -> None:
        """Take in a new allocation: the partitions that the meta role has given to this client."""
        with self._changed.lock:
            if self._leaving:
                return
            wanted = frozenset((topic, name) for topic, names in allocation.items() for name in names)
            gone = self._allocation - wanted
            self._allocation = wanted
            for key, work in self._works.items():
                work.right.allocated = key in wanted
            woken = [work for key, work in self._works.items() if key in gone]
        for work in woken:
            self._wake(work)
        # At once: a partition is not consumed until its new client has the lock.
        self.tick()

    def leave(self) -> None:
        """Begin no further works, and release each lock once its work is finished."""
        with self._changed.lock:
            self._leaving = True
            self._allocation = frozenset()
            works = list(self._works.values())
            for work in works:
                work.right.allocated = False
        for work in works:
            self._wake(work)
        self._poke()

    def works(self) -> list[OrderlyWork]:
        """Return the works of all locks held now."""
        with self._changed.lock:
            return list(self._works.values())

    async def wait_given_back(self, timeout_s: float) -> bool:
        """Wait until no lock is held, asked for or to be released; returns False after `timeout_s`."""
        return await self._changed.until(self._is_clear, timeout_s)

    def _is_clear(self) -> bool:
        return not (self._works or self._asking or self._releases)

    @property
    def unreleased(self) -> int:
        """Number of locks whose release is not confirmed."""
        with self._changed.lock:
            return len(self._releases.keys() | self._works.keys())

    # What is due ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send the requests that are due: ask for allocated locks, renew held ones, release locks of ended works."""
        now_ms = monotonic_ms()
        with self._changed.lock:
            taken = self._to_take(now_ms)
            renewed = self._to_renew(now_ms)
            released = [key for key, (_, after) in self._releases.items() if after <= now_ms]
            released = [key for key in released if key not in self._releasing]
            self._releasing.update(released)
            over = [work for work in self._works.values() if not work.right.holds(now_ms)]
        for (topic, _), partitions in taken.items():
            self._requests.submit(partial(self._take, topic, partitions))
        for works in renewed.values():
            self._requests.submit(partial(self._renew, works))
        for key in released:
            self._requests.submit(partial(self._release, key))
        for work in over:
            self._wake(work)

    def _to_take(self, now_ms: int) -> dict[tuple[str, str], list[str]]:
        """Return the partitions to ask for, by topic and broker; a broker has one request of a topic at a time."""
        if self._leaving or not self._authorization.holds(now_ms):
            return {}
        busy = {(topic, self._calls.broker(topic, name)) for topic, name in self._asking}
        wanted: dict[tuple[str, str], list[str]] = {}
        for key in sorted(self._allocation - self._works.keys() - self._releases.keys()):
            target = (key[0], self._calls.broker(*key))
            if target not in busy and self._ask_after_ms.get(key, 0) <= now_ms:
                wanted.setdefault(target, []).append(key[1])
                self._asking.add(key)
        return wanted

    def _to_renew(self, now_ms: int) -> dict[tuple[str, str], list[OrderlyWork]]:
        due: dict[tuple[str, str], list[OrderlyWork]] = {}
        for work in self._works.values():
            if work.lock.is_due(now_ms) and not work.renewing and work.renew_after_ms <= now_ms:
                work.renewing = True
                due.setdefault((work.topic, work.broker), []).append(work)
        return due

    # Locks ------------------------------------------------------------------------------------------------------

    async def _take(self, topic: str, partitions: Sequence[str]) -> None:
        keys = [(topic, name) for name in partitions]
        lapses = self._authorization.lapses
        try:
            settings = await self._settings_of(topic)
            sent_ms = monotonic_ms()
            given = await self._calls.take(topic, partitions, wait_ms=_LOCK_WAIT_MS, timeout_s=_LOCK_TIMEOUT_S)
        except DeltaMQError as error:
            log.warning("event=lock_not_asked topic=%s code=%s", topic, error.code)
            self._not_taken(keys, perhaps_given=not certainly_not_applied(error))
            return
        works = [self._work(key, given, settings, sent_ms, lapses) for key in keys if key[1] in given.locks]
        unanswered = [key for key in keys if key[1] in given.unanswered]
        self._not_taken(unanswered, perhaps_given=True)
        with self._changed.lock:
            self._asking.difference_update(keys)
            self._changed.notify()
        for work in works:
            if work is not None:
                self._begun(work)
        self._poke()

    def _work(
        self, key: Key, given: LocksGiven, settings: OrderlySettings, sent_ms: int, lapses: int
    ) -> OrderlyWork | None:
        """Make the work of a granted lock; returns None, and plans the release, if the lock may not be used.

        That is so if the authorization or the lock has lapsed since the request, or the answer names no offset.
        """
        now_ms = monotonic_ms()
        number = given.locks[key[1]]
        lock = ClientLock(number, sent_ms)
        right = Right(self._authorization, lock)
        with self._changed.lock:
            if self._authorization.lapses != lapses or not right.holds(now_ms) or key[1] not in given.offsets:
                self._releases[key] = (number, now_ms)
                return None
            right.allocated = key in self._allocation
            attempts = given.attempts.get(key[1], 0)
            run = _run(right, given.offsets[key[1]], settings, now_ms, attempts)
            work = self._works[key] = OrderlyWork(key, lock, right, run, self._calls.broker(*key))
        log.info(
            "event=partition_begun partition=%s offset=%d lock=%d attempts=%d", key[1], run.position, number, attempts
        )
        return work

    def _not_taken(self, keys: Sequence[Key], *, perhaps_given: bool) -> None:
        """After a failure, or no answer: release locks that may have been granted, and ask again later."""
        after_ms = monotonic_ms() + _AGAIN_MS
        with self._changed.lock:
            for key in keys:
                self._ask_after_ms[key] = after_ms
                if perhaps_given:
                    self._releases[key] = (None, 0)
            self._asking.difference_update(keys)
            self._changed.notify()
        self._poke()

    def doubt(self, work: OrderlyWork) -> None:
        """Claim a lock that the broker does not know: after a takeover, or a move of the queue, this restores it."""
        with self._changed.lock:
            if work.renewing or self._works.get(work.key) is not work:
                return
            work.renewing = True
        self._requests.submit(partial(self._renew, [work]))

    async def _renew(self, works: Sequence[OrderlyWork]) -> None:
        """Renew locks of one broker; locks that another client has are lost."""
        await self._follow(works)
        sent_ms = monotonic_ms()
        names = [work.partition for work in works]
        try:
            given = await self._calls.take(works[0].topic, names, held=names, timeout_s=_LOCK_TIMEOUT_S)
        except DeltaMQError as error:
            log.warning("event=locks_not_renewed topic=%s code=%s", works[0].topic, error.code)
            given = LocksGiven(locks={}, unanswered=names)
        now_ms = monotonic_ms()
        for work in works:
            number = given.locks.get(work.partition)
            with self._changed.lock:
                work.renewing = False
                work.renew_after_ms = now_ms + _AGAIN_MS
                if number is not None:
                    self._renewed(work, number, sent_ms, now_ms)
                elif work.partition not in given.unanswered:
                    work.lock.lose()
            if not work.lock.holds(now_ms):
                self._wake(work)

    async def _follow(self, works: Sequence[OrderlyWork]) -> None:
        """Look up to which brokers logical queues have moved; without an answer, any host forwards."""
        if not any(is_queue_name(work.partition) for work in works):
            return
        with contextlib.suppress(DeltaMQError):
            await self._calls.view(works[0].topic)
        for work in works:
            work.broker = self._calls.broker(*work.key)

    def _renewed(self, work: OrderlyWork, number: int, sent_ms: int, now_ms: int) -> None:
        present = self._works.get(work.key)
        if present is work:
            if work.lock.renewed(number, sent_ms, now_ms):
                self.renewals += 1
            else:
                # The renewal came too late, but this is the lock to release when the work ends.
                work.lock.number = number
        elif present is None or present.lock.number != number:
            self._releases[work.key] = (number, now_ms)

    def refused(self, work: OrderlyWork, error: Conflict) -> None:
        """Handle a refused fetch or commit: the partition has moved to another client, or the lock is in doubt."""
        if error.code == PARTITION_MOVED:
            work.right.allocated = False
            self._wake(work)
        else:
            self.doubt(work)

    # The end of a work ------------------------------------------------------------------------------------------

    async def ended(self, work: OrderlyWork, *, lost: bool) -> None:
        """End a work, and release its lock."""
        with self._changed.lock:
            if self._works.get(work.key) is not work:
                return
            del self._works[work.key]
            self.lost += lost
            self._releases[work.key] = (work.lock.number, 0)
            free = work.key not in self._releasing
            self._releasing.add(work.key)
        how = "lost" if lost else "handed_over"
        log.info(
            "event=partition_%s partition=%s offset=%d repeated=%d",
            how,
            work.partition,
            work.committed,
            work.done_ahead,
        )
        if free:
            await self._release(work.key)

    async def _release(self, key: Key) -> None:
        with self._changed.lock:
            number = self._releases[key][0]
        again = False
        try:
            await self._calls.release(*key, number)
        except DeltaMQError as error:
            again = is_worth_retrying(error)
            log.log(
                logging.INFO if again else logging.WARNING,
                "event=lock_not_released partition=%s code=%s again=%s",
                key[1],
                error.code,
                again,
            )
        with self._changed.lock:
            self._releasing.discard(key)
            if again:
                self._releases[key] = (self._releases[key][0], monotonic_ms() + _AGAIN_MS)
            elif self._releases[key][0] == number:
                del self._releases[key]
            self._changed.notify()
        self._poke()


def _run(right: Right, offset: int, settings: OrderlySettings, now_ms: int, attempts: int) -> OrderlyRun | KeyedRun:
    if settings.keys_in_parallel > 1:
        return KeyedRun(right, offset, settings, attempts=attempts)
    return OrderlyRun(right, offset, settings, now_ms, attempts=attempts)
