"""Exclusive consumption: authorizations, pull locks, and the run of one partition in a client."""

from __future__ import annotations

from mq.order.authorization import Authorization, Authorizations
from mq.order.keyed import Busy, KeyedRun
from mq.order.orderly import (
    Fetch,
    MoveAway,
    OnFailure,
    OrderlyRun,
    OrderlySettings,
    Process,
    Right,
    RunState,
    Stop,
    Verdict,
    Wait,
    Yield,
)
from mq.order.pull_lock import ClientLock, LockAccount, PullLocks

__all__ = [
    "Authorization",
    "Authorizations",
    "Busy",
    "ClientLock",
    "Fetch",
    "KeyedRun",
    "LockAccount",
    "MoveAway",
    "OnFailure",
    "OrderlyRun",
    "OrderlySettings",
    "Process",
    "PullLocks",
    "Right",
    "RunState",
    "Stop",
    "Verdict",
    "Wait",
    "Yield",
]
