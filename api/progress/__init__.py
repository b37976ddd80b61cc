"""The progress of groups: commits in lanes of all processes, and what they mean in the queues of static topics."""

from __future__ import annotations

from deltamq.api.progress.global_group import GlobalGroup, Here, is_for_all
from deltamq.api.progress.global_times import GlobalTimes
from deltamq.api.progress.group_commits import GroupCommits
from deltamq.api.progress.lane_commits import LaneCommits, is_begin
from deltamq.api.progress.queue_progress import QueueProgress, check_offset

__all__ = [
    "GlobalGroup",
    "GlobalTimes",
    "GroupCommits",
    "Here",
    "LaneCommits",
    "QueueProgress",
    "check_offset",
    "is_begin",
    "is_for_all",
]
