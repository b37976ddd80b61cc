"""The members of groups of Kafka's consumers."""

from __future__ import annotations

from mq.members.classic_group import ClassicGroup, Joined, Joining, MemberError, Phase

__all__ = ["ClassicGroup", "Joined", "Joining", "MemberError", "Phase"]
