"""The tries of `mq.jobs`, for arrays of times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.jobs import is_tried


def are_tried(due_ms: NDArray[np.int64], *, since_ms: int, now_ms: int) -> NDArray[np.bool_]:
    """Return `is_tried` of each time; computed once for each distinct time, of which a burst has few."""
    times, which = np.unique(due_ms, return_inverse=True)
    tried = np.fromiter(
        (is_tried(time, since_ms=since_ms, now_ms=now_ms) for time in times.tolist()), dtype=bool, count=len(times)
    )
    answers: NDArray[np.bool_] = tried[which]
    return answers
