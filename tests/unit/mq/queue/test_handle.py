"""Handles: what they say, and that nobody else can make them (SPEC POP-5, POP-8, POP-12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, Refused
from deltamq.mq.queue.checkpoint import Checkpoint, Pop, Span, spans_of
from deltamq.mq.queue.handle import (
    Handle,
    HandleKeys,
    check_live,
    claimed_topics,
    cluster_of_handle,
    handle_of_cluster,
    life_digest,
    mint,
    open_handle,
    open_handles,
)
from tests.unit.mq.checkpoints import pops, spans
from tests.unit.mq.queue.test_checkpoint import FILTERED, POP

KEYS = HandleKeys(current=1, secrets={1: b"s" * 32})
URL_SAFE = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def one(pop: Pop = POP, span: Span = FILTERED, index: int = 1) -> str:
    return mint(KEYS, pop, [span])[index]


@given(pops, spans())
def test_pop_05_a_handle_says_what_its_checkpoint_is(pop: Pop, span: Span) -> None:
    handles = mint(KEYS, pop, [span])
    assert len(set(handles)) == span.num
    for index, text in enumerate(handles):
        handle = open_handle(KEYS, pop.group, text)
        assert handle.lease.key(pop.topic_id, pop.group) == Checkpoint(pop=pop, span=span).key
        assert handle.lease.span == span
        assert (handle.index, handle.offset) == (index, span.offset_of(index))
        assert handle.attempt == span.attempt_of(index)
        assert handle.lease.topic == pop.topic
        assert handle.lease.revive_time_ms == pop.revive_time_ms
        assert handle.lease.life == life_digest(pop.topic_id)


def test_sec_04_the_topics_that_handles_claim_are_those_that_genuine_ones_have() -> None:
    other = mint(KEYS, replace(POP, topic="other"), [FILTERED])
    forged = other[0][:-1] + ("A" if other[0][-1] != "A" else "B")
    assert claimed_topics(mint(KEYS, POP, [FILTERED])) == {POP.topic}
    assert claimed_topics([one(), forged, "", "x", "1!" + "A" * 17]) == {POP.topic, "other"}
    assert open_handles(KEYS, POP.group, [forged]) == ([], [0]), "what it claims is not believed"
    named = [handle_of_cluster("west", handle) for handle in other]
    assert claimed_topics(named) == {"other"}, "a cluster's name before a handle hides no topic from the check"


def test_sec_36_handles_that_are_joined_wrongly_are_refused() -> None:
    """Found by `make fuzz`: three handles in two texts were taken for three, with a position that there is not."""
    first, second, third = mint(KEYS, POP, [FILTERED])[:3]
    for texts in ([first, second + third], [first + second + third], [first + second + third, "", ""]):
        opened, invalid = open_handles(KEYS, POP.group, texts)
        positions = sorted([*invalid, *(at for one in opened for at in one.positions)])
        assert positions == list(range(len(texts)))
        assert sum(one.bits.bit_count() for one in opened) <= 1


@pytest.mark.parametrize("tenure", [0, 7, 2**32 - 1])
def test_pop_08_a_handle_says_in_which_tenure_it_was_made_and_is_no_longer_for_it(tenure: int) -> None:
    (text,) = mint(KEYS, replace(POP, epoch=2**32 - 1), [Span(2, 1)], tenure=tenure)
    lease = open_handle(KEYS, "billing", text).lease
    assert (lease.tenure, lease.epoch) == (tenure, 2**32 - 1)
    assert len(text) == len(mint(KEYS, POP, [Span(2, 1)])[0])


def test_pop_05_the_text_has_the_eight_fields_of_the_source() -> None:
    pop = replace(POP, partition="3@broker-a", pop_time_ms=1698656741635, revive_queue=0)
    handle = open_handle(KEYS, "billing", mint(KEYS, pop, [Span(2, 1)])[0])
    assert handle.text == "2 1698656741635 60000 0 0 broker-a 3 2"
    filtered = open_handle(KEYS, "billing", one(replace(POP, retry=True), index=2))
    assert filtered.text == "7 1000 60000 5 1 A orders 12"


def test_pop_05_a_name_with_a_space_is_still_one_field() -> None:
    handle = open_handle(KEYS, "billing", one(replace(POP, partition="my orders@A")))
    assert len(handle.text.split(" ")) == 8


def test_pop_05_on_the_wire_a_handle_is_one_safe_word() -> None:
    assert set(one()) <= URL_SAFE
    assert len(one(span=Span(7, 3))) < 128


@given(st.data(), pops, spans())
def test_pop_05_a_forged_handle_is_refused_whatever_character_was_changed(
    data: st.DataObject, pop: Pop, span: Span
) -> None:
    text = data.draw(st.sampled_from(mint(KEYS, pop, [span])))
    at = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.sampled_from(sorted(URL_SAFE - {text[at]})))
    with pytest.raises(Refused) as refused:
        open_handle(KEYS, pop.group, text[:at] + char + text[at + 1 :])
    assert (refused.value.code, refused.value.status) == ("handle_invalid", 400)


@given(st.text(max_size=200) | st.text(alphabet=sorted(URL_SAFE), max_size=200).map(lambda text: "1" + text))
def test_pop_05_garbage_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        open_handle(KEYS, "billing", text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty", ""),
        ("cut", one()[:-1]),
        ("longer", one() + "A"),
        ("a space before", " " + one()),
        ("padding", one()[:-17] + "=" + one()[-17:]),
        ("not ASCII", one()[:-1] + "é"),
        ("a later version", "2" + one()[1:]),
        ("the text of the source", "2 1698656741635 60000 0 0 broker-a 3 2"),
        ("the tag of the neighbour", one(index=1)[:-16] + one(index=0)[-16:]),
        ("the index of the neighbour", one(index=1)[:-17] + one(index=0)[-17] + one(index=1)[-16:]),
        ("an index that the lease does not have", one()[:-17] + "f" + one()[-16:]),
        ("an index that no lease has", one()[:-17] + "g" + one()[-16:]),
    ],
)
def test_pop_05_a_garbled_handle_is_refused(name: str, text: str) -> None:
    with pytest.raises(Refused) as refused:
        open_handle(KEYS, "billing", text)
    assert refused.value.code == "handle_invalid"


def test_pop_05_the_handle_of_another_group_is_refused() -> None:
    with pytest.raises(Refused):
        open_handle(KEYS, "shipping", one())


def test_a_handle_made_with_another_secret_is_refused_even_with_its_key_id() -> None:
    for secrets in ({1: b"t" * 32}, {2: b"s" * 32}):
        other = HandleKeys(current=next(iter(secrets)), secrets=secrets)
        with pytest.raises(Refused):
            open_handle(other, "billing", one())


def test_secrets_can_be_rotated() -> None:
    rotated = HandleKeys(current=2, secrets={1: b"s" * 32, 2: b"u" * 32})
    assert open_handle(rotated, "billing", one()).offset == 8
    new = mint(rotated, POP, [FILTERED])[1]
    assert new != one()
    assert open_handle(rotated, "billing", new).offset == 8
    with pytest.raises(Refused):
        open_handle(KEYS, "billing", new)


@pytest.mark.parametrize("secrets", [{}, {2: b"s" * 32}, {1: b"short"}, {1: b"s" * 32, 256: b"s" * 32}])
def test_keys_are_checked(secrets: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match=r"secret|key ids"):
        HandleKeys(current=1, secrets=secrets)


def test_secrets_are_not_shown() -> None:
    assert "sss" not in repr(KEYS)


@given(st.integers(1, 200), st.data())
def test_a_batch_of_handles_is_opened_by_lease(count: int, data: st.DataObject) -> None:
    """Whole, in parts, shuffled, repeated, with forged ones between: each position is answered once."""
    minted = mint(KEYS, POP, spans_of(range(100, 100 + count)))
    assert len(minted) == count
    kind = data.draw(st.sampled_from(["whole", "part", "shuffled"]))
    positions = list(range(count))
    if kind != "whole":
        positions = data.draw(st.lists(st.sampled_from(positions), min_size=1, unique=kind == "part"))
    handles = [minted[at] for at in positions]
    forged = sorted(data.draw(st.sets(st.integers(0, len(handles) - 1), max_size=3)))
    for at in forged:
        handles[at] = handles[at][:-1] + ("A" if handles[at][-1] != "A" else "B")
    opened, invalid = open_handles(KEYS, "billing", handles)
    assert invalid == forged
    assert sorted(at for lease in opened for at in lease.positions) == [
        at for at in range(len(handles)) if at not in forged
    ]
    for lease, bits, places in opened:
        offsets = {lease.span.offset_of(i) for i in range(32) if bits >> i & 1}
        assert offsets == {100 + positions[at] for at in places}


def test_open_handles_of_nothing() -> None:
    assert open_handles(KEYS, "billing", []) == ([], [])


def test_pop_08_a_handle_expires_with_the_invisible_time() -> None:
    lease = open_handle(KEYS, "billing", one()).lease
    check_live(lease, topic_id="id-1", epoch=3, now_ms=60_999)
    for now_ms in (61_000, 10**12):
        with pytest.raises(Conflict) as refused:
            check_live(lease, topic_id="id-1", epoch=3, now_ms=now_ms)
        assert (refused.value.code, refused.value.status) == ("handle_expired", 409)


@pytest.mark.parametrize(
    ("name", "topic_id", "epoch"),
    [
        ("topic deleted", None, 3),
        ("topic deleted and made again", "id-2", 3),
        ("group deleted", "id-1", None),
        ("offsets reset", "id-1", 4),
        ("an epoch of the past", "id-1", 2),
    ],
)
def test_pop_12_a_handle_of_an_earlier_life_is_refused(name: str, topic_id: str | None, epoch: int | None) -> None:
    lease = open_handle(KEYS, "billing", one()).lease
    with pytest.raises(Conflict) as refused:
        check_live(lease, topic_id=topic_id, epoch=epoch, now_ms=1_000)
    assert refused.value.code == "handle_expired"


def test_a_handle_is_a_value() -> None:
    assert open_handle(KEYS, "billing", one()) == Handle(open_handle(KEYS, "billing", one()).lease, 1)


@given(st.lists(st.sampled_from(["", "east", "a.b-c_d"]), min_size=1, max_size=8))
def test_static_19_a_handle_says_its_cluster_and_is_opened_as_without_it(clusters: list[str]) -> None:
    plain = mint(KEYS, POP, [Span(7, len(clusters), None, 1)])
    named = [handle_of_cluster(one, text) if one else text for one, text in zip(clusters, plain, strict=True)]
    assert [cluster_of_handle(text) for text in named] == clusters
    opened, invalid = open_handles(KEYS, POP.group, named)
    assert not invalid and [list(one.positions) for one in opened] == [list(range(len(plain)))]
    assert open_handles(KEYS, POP.group, [text[:-1] + "!" for text in named]) == ([], list(range(len(plain))))
