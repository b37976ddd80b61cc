"""Statistics of groups, counted by this process and stored minute by minute."""

from __future__ import annotations

from api.statistics.group_statistics import GroupStatistics
from api.statistics.pending import Outcome

__all__ = ["GroupStatistics", "Outcome"]
