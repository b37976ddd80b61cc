"""The words and signs of a filter, each with its place."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from deltamq.mq.errors import Unprocessable

KEYWORDS: Final = frozenset(("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"))
#: A name that needs no quotes, if it is not a keyword.
BARE_NAME: Final = r"[A-Za-z_$][A-Za-z0-9_$]*"


class TokenKind(enum.Enum):
    """What a token is."""

    SPACE = "space"
    KEYWORD = "keyword"
    NAME = "name"
    QUOTED = "quoted name"
    TEXT = "text"
    NUMBER = "number"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """One token: keywords in capitals, names and texts without their quotes."""

    kind: TokenKind
    text: str
    #: The place of its first character, from 0 on.
    position: int

    @property
    def shown(self) -> str:
        """The token as errors show it."""
        return "the end" if self.kind is TokenKind.END else repr(self.text)


_PATTERN: Final = re.compile(
    rf"""
      (?P<SPACE> [ \t\r\n]+ )
    | (?P<NUMBER> (?: [0-9]+ (?: \.[0-9]* )? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
    | (?P<NAME> {BARE_NAME} )
    | (?P<QUOTED> "(?: [^"] | "" )*+" )
    | (?P<TEXT> '(?: [^'] | '' )*+' )
    | (?P<SIGN> <> | != | <= | >= | [=<>()\[\],+*/-] )
    """,
    re.VERBOSE,
)


def refusal(position: int, expected: str, found: str) -> Unprocessable:
    """Return the error for a filter that is wrong at a place; what is `expected` there may be a list of choices."""
    return Unprocessable(
        f"filter: expected {expected} at position {position}, found {found}",
        code="invalid_filter",
        field="filter",
        extra={"position": position, "expected": expected},
    )


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens of a filter, END last; raise `invalid_filter` at what is none."""
    at = 0
    while at < len(text):
        found = _PATTERN.match(text, at)
        if found is None:
            raise refusal(at, _wanted(text[at]), repr(text[at]))
        kind = TokenKind[found.lastgroup or ""]
        if kind is not TokenKind.SPACE:
            yield _token(kind, found.group(), at)
        at = found.end()
    yield Token(TokenKind.END, "", len(text))


def _wanted(character: str) -> str:
    return f"a closing {character}" if character in "\"'" else "a name, a value or an operator"


def _token(kind: TokenKind, text: str, position: int) -> Token:
    if kind in (TokenKind.QUOTED, TokenKind.TEXT):
        quote = text[0]
        return Token(kind, text[1:-1].replace(quote * 2, quote), position)
    if kind is TokenKind.NAME and text.upper() in KEYWORDS:
        return Token(TokenKind.KEYWORD, text.upper(), position)
    return Token(kind, text, position)
