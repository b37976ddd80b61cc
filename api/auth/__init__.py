"""The check in front of all paths: what each call needs, who asks, and whether it may."""

from __future__ import annotations

from api.auth.caller import CALLER, EVERYBODY, Caller, caller_of, permit_put, require_also
from api.auth.calls import CALLS, OPEN, check_complete, named_by, needs_of
from api.auth.certificates import CALLED_BY, Certificates, called_by
from api.auth.credentials import Credentials, SignerUnknown, not_valid
from api.auth.gate import SHOWN, Gate, on_behalf_of
from api.auth.key_times import KeyTimes
from api.auth.proof import Prover, derived
from api.auth.quotas import Meter, Quotas

__all__ = [
    "CALLED_BY",
    "CALLER",
    "CALLS",
    "EVERYBODY",
    "OPEN",
    "SHOWN",
    "Caller",
    "Certificates",
    "Credentials",
    "Gate",
    "KeyTimes",
    "Meter",
    "Prover",
    "Quotas",
    "SignerUnknown",
    "called_by",
    "caller_of",
    "check_complete",
    "derived",
    "named_by",
    "needs_of",
    "not_valid",
    "on_behalf_of",
    "permit_put",
    "require_also",
]
