"""A mark on threads that run the user's code, where calls that would wait for the same thread are refused."""

from __future__ import annotations

import threading


class Inside(threading.local):
    """A thread-local flag: `active` is True within a `with` block of this object."""

    active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *_: object) -> None:
        self.active = False
