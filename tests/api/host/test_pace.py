"""How often a process looks at the metadata (SPEC LOOK-24)."""

from __future__ import annotations

from deltamq.api.host.pace import LeaseTimes, Pace
from deltamq.tables.config_sections import ServiceSettings


def pace(*, is_far: bool) -> Pace:
    return Pace(LeaseTimes.of(ServiceSettings(), is_far=is_far))


def waits(of: Pace, looks: int, *, is_quiet: bool = True, is_asked: bool = False) -> list[int]:
    found = []
    for _ in range(looks):
        of.looked(is_quiet=is_quiet, is_asked=is_asked)
        found.append(round(of.wait_ms))
    return found


def test_look_24_a_disk_is_looked_at_at_once_and_a_store_seldomer_and_seldomer() -> None:
    assert waits(pace(is_far=False), 3) == [100, 100, 100]
    far = pace(is_far=True)
    assert waits(far, 9) == [150, 225, 338, 506, 759, 1_139, 1_500, 1_500, 1_500]
    assert waits(far, 1, is_quiet=False) == [100]


def test_meta_08_while_a_question_waits_looks_are_frequent() -> None:
    far = pace(is_far=True)
    waits(far, 9)
    assert waits(far, 2, is_asked=True) == [250, 250]
    assert waits(far, 1) == [1_500], "it goes on as before"


def test_meta_08_others_wait_for_longer_than_an_answer_from_memory_may_be_old() -> None:
    times = LeaseTimes.of(ServiceSettings(), is_far=True)
    assert times.fresh_ms < times.ended_ms < times.lease_ms
