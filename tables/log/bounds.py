"""Bounds of a partition that are not settings: only tests have a reason to change them."""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.mq.limits import OFFSET_MAX, PRODUCERS_MAX


class LogBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the work on one partition."""

    #: Lost races in a row after which an append gives up; each loss means that another writer's commit succeeded.
    races_max: int = 10_000
    #: Most commits that one clean-up deletes, so that a run stays short.
    clean_commits: int = 4_096
    #: Messages of one page where a whole log is folded.
    page_messages: int = 50_000
    #: The offset at which a partition is full.
    offset_max: int = OFFSET_MAX
    #: Producers whose requests a partition remembers; beyond that, the least recently seen are forgotten.
    producers_max: int = PRODUCERS_MAX


#: The bounds of services and jobs.
BOUNDS: Final = LogBounds()
