"""Looks at many folders of a store: one after the other on a disk, several at once where each waits for calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from deltamq.tables.store.store import Store

T = TypeVar("T")
R = TypeVar("R")

#: Calls of an object store that are waited for together.
_AT_ONCE: Final = 16


def at_once(store: Store, look: Callable[[T], R], at: Sequence[T]) -> Iterator[R]:
    """Yield what `look` returns for each element, in their order; the first error ends it.

    On an object store, `look` is called on several threads.
    """
    if store.cheap_look or len(at) < 2:
        yield from map(look, at)
        return
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(at)), "mq-look")
    try:
        yield from pool.map(look, at)
    finally:
        pool.shutdown(cancel_futures=True)
