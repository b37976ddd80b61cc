"""Statistics of groups: what became of the messages that they got, by minute."""

from __future__ import annotations

from deltamq.mq.statistics.consumed import MINUTE_MS, Consumed, MinuteKey, StatisticsRecord, sums_of
from deltamq.mq.statistics.minutes import KEPT_MINUTES, Minutes
from deltamq.mq.statistics.pulled import Pulled

__all__ = ["KEPT_MINUTES", "MINUTE_MS", "Consumed", "MinuteKey", "Minutes", "Pulled", "StatisticsRecord", "sums_of"]
