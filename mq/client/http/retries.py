"""Retries of a call: exponential waits with jitter, `Retry-After`, one total timeout; what follows a failed attempt.

    try ──fails──► wait (50 ms, 100, 200, ... at most 5 s; half to all of it, at random) ──► try ... until
                   the retries are used up, or the next wait would end after the deadline, or the caller closes

`judge` is the only place that decides what becomes of a request after a failed attempt:

    may an attempt have been applied?      this answer                               next step
    -------------------------------------  ----------------------------------------  -----------------------------
    no                                     404 topic or partition                    REROUTE   nothing was stored
    no                                     refused, several calls in the batch       SPLIT     one of them is to blame
    no                                     refused or conflict                       FAIL
    no                                     trouble, nothing left to try              FAIL      certainly not stored
    any                                    trouble, may try again                    RETRY     same bytes, same sequence
    yes                                    refused for what its messages say         FAIL      it was refused every time
    yes                                    anything else                             UNKNOWN   never called a failure
"""

from __future__ import annotations

import enum
import random
from typing import Final

import msgspec

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.shells.shell import Shell, Stop
from deltamq.mq.errors import (
    DeltaMQError,
    Fenced,
    Forbidden,
    NotFound,
    Overloaded,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unknown,
)

# Below this an attempt could not even connect.
_ATTEMPT_S_MIN: Final = 0.001


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How many times a failed call is retried, for how long in total, and how the waits between attempts grow."""

    retries: int = 10
    timeout_s: float = 30.0
    request_timeout_s: float = 10.0
    first_wait_ms: float = 50.0
    wait_ms_max: float = 5_000.0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "request_timeout_s", "first_wait_ms", "wait_ms_max"):
            if getattr(self, name) <= 0:
                raise Refused(f"{name} must be above 0", field=name)
        if self.retries < 0:
            raise Refused("retries must be at least 0", field="retries")

    def wait_s(self, failures: int, draw: float, error: DeltaMQError | None = None) -> float:
        """Return the seconds to wait after this number of failures; `draw` is a random number in [0, 1).

        They are at least as many as the service asked for in the latest error.
        """
        assert failures >= 1 and 0 <= draw < 1
        full_ms = Backoff(self.first_wait_ms, self.wait_ms_max).after(failures)
        return max(full_ms * (0.5 + draw / 2) / 1000, asked_s(error))


def asked_s(error: DeltaMQError | None) -> float:
    """Return the seconds of `Retry-After` in the answer that the error was made from; 0 without any."""
    wait_s = None if error is None else error.extra.get("retry_after_s")
    return float(wait_s) if isinstance(wait_s, int) else 0.0


def is_worth_retrying(error: DeltaMQError) -> bool:
    """Return whether the same request may succeed later: the service or the network failed, not the caller."""
    if isinstance(error, (Overloaded, Unavailable, Unknown, Fenced)):
        return True
    return error.status >= 500


class Attempts:
    """The attempts of one call, up to `deadline` (of `Shell.now`).

    With `retries` None only the deadline limits them. `failures` is the number of failed attempts before this object.
    """

    def __init__(
        self,
        patience: Patience,
        *,
        shell: Shell,
        deadline: float,
        retries: int | None,
        stop: Stop | None = None,
        failures: int = 0,
    ) -> None:
        self._shell = shell
        self._patience = patience
        self._deadline = deadline
        self._retries = retries
        self._stop = stop if stop is not None else Stop(shell)
        self.failures = failures

    def timeout_s(self, more_s: float = 0.0) -> float:
        """Return the seconds that the next attempt may take: at least 1 ms, so that a late one still fails cleanly.

        `more_s` is how long the service may let it wait.
        """
        remaining_s = self._deadline - self._shell.now()
        return max(min(remaining_s, self._patience.request_timeout_s + more_s), _ATTEMPT_S_MIN)

    async def may_go_on(self, error: DeltaMQError) -> bool:
        """Wait until the next attempt after `error` is due; returns False if there must be none."""
        self.failures += 1
        if self._retries is not None and self.failures > self._retries:
            return False
        wait_s = self._patience.wait_s(self.failures, random.random(), error)
        if self._shell.now() + wait_s >= self._deadline:
            return False
        return not await self._stop.wait(wait_s)


_WRONG_ROUTE: Final = frozenset({"partition_not_found", "topic_not_found"})
#: Refusals that depend on the service's state, not on the request: an earlier attempt may have met another state.
_OF_THE_MOMENT: Final = (NotFound, Unauthenticated, Forbidden)
#: Refusals of a whole request by its size, by the service and by proxies, which give no code. The limit is a setting,
#: and comes first: a request over it is refused although it is stored.
REQUEST_SIZE: Final = frozenset({"request_too_large", TooLarge.code})
#: The status of a proxy that did not get the whole request in time.
TIMED_OUT: Final = 408


class AfterFailure(enum.Enum):
    """What to do with a batch after a failed attempt."""

    RETRY = "retry"  #: send the same bytes again
    REROUTE = "reroute"  #: get the route again and send to where it says
    SPLIT = "split"  #: send the calls of the batch one by one
    FAIL = "fail"  #: report that it was not stored
    UNKNOWN = "unknown"  #: report that the outcome is not known


def certainly_not_applied(error: DeltaMQError) -> bool:
    """Return whether this attempt certainly stored nothing. After a 5xx or a broken connection it may have (API)."""
    return error.outcome == "not_stored"


def judge(error: DeltaMQError, *, uncertain: bool, calls: int, may_go_on: bool) -> AfterFailure:
    """Decide on a batch of `calls` calls after `error`.

    `uncertain` says that this or an earlier attempt may have been applied; `may_go_on` that tries and time are left.
    """
    if is_worth_retrying(error):
        if may_go_on:
            return AfterFailure.RETRY
        return AfterFailure.UNKNOWN if uncertain else AfterFailure.FAIL
    if uncertain:
        return AfterFailure.FAIL if was_refused_every_time(error) else AfterFailure.UNKNOWN
    if isinstance(error, NotFound) and error.code in _WRONG_ROUTE:
        return AfterFailure.REROUTE
    return AfterFailure.SPLIT if calls > 1 else AfterFailure.FAIL


def was_refused_every_time(error: DeltaMQError) -> bool:
    """Return whether earlier attempts were refused, too, because that depends only on the request."""
    if not isinstance(error, Refused) or isinstance(error, _OF_THE_MOMENT):
        return False
    return error.code not in REQUEST_SIZE and error.status != TIMED_OUT
