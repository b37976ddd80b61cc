"""Where the queue's own logs lie: no two share a folder, and each life has its own (SPEC POP-11, POP-12)."""

from __future__ import annotations

from itertools import product

import pytest

from deltamq.mq.names import is_system
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import (
    DELAY,
    DELAY_MARKS,
    LOST,
    OFFSETS,
    dead_ref,
    lives_of_retry,
    retry_life,
    retry_ref,
    revive_ref,
    revive_refs,
    system_ref,
)


def test_pop_06_the_revive_log_has_eight_queues_on_each_broker() -> None:
    refs = [ref for broker in ("a", "b") for ref in revive_refs("main", broker)]
    assert len({ref.folder for ref in refs}) == 16
    assert refs[3].topic == "rmq_sys_REVIVE_LOG_main" and refs[3].name == "rmq_sys_REVIVE_LOG_main#3@a"


def test_an_ordered_pop_has_no_queue_there() -> None:
    with pytest.raises(AssertionError):
        revive_ref("main", 999, "a")


def test_model_5_the_queues_own_logs_have_system_names_and_folders_of_their_own() -> None:
    refs = [system_ref(kind, "main", broker) for kind, broker in product((OFFSETS, LOST, DELAY, DELAY_MARKS), "ab")]
    refs += revive_refs("main", "a")
    assert all(is_system(ref.topic) and ref.space is Space.SYS for ref in refs)
    assert len({ref.folder for ref in refs}) == len(refs)


def test_pop_11_the_pair_of_group_and_topic_names_a_retry_partition_not_the_joined_name() -> None:
    one, other = retry_ref("a_b", 1, "c", 0, "x"), retry_ref("a", 1, "b_c", 0, "x")
    assert one.name == other.name and one.folder != other.folder


def test_pop_12_each_life_of_group_and_topic_has_retry_and_dead_partitions_of_its_own() -> None:
    lives = [retry_ref("g", epoch, "t", generation, "x") for epoch, generation in product((1, 2, 9), (0, 1, 7))]
    lives += [dead_ref("g", epoch, "x") for epoch in (1, 2, 9)]
    assert len({ref.folder for ref in lives}) == len(lives)


@pytest.mark.parametrize(("epoch", "generation"), [(1, 0), (7, 3), (2**31, 2**20 - 1)])
def test_pop_12_the_folder_of_retries_tells_both_lives(epoch: int, generation: int) -> None:
    assert lives_of_retry(retry_life(epoch, generation)) == (epoch, generation)
    assert retry_ref("g", epoch, "t", generation, "a").generation == retry_life(epoch, generation)
