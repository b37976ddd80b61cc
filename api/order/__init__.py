"""Exclusive groups: online clients, allocation, pull locks."""

from __future__ import annotations

from deltamq.api.order.lock_starts import LockRequest
from deltamq.api.order.online_clients import Beat, OnlineClients
from deltamq.api.order.pull_gate import Gate, Gates
from deltamq.api.order.pull_locks import Locks, LocksTaken

__all__ = [
    "Beat",
    "Gate",
    "Gates",
    "LockRequest",
    "Locks",
    "LocksTaken",
    "OnlineClients",
]
