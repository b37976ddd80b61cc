"""The clients of shared groups that are remembered, and their topics (SPEC CONS-5)."""

from __future__ import annotations

from deltamq.api.queue.seen_clients import TOPICS_MAX, SeenClients
from deltamq.mq.meta.online import Subscription

ALL = Subscription(order=False, tags="*", filter=None)


def topics_of(seen: SeenClients) -> list[str]:
    return list(seen.of("g")["c"].topics)


def test_cons_05_of_a_client_that_pops_many_topics_the_latest_are_remembered() -> None:
    seen = SeenClients(lambda: 0, keep_ms=30_000)
    for number in range(TOPICS_MAX * 3):
        seen.note("g", "c", {"often": ALL})
        seen.note("g", "c", {f"t{number}": ALL})
    assert len(topics_of(seen)) == TOPICS_MAX
    assert {"often", f"t{TOPICS_MAX * 3 - 1}"} <= set(topics_of(seen))


def test_cons_05_a_client_that_holds_messages_is_shown_until_they_come_again() -> None:
    now = [0]
    seen = SeenClients(lambda: now[0], keep_ms=30_000)
    for client in ("holds", "idle"):
        seen.note("g", client, {"orders": ALL})
    seen.holds("g", "holds", 600_000)
    seen.holds("g", "holds", 1_000)
    now[0] = 599_999
    assert list(seen.of("g")) == ["holds"]
    now[0] = 600_000
    assert list(seen.of("g")) == []
    seen.holds("g", "holds", 600_000)
    seen.gone("g", "holds")
    assert list(seen.of("g")) == [], "it has said that it leaves"


def test_cons_05_a_heartbeat_says_all_topics_of_its_client() -> None:
    seen = SeenClients(lambda: 0, keep_ms=30_000)
    seen.note("g", "c", {"popped": ALL})
    seen.beat("g", "c", {"a": ALL, "b": ALL})
    assert topics_of(seen) == ["a", "b"]
    seen.note("g", "c", {"popped": ALL})
    assert topics_of(seen) == ["a", "b", "popped"]
    seen.beat("g", "c", {"b": ALL})
    assert topics_of(seen) == ["b"]
    seen.beat("g", "c", {f"t{number}": ALL for number in range(TOPICS_MAX + 1)})
    assert len(topics_of(seen)) == TOPICS_MAX
