"""The queue of sends that wait for their request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.client.messages.message import Message, Sent, SentRange
from deltamq.mq.client.produce.entry import Entry, EntryQueue
from deltamq.mq.client.produce.wire import tell_stored
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import Unknown


def queue_of(*names: str) -> tuple[EntryQueue, dict[str, Entry]]:
    queue = EntryQueue(messages_max=3, bytes_max=1_000)
    entries = {name: Entry([Message(name.encode())], 1, 1, 1.0, [None]) for name in names}
    for entry in entries.values():
        queue.append(entry)
    return queue, entries


def bodies(batch: list[Entry]) -> str:
    return b"".join(message.body for entry in batch for message in entry.messages).decode()


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


def gathered(queue: EntryQueue, names: str, *, deadline: float = 1.0, size: int = 1) -> list[SendFuture[Sent]]:
    futures: list[SendFuture[Sent]] = [SendFuture() for _ in names]
    for name, future in zip(names, futures, strict=True):
        queue.gather(Message(name.encode()), size, deadline, future, ord(name))
    return futures


def test_messages_are_gathered_up_to_the_size_of_a_request() -> None:
    queue = EntryQueue(messages_max=3, bytes_max=10)
    gathered(queue, "abcdefg")
    assert (len(queue), queue.messages) == (3, 7)
    assert [bodies(queue.take_batch()) for _ in range(3)] == ["abc", "def", "g"]
    gathered(queue, "abc", size=6)
    assert (len(queue), queue.messages) == (3, 3)
    assert [bodies(queue.take_batch()) for _ in range(3)] == ["a", "b", "c"] and queue.messages == 0


def test_what_is_taken_gets_no_more_messages_and_none_overtakes_a_send_before_it() -> None:
    queue, entries = queue_of("a")
    gathered(queue, "b")
    first = queue.take_batch()
    gathered(queue, "c")
    queue.append(entries["a"])
    gathered(queue, "d")
    assert (bodies(first), bodies(queue.take_batch())) == ("ab", "cad")


def test_messages_with_other_deadlines_expire_by_themselves() -> None:
    queue = EntryQueue(messages_max=10, bytes_max=10)
    gathered(queue, "a", deadline=1.0)
    gathered(queue, "b", deadline=1.01)
    gathered(queue, "c", deadline=2.0)
    gathered(queue, "d", deadline=1.5)
    assert [bodies(queue.take_expired(now)) for now in (0.9, 1.0, 1.9, 2.0)] == ["", "ab", "", "cd"]


def test_gathered_messages_that_are_refused_together_are_sent_one_by_one() -> None:
    queue = EntryQueue(messages_max=10, bytes_max=10_000)
    sizes = Message(b"a").size_bytes()
    gathered(queue, "abc", size=sizes)
    batch = queue.take_batch()
    gathered(queue, "de", size=sizes)
    queue.put_back(batch)
    assert (len(queue), queue.messages) == (4, 5)
    taken = [queue.take_batch() for _ in range(4)]
    assert [bodies(batch) for batch in taken] == ["a", "b", "c", "de"] and queue.messages == 0
    assert [entry.born_us for batch in taken for entry in batch] == [[97], [98], [99], [100, 101]]


def placed(base_offset: int, count: int, indexes: Any = None, *, partition: str = "t@a") -> SentRange:
    return SentRange(
        partition=partition, base_offset=base_offset, count=count, duplicate=False, durable=True, indexes=indexes
    )


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_send_06_each_of_the_gathered_messages_gets_its_own_place(waited: list[bool], at: list[int]) -> None:
    """Whichever calls were gathered, and over however many partitions the service has spread them."""
    queue = EntryQueue(messages_max=100, bytes_max=100_000)
    futures: list[SendFuture[Sent]] = []
    for waits in waited:
        if waits:
            futures.append(SendFuture())
            queue.append(Entry([Message(b"x")], 1, 1, 1.0, [futures[-1]], single=True))
        else:
            futures += gathered(queue, "x", size=Message(b"x").size_bytes())
    at = at[: len(futures)]
    numbers = [[index for index, where in enumerate(at) if where == partition] for partition in range(3)]
    ranges = [
        placed(10 * partition, len(those), np.array(those), partition=f"t#{partition}@a")
        for partition, those in enumerate(numbers)
        if those
    ]
    tell_stored(queue.take_batch(), ranges if len(ranges) > 1 else [replace(ranges[0], indexes=None)])
    for index, (future, where) in enumerate(zip(futures, at, strict=True)):
        assert future.result() == Sent(f"t#{where}@a", 10 * where + numbers[where].index(index), False, True)


def test_static_10_gathered_messages_have_no_offset_while_theirs_is_undecided() -> None:
    queue = EntryQueue(messages_max=10, bytes_max=10)
    futures = gathered(queue, "ab")
    tell_stored(queue.take_batch(), [placed(-1, 2)])
    assert [future.result().offset for future in futures] == [-1, -1]


def test_an_error_is_that_of_each_gathered_message() -> None:
    queue = EntryQueue(messages_max=10, bytes_max=10)
    futures = gathered(queue, "ab")
    (entry,) = queue.take_batch()
    entry.failed(Unknown("lost"))
    assert [type(future.exception()) for future in futures] == [Unknown, Unknown]
