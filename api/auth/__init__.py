"""The check in front of all paths: what each call needs, who asks, and whether it may."""

from __future__ import annotations

from api.auth.caller import CALLER, EVERYBODY, Caller, caller_of, permit_put, require_also
from api.auth.calls import CALLS, OPEN, Found, access_of, call_of, check_complete, is_audited
from api.auth.gate import Gate
from api.auth.proof import Prover, derived
from api.auth.quotas import Quotas

__all__ = [
    "CALLER",
    "CALLS",
    "EVERYBODY",
    "OPEN",
    "Caller",
    "Found",
    "Gate",
    "Prover",
    "Quotas",
    "access_of",
    "call_of",
    "caller_of",
    "check_complete",
    "derived",
    "is_audited",
    "permit_put",
    "require_also",
]
