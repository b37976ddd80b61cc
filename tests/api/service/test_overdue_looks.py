"""How often the service looks whether overdue messages have come again (SPEC POP-11)."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.redelivered import OverdueLooks
from deltamq.mq.queue.checkpoint import LaneKey

_TICK_S = 0.1


def _lanes(counts: dict[str, int]) -> Lanes:
    """As much of `Lanes` as is looked at: open lanes with so many overdue messages."""
    lanes = [
        SimpleNamespace(key=LaneKey("id-1", "billing", False, name), overdue=dict.fromkeys(range(count)))
        for name, count in counts.items()
    ]
    found: Any = SimpleNamespace(buffer=SimpleNamespace(lanes=lanes))
    return cast(Lanes, found)


def test_pop_11_a_lane_of_which_nothing_comes_again_is_looked_at_ever_more_seldom() -> None:
    now = 0.0
    looks, counts, seen = OverdueLooks(lambda: now), {"a": 3, "b": 0}, list[tuple[float, str]]()

    def ticks(seconds: float) -> int:
        nonlocal now
        before = len(seen)
        for _ in range(round(seconds / _TICK_S)):
            seen.extend((now, key.partition) for key in looks.due(_lanes(counts)))
            now += _TICK_S
        return len(seen) - before

    assert ticks(_TICK_S) == 1 and seen == [(0.0, "a")], "a new one at once, one without any not at all"
    assert 25 <= ticks(60) <= 40
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(seen)]
    assert max(gaps) < 2.2 and gaps[-1] > 1.9
    counts["a"] = 4  # one more is overdue: nothing has come again
    assert ticks(1.5) <= 1
    counts["a"] = 2  # something has: the rest may be on its way
    assert ticks(_TICK_S) == 1 and ticks(1.0) >= 3
    counts["a"] = 0
    assert ticks(5) == 0
    counts["a"] = 1
    assert ticks(_TICK_S) == 1, "what was forgotten is new"
