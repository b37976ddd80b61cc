"""An exclusive client's heartbeats: they bring its authorization and its partitions (SPEC ORDER-2, ORDER-3).

    heartbeat ──► the service waits until the allocation changes, or some seconds ──► answer ──► heartbeat ...

So the client learns of a change as soon as it is decided, and the authorization is renewed long before it ends.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from typing import Final

from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.orderly.work import monotonic_ms
from deltamq.mq.client.shells.shell import Stop, pause
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound
from deltamq.mq.limits import HEARTBEAT_MS
from deltamq.mq.order.authorization import Authorization
from deltamq.mq.wire.groups import HeartbeatAnswer, SubscriptionRequest

log = logging.getLogger("deltamq.client")

_EXCLUSIVE: Final = "exclusive"
#: A heartbeat asks for a wait of at most this fraction (1/6) of the authorization, so that several may fail.
_WAIT_PART: Final = 6
#: Seconds that an answer may take beyond the wait that was asked for.
_TIMEOUT_S: Final = 4.0
_TIMEOUT_S_MIN: Final = 0.05
#: Maximum wait after a failed heartbeat; wait after one that brought no authorization.
_AGAIN_S_MAX: Final = 1.0
_UNAUTHORIZED_S: Final = 0.2
#: How long the goodbye waits for a heartbeat that it may have overtaken.
_OVERTAKEN_S: Final = 1.0


class Heartbeats:
    """One client's heartbeats, sent in `run` until `leave`.

    `changed` is called with each allocation: topic to partitions.
    """

    def __init__(
        self,
        calls: OrderlyCalls,
        topics: Mapping[str, SubscriptionRequest],
        *,
        changed: Callable[[Mapping[str, list[str]]], None],
        fail: Callable[[DeltaMQError], None],
    ) -> None:
        self.authorization = Authorization()
        self._calls = calls
        self._topics = topics
        self._changed = changed
        self._fail = fail
        #: The service has said that the group is exclusive.
        self.is_exclusive = False
        #: Guards the authorization, which answers of two threads may change at the end.
        self._lock = threading.Lock()
        self._leaving = Stop(calls.shell)
        self._epoch = 0
        self._wait_ms = 0
        self._failures = 0
        #: Whether a heartbeat that says `online` is under way; notified when it is not any more.
        self._under_way = False
        self._idle = calls.shell.condition()

    async def run(self) -> None:
        """Send heartbeats, one after another, until `leave`."""
        while not self._leaving.is_set:
            self._under_way = True
            try:
                answer = await self._beat()
            except NotFound:
                await self._make_group()
            except DeltaMQError as error:
                await self._failed(error)
            else:
                self._failures = 0
                await self._heard(answer)
            finally:
                with self._idle.lock:
                    self._under_way = False
                    self._idle.notify()

    async def _beat(self) -> HeartbeatAnswer:
        sent_ms = monotonic_ms()
        answer = await self._calls.heartbeat(
            self._topics,
            online=True,
            wait_ms=self._wait_ms,
            allocation_epoch=self._epoch,
            timeout_s=_TIMEOUT_S,
        )
        self._granted(sent_ms, answer)
        return answer

    def _granted(self, sent_ms: int, answer: HeartbeatAnswer) -> None:
        if answer.authorized_ms > 0:
            with self._lock:
                self.authorization.granted(sent_ms, answer.authorized_ms, monotonic_ms())

    async def _heard(self, answer: HeartbeatAnswer) -> None:
        if answer.consume_strategy != _EXCLUSIVE:
            # CONS-1: in order only if the answer says so.
            self._changed({})
            self._fail(
                Conflict(
                    f"group {self._calls.group} is {answer.consume_strategy}: to consume in order it must be exclusive",
                    code="group_not_exclusive",
                )
            )
            await self._leaving.wait(_AGAIN_S_MAX)
            return
        self.is_exclusive = True
        self._epoch = answer.allocation_epoch
        self._wait_ms = min(HEARTBEAT_MS, answer.authorized_ms // _WAIT_PART)
        if not self._leaving.is_set:
            self._changed(answer.allocation)
        if answer.authorized_ms <= 0:
            # The client counted as offline, and joins again.
            await self._leaving.wait(_UNAUTHORIZED_S)

    async def _make_group(self) -> None:
        try:
            await self._calls.make_group()
        except DeltaMQError as error:
            await self._failed(error)

    async def _failed(self, error: DeltaMQError) -> None:
        if not is_worth_retrying(error):
            self._fail(error)
        self._failures += 1
        self._wait_ms = 0
        wait_s = min(self._calls.patience.wait_s(self._failures, random.random()), _AGAIN_S_MAX)
        log.warning("event=heartbeat_failed code=%s again_s=%.3f", error.code, wait_s)
        await self._leaving.wait(wait_s)

    # The end ----------------------------------------------------------------------------------------------------

    async def leave(self, until_ms: int) -> bool:
        """Tell the service that this client leaves; False if no answer came by `until_ms` (then it times out later)."""
        self._leaving.set()
        under_way = self._under_way
        heard = await self._say_goodbye(until_ms)
        if heard and under_way:
            # A heartbeat under way may have arrived after the goodbye, and would bring the client back.
            await self._idle.until(lambda: not self._under_way, _OVERTAKEN_S)
            heard = await self._say_goodbye(until_ms)
        return heard

    async def _say_goodbye(self, until_ms: int) -> bool:
        failures = 0
        while True:
            timeout_s = max(_TIMEOUT_S_MIN, min(_TIMEOUT_S, (until_ms - monotonic_ms()) / 1000))
            try:
                await self._calls.heartbeat(self._topics, online=False, timeout_s=timeout_s)
            except NotFound:
                return True
            except DeltaMQError as error:
                failures += 1
                wait_s = self._calls.patience.wait_s(failures, random.random())
                if not is_worth_retrying(error) or monotonic_ms() + wait_s * 1000 >= until_ms:
                    log.warning("event=goodbye_unheard code=%s", error.code)
                    return False
                await pause(self._calls.shell, wait_s)
            else:
                # The earlier authorization still allows to finish the partitions held now.
                return True
