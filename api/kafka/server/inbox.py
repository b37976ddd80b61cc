"""Bytes that have arrived and are not read yet: a frame that came in one piece is taken without a copy."""

from __future__ import annotations

from typing import Final

_NOTHING: Final = b""


class Inbox:
    """The bytes of one connection, in the order of their arrival."""

    __slots__ = ("_at", "_data", "_is_lent")

    def __init__(self) -> None:
        self._data: bytes | bytearray = _NOTHING
        #: What is before it was taken.
        self._at = 0
        #: Whether somebody may still look at the data.
        self._is_lent = False

    def __len__(self) -> int:
        return len(self._data) - self._at

    def put(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        if self._at == len(self._data):
            self._data, self._at, self._is_lent = data, 0, False
            return
        if self._is_lent or not isinstance(self._data, bytearray):
            self._data = bytearray(memoryview(self._data)[self._at :])  # a lent one cannot grow
            self._at, self._is_lent = 0, False
        self._data += data

    def first(self, count: int) -> bytes:
        """Return the first bytes, and leave them there."""
        return bytes(self._data[self._at : self._at + count])

    def take(self, count: int) -> memoryview:
        """Return the first bytes, which must be there, and remove them; nobody changes them any more."""
        assert count <= len(self), "they have arrived"
        at, self._at, self._is_lent = self._at, self._at + count, True
        return memoryview(self._data)[at : at + count]

    def clear(self) -> None:
        """Forget what was not taken."""
        self._data, self._at, self._is_lent = _NOTHING, 0, False
