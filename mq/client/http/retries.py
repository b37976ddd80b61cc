"""Retries of a call: exponential waits with jitter, `Retry-After`, one total timeout.

try ──fails──► wait (50 ms, 100, 200, ... at most 5 s; half to all of it, at random) ──► try ... until
               the retries are used up, or the next wait would end after the deadline, or the caller closes
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Final

from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import DeltaMQError, Fenced, Overloaded, Refused, Unavailable, Unknown

# Below this an attempt could not even connect.
_ATTEMPT_S_MIN: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
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
    """The attempts of one call, up to `deadline` (of `time.monotonic`).

    With `retries` None only the deadline limits them. `failures` is the number of failed attempts before this object.
    """

    def __init__(
        self,
        patience: Patience,
        *,
        deadline: float,
        retries: int | None,
        stop: threading.Event | None = None,
        failures: int = 0,
    ) -> None:
        self._patience = patience
        self._deadline = deadline
        self._retries = retries
        self._stop = stop if stop is not None else threading.Event()
        self.failures = failures

    def timeout_s(self) -> float:
        """Return the seconds that the next attempt may take: at least 1 ms, so that a late one still fails cleanly."""
        remaining_s = self._deadline - time.monotonic()
        return max(min(remaining_s, self._patience.request_timeout_s), _ATTEMPT_S_MIN)

    def may_go_on(self, error: DeltaMQError) -> bool:
        """Wait until the next attempt after `error` is due; returns False if there must be none."""
        self.failures += 1
        if self._retries is not None and self.failures > self._retries:
            return False
        wait_s = self._patience.wait_s(self.failures, random.random(), error)
        if time.monotonic() + wait_s >= self._deadline:
            return False
        return not self._stop.wait(wait_s)
