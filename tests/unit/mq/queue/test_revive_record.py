"""The records of the revive log as JSON (SPEC POP-4, POP-6)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.checkpoint import Checkpoint, Pop, Replaced, Span
from deltamq.mq.queue.revive_log import Ack, Done, Record, record_from_json, record_to_json
from tests.unit.mq.checkpoints import checkpoints, keys
from tests.unit.mq.queue.test_checkpoint import FILTERED, POP

KEY = Checkpoint(pop=POP, span=FILTERED).key
CHECKPOINT = Checkpoint(pop=POP, span=FILTERED, bit_map=0b010)

bits = st.integers(1, 2**32 - 1)
records = st.one_of(
    checkpoints(), st.builds(Ack, keys, bits, st.integers(0)), st.builds(Done, keys, bits, st.integers(0))
)


def through_json(record: Record) -> Record:
    tag, body = record_to_json(record)
    return record_from_json(tag, body)


def with_fields(body: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(body), **fields}).encode()


@given(records)
def test_pop_06_every_record_survives_the_log(record: Record) -> None:
    assert through_json(record) == record


def test_pop_06_a_checkpoint_has_the_fields_of_the_source() -> None:
    tag, body = record_to_json(CHECKPOINT)
    assert tag == "ck"
    assert json.loads(body) == {
        "so": 7,
        "pt": 1_000,
        "it": 60_000,
        "bm": 0b010,
        "n": 3,
        "q": "orders",
        "bn": "A",
        "t": "orders",
        "c": "billing",
        "d": [0, 1, 5],
        "ti": "id-1",
        "e": 3,
        "r": False,
        "rq": 5,
        "a": 1,
    }


def test_pop_06_one_ack_and_a_batch_have_different_tags() -> None:
    assert record_to_json(Ack(KEY, 0b010, 61_000))[0] == "ack"
    assert record_to_json(Ack(KEY, 0b110, 61_000))[0] == "bAck"
    assert record_to_json(Done(KEY, 0b110, 61_000))[0] == "done"
    assert Ack(KEY, 1, 61_000).due_time_ms == 61_000
    assert Done(KEY, 1, 61_000).due_time_ms == 61_000


def test_pop_09_a_change_and_a_death_sentence_are_part_of_the_record() -> None:
    changed = CHECKPOINT.changed(2, now_ms=5, invisible_ms=0, revive_queue=1, dead_reason="unreadable")
    assert changed.replaces == Replaced(KEY, 0b100)
    assert through_json(changed) == changed


def test_the_place_in_the_log_is_the_readers_to_know() -> None:
    tag, body = record_to_json(CHECKPOINT)
    read = record_from_json(tag, body, revive_offset=12)
    assert isinstance(read, Checkpoint)
    assert (CHECKPOINT.revive_offset, read.revive_offset) == (-1, 12)


def test_a_field_of_a_newer_release_is_left_alone() -> None:
    tag, body = record_to_json(CHECKPOINT)
    assert record_from_json(tag, with_fields(body, zz=1)) == CHECKPOINT


@pytest.mark.parametrize(
    ("name", "tag", "change"),
    [
        ("a missing field", "ck", {"so": None}),
        ("no messages", "ck", {"n": 0}),
        ("33 messages", "ck", {"n": 33, "d": None}),
        ("a bit without a message", "ck", {"bm": 0b1000}),
        ("a negative bit map, as Java writes it", "ck", {"bm": -1}),
        ("differences that do not ascend", "ck", {"d": [0, 5, 1]}),
        ("differences that do not begin at 0", "ck", {"d": [1, 2, 5]}),
        ("too few differences", "ck", {"d": [0, 1]}),
        ("too few attempts", "ck", {"a": [1, 1]}),
        ("a negative offset", "ck", {"so": -1}),
        ("a flag that is a number", "ck", {"r": 0}),
        ("an empty replacement", "ck", {"rp": {"b": 1}}),
        ("an ack of nothing", "ack", {"b": 0}),
        ("an ack of a 33rd message", "bAck", {"b": 1 << 32}),
    ],
)
def test_a_damaged_record_is_corrupt(name: str, tag: str, change: dict[str, object]) -> None:
    _, body = record_to_json(CHECKPOINT if tag == "ck" else Ack(KEY, 1, 61_000))
    with pytest.raises(Corrupt) as found:
        record_from_json(tag, with_fields(body, **change))
    assert found.value.code == "revive_record_corrupt"


def test_a_record_of_unknown_kind_is_not_skipped() -> None:
    with pytest.raises(Corrupt) as found:
        record_from_json("ck9", b"{}")
    assert found.value.code == "revive_record_unknown"


def test_pop_04_the_example_of_the_source() -> None:
    """Handle `2 1698656741635 60000 0 0 broker-a 3 2`: its checkpoint begins at 2 in queue 3 of broker-a."""
    pop = Pop(
        topic="t",
        topic_id="id",
        group="g",
        epoch=1,
        partition="3@broker-a",
        pop_time_ms=1698656741635,
        invisible_ms=60_000,
        revive_queue=0,
    )
    body = json.loads(record_to_json(Checkpoint(pop=pop, span=Span(2, 1)))[1])
    assert (body["so"], body["pt"], body["it"], body["q"], body["bn"]) == (2, 1698656741635, 60_000, "3", "broker-a")
