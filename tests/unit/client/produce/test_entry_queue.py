"""The queue of sends that wait for their request."""

from __future__ import annotations

from deltamq.mq.client.produce.entry import Entry, EntryQueue
from deltamq.mq.wire.produce import Message


def queue_of(*names: str) -> tuple[EntryQueue, dict[str, Entry]]:
    queue = EntryQueue(messages_max=3, bytes_max=1_000)
    entries = {name: Entry(messages=[Message(body=name)], count=1, size=1, deadline=1.0, future=None) for name in names}
    for entry in entries.values():
        queue.append(entry)
    return queue, entries


def bodies(batch: list[Entry]) -> str:
    return "".join(str(entry.messages[0].body) for entry in batch)


def test_sends_that_are_given_up_leave_from_anywhere_and_the_others_keep_their_order() -> None:
    queue, entries = queue_of(*"abcdefg")
    assert [queue.remove(entries[name]) for name in "dagd"] == [True, True, True, False]
    assert (len(queue), bodies(queue.take_batch()), bodies(queue.take_batch())) == (4, "bce", "f")
    assert not queue.remove(entries["b"]), "it is in flight"


def test_entries_that_are_equal_are_not_the_same() -> None:
    queue, _ = queue_of("a")
    _, others = queue_of("a")
    assert not queue.remove(others["a"]) and len(queue) == 1


def test_a_refused_batch_goes_back_to_the_head_and_is_sent_one_by_one() -> None:
    queue, entries = queue_of(*"abcde")
    queue.put_back(queue.take_batch())
    queue.remove(entries["d"])
    assert [bodies(queue.take_batch()) for _ in range(4)] == ["a", "b", "c", "e"]


def test_expired_entries_leave_the_head() -> None:
    queue, _ = queue_of(*"ab")
    assert queue.take_expired(0.5) == [] and bodies(queue.take_expired(1.0)) == "ab" and not queue
