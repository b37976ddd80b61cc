"""What is heard of other hosts, and when one of them is asked (SPEC META-8)."""

from __future__ import annotations

import pytest

from deltamq.mq.meta.hearing import Hearing, neighbours_of


@pytest.fixture
def hearing() -> Hearing:
    hearing = Hearing(silent_ms=2_000, again_ms=10_000)
    hearing.listen(["b"], [], 0)
    return hearing


def test_meta_08_each_host_listens_to_the_next_two_and_all_are_heard_by_two() -> None:
    hosts = ["a", "b", "c", "d", "e"]
    assert neighbours_of("a", hosts) == ["b", "c"]
    assert neighbours_of("e", hosts) == ["a", "b"]
    heard = [one for host in hosts for one in neighbours_of(host, hosts)]
    assert sorted(heard) == sorted(hosts * 2)
    assert neighbours_of("a", ["a"]) == [] and neighbours_of("a", ["b"]) == ["b"]


def test_meta_08_one_that_answers_is_not_doubted(hearing: Hearing) -> None:
    assert hearing.heard("b", 500) is True and hearing.heard("b", 1_000) is False
    hearing.missed("b", refuses=False)
    assert hearing.doubted(60_000) == set(), "one answer that is missing: the listener may have slept"
    hearing.missed("b", refuses=False)
    assert hearing.doubted(2_999) == set() and hearing.doubted(3_000) == {"b"}
    assert not hearing.has_ended("b"), "it is slow, or the network is cut"
    hearing.heard("b", 3_000)
    assert hearing.doubted(4_999) == set()


def test_meta_08_one_that_was_reached_and_refuses_connections_is_doubted_at_once(hearing: Hearing) -> None:
    hearing.heard("b", 1_000)
    hearing.missed("b", refuses=True)
    assert hearing.doubted(1_001) == {"b"} and hearing.has_ended("b")
    hearing.heard("b", 1_002)
    assert hearing.doubted(1_003) == set() and not hearing.has_ended("b")


def test_meta_08_one_that_was_never_reached_may_have_a_wrong_address(hearing: Hearing) -> None:
    hearing.missed("b", refuses=True)
    hearing.missed("b", refuses=True)
    assert hearing.doubted(1_999) == set() and hearing.doubted(2_000) == {"b"}, "as one that is silent"
    assert not hearing.has_ended("b")


def test_meta_08_an_earlier_life_at_the_own_address_has_ended(hearing: Hearing) -> None:
    hearing.listen(["b"], ["before"], 0)
    assert hearing.doubted(0) == {"before"} and hearing.has_ended("before")


def test_meta_08_one_is_not_asked_again_and_again(hearing: Hearing) -> None:
    hearing.heard("b", 0)
    hearing.missed("b", refuses=True)
    hearing.asked(["b"], 100)
    assert hearing.doubted(10_099) == set() and hearing.doubted(10_100) == {"b"}


def test_meta_08_who_is_not_listened_to_is_forgotten(hearing: Hearing) -> None:
    hearing.heard("b", 0)
    hearing.missed("b", refuses=True)
    hearing.listen(["c"], [], 1)
    hearing.heard("b", 2)
    hearing.missed("b", refuses=True)
    assert hearing.doubted(60_000) == set() and not hearing.has_ended("b")
