"""Statistics of groups, counted by this process and stored minute by minute."""

from __future__ import annotations

from deltamq.api.statistics.group_statistics import GroupStatistics
from deltamq.api.statistics.pending import Outcome

__all__ = ["GroupStatistics", "Outcome"]
