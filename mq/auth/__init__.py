"""Who may do what: keys, principals, access rules, and what these allow (SPEC SEC)."""

from __future__ import annotations

from mq.auth.key import Key
from mq.auth.principal import Principal
from mq.auth.rule import AccessRule
from mq.auth.state import AUTH_EVENTS, AuthEvent, AuthState

__all__ = ["AUTH_EVENTS", "AccessRule", "AuthEvent", "AuthState", "Key", "Principal"]
