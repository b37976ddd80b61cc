"""Exclusive consumption: authorizations, pull locks, and the run of one partition in a client."""

from __future__ import annotations

from deltamq.mq.order.authorization import Authorization, Authorizations
from deltamq.mq.order.keyed import Busy, KeyedRun
from deltamq.mq.order.orderly import (
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
from deltamq.mq.order.pull_lock import ClientLock, LockAccount, PullLocks

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
