"""The provider's keys as a process keeps them: read again when a token names another one, and now and then.

    read ──► fresh_ms: read again, in the background ──► stale_ms without a read that worked: forgotten
             a token of an unknown key: read again at once, but retry_ms after the last read began at the earliest

Between two reads there are `retry_ms`, whatever callers send. A token whose key the provider has published is therefore
good after `retry_ms` and one read at the latest: its request waits for it, and no caller notices a change of keys.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from deltamq.api.auth.key_times import KeyTimes
from deltamq.api.issuer.jwks import JwksInvalid, SigningKey, signing_keys
from deltamq.mq.limits import KEY_WAITERS_MAX

log = logging.getLogger("deltamq.api")


class IssuerKeys:
    """The keys of one provider; used on the event loop."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        algorithms: Collection[str],
        *,
        now_ms: Callable[[], int],
        times: KeyTimes,
    ) -> None:
        """`read` gets the provider's answer; `now_ms` is a clock that nobody sets."""
        self._read = read
        self._algorithms = frozenset(algorithms)
        self._now_ms = now_ms
        self._times = times
        self._keys: Mapping[str, SigningKey] = {}
        #: When the last read that worked began, and the last of all.
        self._worked_ms: int | None = None
        self._began_ms: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiters = 0
        #: Called after the keys have changed.
        self.changed: Callable[[], None] = _nothing

    def get(self, kid: str) -> SigningKey | None:
        """Return the key of this id; None if it is not known."""
        return self._keys.get(kid)

    def has(self, thumbprint: str) -> bool:
        """Whether this very key is still one of the provider's."""
        return any(one.thumbprint == thumbprint for one in self._keys.values())

    async def read(self) -> None:
        """Wait for the end of a read that begins now or later; return also if it failed, or took too long."""
        if self._waiters >= KEY_WAITERS_MAX:
            return
        asked_ms = self._now_ms()
        self._waiters += 1
        try:
            async with asyncio.timeout(self._times.wait_ms / 1000):
                while True:
                    # One that is under way may have been answered before the token was signed.
                    await asyncio.shield(self._begin())
                    if self._began_ms is not None and self._began_ms >= asked_ms:
                        return
        except TimeoutError:
            return
        finally:
            self._waiters -= 1

    def tend(self) -> None:
        """Begin a read if the keys are old, and forget them if they are too old."""
        now_ms = self._now_ms()
        if self._worked_ms is None or now_ms - self._worked_ms >= self._times.fresh_ms:
            self._begin()
        if self._keys and self._worked_ms is not None and now_ms - self._worked_ms >= self._times.stale_ms:
            log.error("event=issuer_keys_forgotten detail='they could not be read for too long'")
            self._set({})

    async def stop(self) -> None:
        """End the read under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def _begin(self) -> asyncio.Task[None]:
        """Return the read under way, or the next one, which waits until it may begin."""
        # One that has ended is none: waiting for it would not let the event loop go on, and so never end.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._run())
        return self._reading

    async def _run(self) -> None:
        if self._began_ms is not None:
            await asyncio.sleep(max(0, self._began_ms + self._times.retry_ms - self._now_ms()) / 1000)
        self._began_ms = began_ms = self._now_ms()
        try:
            body = await self._read()
            # Making keys of numbers is work: not on the event loop.
            found = await asyncio.to_thread(partial(signing_keys, body, self._algorithms))
        except Exception as error:  # whatever a provider answers: requests go on with the keys that are there
            detail = str(error) if isinstance(error, JwksInvalid) else repr(error)
            log.error("event=issuer_keys_not_read detail=%r earlier_keys=%d", detail[:500], len(self._keys))
            return
        self._worked_ms = began_ms
        for kid, reason in found.left_out.items():
            log.warning("event=issuer_key_left_out kid=%r detail=%r", kid[:64], reason)
        self._set(found.keys)

    def _set(self, keys: Mapping[str, SigningKey]) -> None:
        before, self._keys = self._keys, keys
        if {kid: one.thumbprint for kid, one in before.items()} != {kid: one.thumbprint for kid, one in keys.items()}:
            log.info("event=issuer_keys count=%d", len(keys))
            self.changed()


def _nothing() -> None:
    """Do nothing."""
