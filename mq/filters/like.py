"""Patterns of LIKE: `%` stands for any text, `_` for any one character; matched in one pass over the text.

The match keeps the set of all places in the pattern where it may be, as the bits of an integer. So its time grows with
the text, whatever the pattern: nothing is ever tried a second time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

#: Patterns that stay prepared; a process sees few.
_PREPARED_MAX: Final = 256


class Wildcard(enum.Enum):
    """What a pattern leaves open."""

    ANY_TEXT = "%"
    ANY_CHARACTER = "_"


#: Literal texts, never empty and never side by side, and wildcards.
Pattern: TypeAlias = tuple[str | Wildcard, ...]


def parse_like(text: str, escape: str | None) -> Pattern | None:
    """Return the pattern of a text; None if an escape character is not followed by a wildcard or by itself."""
    parts: list[str | Wildcard] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape):
                return None
            _append_literal(parts, character)
        elif character not in ("%", "_"):
            _append_literal(parts, character)
        elif character == "_" or parts[-1:] != [Wildcard.ANY_TEXT]:
            parts.append(Wildcard(character))
    return tuple(parts)


def _append_literal(parts: list[str | Wildcard], character: str) -> None:
    if parts and isinstance(parts[-1], str):
        parts[-1] += character
    else:
        parts.append(character)


def like_text(pattern: Pattern) -> tuple[str, str | None]:
    """Return a text and an escape character that `parse_like` makes the pattern of."""
    escape = "\\" if any(isinstance(part, str) and ("%" in part or "_" in part) for part in pattern) else None
    return "".join(part.value if isinstance(part, Wildcard) else _escaped(part, escape) for part in pattern), escape


def _escaped(literal: str, escape: str | None) -> str:
    if escape is None:
        return literal
    return "".join(escape + character if character in ("%", "_", escape) else character for character in literal)


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of a pattern, one before each character and one at its end, each as one bit."""

    #: Places that a given character leads on from; those of any character are in `anything`.
    by_character: dict[str, int]
    anything: int
    #: Places that any text leads back to.
    loops: int
    end: int


@lru_cache(maxsize=_PREPARED_MAX)
def _places(pattern: Pattern) -> _Places:
    by_character: dict[str, int] = {}
    anything = loops = 0
    place = 1
    for part in pattern:
        if part is Wildcard.ANY_TEXT:
            loops |= place
        elif part is Wildcard.ANY_CHARACTER:
            anything |= place
            place <<= 1
        else:
            for character in part:
                by_character[character] = by_character.get(character, 0) | place
                place <<= 1
    return _Places(by_character, anything, loops, place)


def matches_like(text: str, pattern: Pattern) -> bool:
    """Whether a text fits the pattern as a whole; case matters."""
    places = _places(pattern)
    at = 1
    for character in text:
        at = ((at & (places.by_character.get(character, 0) | places.anything)) << 1) | (at & places.loops)
        if not at:
            return False
    return bool(at & places.end)
