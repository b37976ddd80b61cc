"""Why a body does not fit its schema (SPEC TYPE-11)."""

from __future__ import annotations

from typing import Final

#: The codes, and what each says.
CODES: Final = {
    "not_json": "the body is not one value of JSON",
    "not_text": "bytes that should be UTF-8 are not",
    "wrong_type": "the value is of another type than the schema says",
    "out_of_range": "the column's type has no such value: too large, too many digits, or no such day",
    "missing": "a field that must be there is not, or it is null",
    "unknown_field": "the schema has no such field",
    "repeated_field": "an object has the same name twice",
    "unknown_schema": "the body names no schema of the topic",
    "truncated": "the body ends within a value",
    "trailing_bytes": "there is more after the value",
}


class Misfit(Exception):
    """A body does not fit: the code, the field as a path (empty: the whole body), and the reason without any value."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.schema_id: int | None = None
        self._path: list[str] = []

    def within(self, part: str) -> None:
        """Put the name of what contains the field, or its place in a list (`[2]`), in front of the path."""
        self._path.append(part)

    @property
    def field(self) -> str:
        """The path of the field, such as `customer.address[2].zip`."""
        return "".join(part if part.startswith("[") else f".{part}" for part in reversed(self._path)).lstrip(".")
