"""The members of groups of Kafka's consumers."""

from __future__ import annotations

from deltamq.mq.members.classic_group import (
    MEMBERS_MAX,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    ClassicGroup,
    Joined,
    Joining,
    MemberError,
    Phase,
)

__all__ = [
    "MEMBERS_MAX",
    "SESSION_MS_MAX",
    "SESSION_MS_MIN",
    "ClassicGroup",
    "Joined",
    "Joining",
    "MemberError",
    "Phase",
]
