"""Bounds of a partition that are no settings: nobody has a reason for another value but a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.limits import OFFSET_MAX

__all__ = ["BOUNDS", "LogBounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Bounds of the work on one partition."""

    #: Lost races in a row before an append gives up; each loss means that somebody else's append succeeded.
    races_max: int = 10_000
    #: One clean-up deletes at most so many commits, so that a run stays short.
    clean_commits: int = 4_096
    #: Messages of a page where all of a log is folded.
    page_messages: int = 50_000
    #: Where a partition ends.
    offset_max: int = OFFSET_MAX


#: Those of a process that serves, or carries out jobs.
BOUNDS: Final = LogBounds()
