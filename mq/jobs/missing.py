"""Whether a job that a queue cannot do without runs anywhere (SPEC RETRY-7)."""

from __future__ import annotations

from typing import Final

#: What does not happen while a job does not run.
NEEDED_JOBS: Final = {
    "delay": "delayed messages do not come",
    "revive": "messages that are not acknowledged in time do not come again",
}
#: A job is missed this long after its last run at the earliest: schedulers start and take over in less.
_PATIENCE_MS: Final = 60_000
#: ... and after so many of its intervals.
_INTERVALS: Final = 3
#: A run that began this long ago was killed, and left its record.
_RUN_MS_MAX: Final = 3_600_000


def is_missing(*, ok_ms: int | None, running_ms: int | None, every_ms: int, now_ms: int) -> bool:
    """Whether a job is not carried out anywhere.

    `ok_ms` is when its last run that succeeded began, `running_ms` when a run under way did, in ms since 1970; None:
    there is none. A job that fails each time is missing, too. A clock that was set back makes no job missing.
    """
    if running_ms is not None and now_ms - running_ms <= _RUN_MS_MAX:
        return False
    return ok_ms is None or now_ms - ok_ms > max(_PATIENCE_MS, _INTERVALS * every_ms)
