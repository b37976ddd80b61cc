"""The check in front of all paths: what each call needs, which principal calls, and whether it may."""

from __future__ import annotations

from deltamq.api.auth.caller import CALLER, EVERYBODY, Caller, caller_of, permit_put, require_also
from deltamq.api.auth.calls import (
    CALLS,
    OPEN,
    FoundCall,
    access_of,
    call_of,
    check_complete,
    is_audited,
    named_by,
    needs_of,
)
from deltamq.api.auth.certificates import Certificates
from deltamq.api.auth.credentials import Credentials, SignerUnknown, not_valid
from deltamq.api.auth.forwarded_caller import CALLED_BY, called_by, caller_header
from deltamq.api.auth.gate import SHOWN, Gate
from deltamq.api.auth.guarded_warehouse import guarded_warehouse, is_guarded
from deltamq.api.auth.key_times import KeyTimes
from deltamq.api.auth.proof import Prover, derived
from deltamq.api.auth.quotas import Meter, Quotas

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
    "FoundCall",
    "Gate",
    "KeyTimes",
    "Meter",
    "Prover",
    "Quotas",
    "SignerUnknown",
    "access_of",
    "call_of",
    "called_by",
    "caller_header",
    "caller_of",
    "check_complete",
    "derived",
    "guarded_warehouse",
    "is_audited",
    "is_guarded",
    "named_by",
    "needs_of",
    "not_valid",
    "permit_put",
    "require_also",
]
