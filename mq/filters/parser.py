"""From the text of a filter to its condition: words and signs, then recursive descent; operators bind as in SQL.

    condition   all ( OR all )*
    all         one ( AND one )*
    one         NOT one | test
    test        sum [ = <> < <= > >= sum | IS [NOT] NULL | [NOT] IN ( literals ) | [NOT] BETWEEN sum AND sum
                    | [NOT] LIKE 'pattern' [ ESCAPE 'c' ] ]
    sum         product ( + - product )*
    product     factor ( * / factor )*
    factor      - factor | ( condition ) | literal | field
    field       key | tag | name | "any name" | headers['any name']

`key` and `tag` are the message's own; every other name is a header's, and a name in double quotes or in
`headers[]` always is. Case matters in names of headers, not in keywords.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar

from deltamq.mq.errors import Unprocessable
from deltamq.mq.filters.condition import (
    And,
    Arithmetic,
    Column,
    Comparison,
    Condition,
    Header,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Number,
    Operator,
    Or,
    Sign,
    Text,
    Truth,
    Value,
    all_of,
    any_of,
    is_boolean,
    is_numeric,
    parse_like,
)
from deltamq.mq.limits import FILTER_CHARS_MAX, FILTER_DEPTH_MAX, FILTER_TERMS_MAX

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
        match = _PATTERN.match(text, at)
        if match is None:
            raise refusal(at, _wanted(text[at]), repr(text[at]))
        kind = TokenKind[match.lastgroup or ""]
        if kind is not TokenKind.SPACE:
            yield _token(kind, match.group(), at)
        at = match.end()
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


T = TypeVar("T")
_Node: TypeAlias = Condition | Value

#: Parsed filters that stay in memory: every fetch and pop brings its filter as text.
_PARSED_MAX: Final = 256
#: The largest whole number that no other has the same floating point number as.
_WHOLE_MAX: Final = 2**53 - 1
_COMPARISONS: Final = {"!=": Operator.NOT_EQUAL} | {operator.value: operator for operator in Operator}
_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_COLUMNS: Final = {column.value: column for column in Column}


@lru_cache(maxsize=_PARSED_MAX)
def parse_filter(text: str) -> Condition:
    """Return the condition of a filter.

    Raises
    ------
    Unprocessable
        `invalid_filter`: the text is no condition, or too large. `position` in `extra` is the number of the first
        character that is wrong, from 0 on, and `expected` is what could stand there.
    """
    if len(text) > FILTER_CHARS_MAX:
        raise refusal(FILTER_CHARS_MAX, f"at most {FILTER_CHARS_MAX} characters", f"{len(text)}")
    _check_unicode(text)
    return _Parser(text).whole()


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(error.start, "a character of Unicode", "half of a surrogate pair") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(tokens_of(text))
        self._at = 0
        self._depth = 0
        self._terms = 0

    # Tokens.

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _wrong(self, expected: str) -> Unprocessable:
        return refusal(self._token.position, expected, self._token.shown)

    def _take(self, kind: TokenKind, *texts: str) -> Token | None:
        """Pass over the next token and return it, if it is of this kind and one of the texts; no texts allow any."""
        token = self._token
        if token.kind is not kind or (texts and token.text not in texts):
            return None
        self._at += 1
        return token

    def _need(self, kind: TokenKind, text: str) -> None:
        if self._take(kind, text) is None:
            raise self._wrong(text)

    def _nested(self, parse: Callable[[], T]) -> T:
        if self._depth == FILTER_DEPTH_MAX:
            # The parenthesis or NOT has been passed over.
            self._at -= 1
            raise self._wrong(f"at most {FILTER_DEPTH_MAX} nested parentheses and NOTs")
        self._depth += 1
        parsed = parse()
        self._depth -= 1
        return parsed

    def _count_term(self) -> None:
        self._terms += 1
        if self._terms > FILTER_TERMS_MAX:
            raise self._wrong(f"at most {FILTER_TERMS_MAX} terms")

    # Conditions.

    def whole(self) -> Condition:
        condition = self._condition(self._any())
        if self._token.kind is not TokenKind.END:
            raise self._wrong("AND, OR or the end")
        return condition

    def _condition(self, node: _Node) -> Condition:
        """Return a node that must be a condition; what would make it one is missing at the next token."""
        if isinstance(node, And | Or | Not | Comparison | IsNull | In | Like | Truth):
            return node
        raise self._wrong("a comparison, IS, IN, BETWEEN or LIKE")

    def _any(self) -> _Node:
        return self._chain(self._all, "OR", any_of)

    def _all(self) -> _Node:
        return self._chain(self._one, "AND", all_of)

    def _chain(self, parse: Callable[[], _Node], word: str, join: Callable[[list[Condition]], Condition]) -> _Node:
        node = parse()
        if self._token.text != word or self._token.kind is not TokenKind.KEYWORD:
            return node
        conditions = [self._condition(node)]
        while self._take(TokenKind.KEYWORD, word):
            conditions.append(self._condition(parse()))
        return join(conditions)

    def _one(self) -> _Node:
        if self._take(TokenKind.KEYWORD, "NOT"):
            return Not(self._condition(self._nested(self._one)))
        return self._test()

    def _test(self) -> _Node:
        start = self._token
        node = self._sum()
        operator = self._take(TokenKind.SIGN, *_COMPARISONS)
        if operator is not None:
            return self._comparison(_value(node, start), operator)
        if self._take(TokenKind.KEYWORD, "IS"):
            opposite = self._take(TokenKind.KEYWORD, "NOT")
            self._need(TokenKind.KEYWORD, "NULL")
            return _maybe_not(opposite, IsNull(_value(node, start)))
        opposite = self._take(TokenKind.KEYWORD, "NOT")
        test = self._take(TokenKind.KEYWORD, "IN", "BETWEEN", "LIKE")
        if test is not None:
            parse = {"IN": self._in, "BETWEEN": self._between, "LIKE": self._like}[test.text]
            return _maybe_not(opposite, parse(_value(node, start), start))
        if opposite is not None:
            raise self._wrong("IN, BETWEEN or LIKE")
        return node

    def _comparison(self, left: Value, operator: Token) -> Comparison:
        start = self._token
        right = _value(self._sum(), start)
        _check_kinds(left, right, start)
        comparison = _COMPARISONS[operator.text]
        if is_boolean(left, right) and comparison not in (Operator.EQUAL, Operator.NOT_EQUAL):
            raise refusal(operator.position, "= or <> beside TRUE or FALSE", operator.shown)
        return Comparison(comparison, left, right)

    def _between(self, value: Value, start: Token) -> Condition:
        if is_boolean(value):
            raise refusal(start.position, "a number or a text", start.shown)
        # The value is compared twice.
        self._count_term()
        low = self._bound()
        self._need(TokenKind.KEYWORD, "AND")
        return all_of((Comparison(Operator.AT_LEAST, value, low), Comparison(Operator.AT_MOST, value, self._bound())))

    def _bound(self) -> Value:
        start = self._token
        bound = _value(self._sum(), start)
        if is_boolean(bound):
            raise refusal(start.position, "a number or a text", start.shown)
        return bound

    def _in(self, value: Value, _: Token) -> In:
        self._need(TokenKind.SIGN, "(")
        items = [self._item(value)]
        while self._take(TokenKind.SIGN, ","):
            items.append(self._item(value))
        if self._take(TokenKind.SIGN, ")") is None:
            raise self._wrong(", or )")
        return In(value, tuple(items))

    def _item(self, value: Value) -> Literal:
        start = self._token
        minus = self._take(TokenKind.SIGN, "-")
        item = self._number() if minus else self._literal()
        if item is None:
            raise self._wrong("a number" if minus else "a text in quotes, a number, TRUE, FALSE or NULL")
        if minus and isinstance(item, Number):
            item = _negative(item)
        _check_kinds(value, item, start)
        return item

    def _like(self, value: Value, start: Token) -> Like:
        if is_numeric(value) or is_boolean(value):
            raise refusal(start.position, "a text or a name", start.shown)
        self._count_term()
        text = self._take(TokenKind.TEXT)
        if text is None:
            raise self._wrong("a pattern in quotes")
        escape = self._escape() if self._take(TokenKind.KEYWORD, "ESCAPE") else None
        pattern = parse_like(text.text, escape)
        if pattern is None:
            raise refusal(text.position, f"%, _ or {escape} behind each {escape} of the pattern", text.shown)
        return Like(value, pattern)

    def _escape(self) -> str:
        token = self._token
        if token.kind is not TokenKind.TEXT or len(token.text) != 1 or token.text in "%_":
            raise self._wrong("one character in quotes, but % and _")
        self._at += 1
        return token.text

    # Values.

    def _sum(self) -> _Node:
        return self._calculation(self._product, Sign.PLUS, Sign.MINUS)

    def _product(self) -> _Node:
        return self._calculation(self._factor, Sign.TIMES, Sign.DIVIDE)

    def _calculation(self, parse: Callable[[], _Node], *signs: Sign) -> _Node:
        start = self._token
        node = parse()
        while token := self._take(TokenKind.SIGN, *(sign.value for sign in signs)):
            left, right_start = _number_value(node, start), self._token
            node = Arithmetic(Sign(token.text), left, _number_value(parse(), right_start))
        return node

    def _factor(self) -> _Node:
        if self._take(TokenKind.SIGN, "-"):
            start = self._token
            value = _number_value(self._nested(self._factor), start)
            if isinstance(value, Number):
                return _negative(value)
            self._count_term()
            return Arithmetic(Sign.MINUS, Number(0.0), value)
        if self._take(TokenKind.SIGN, "("):
            node = self._nested(self._any)
            if self._take(TokenKind.SIGN, ")") is None:
                raise self._wrong("an operator or )")
            return node
        self._count_term()
        value_or_none = self._literal() or self._field()
        if value_or_none is None:
            raise self._wrong("a name, a text in quotes, a number or (")
        return value_or_none

    def _literal(self) -> Literal | None:
        text = self._take(TokenKind.TEXT)
        if text is not None:
            return Text(text.text)
        word = self._take(TokenKind.KEYWORD, *_TRUTHS)
        if word is not None:
            return Truth(_TRUTHS[word.text])
        return self._number()

    def _number(self) -> Number | None:
        if self._token.kind is not TokenKind.NUMBER:
            return None
        value = float(self._token.text)
        if math.isinf(value):
            raise self._wrong("a number that a double can hold")
        if self._token.text.isdecimal() and value > _WHOLE_MAX:
            raise self._wrong(f"a whole number of at most {_WHOLE_MAX}, or a text in quotes")
        self._at += 1
        return Number(value)

    def _field(self) -> Header | Column | None:
        quoted = self._take(TokenKind.QUOTED)
        if quoted is not None:
            return Header(quoted.text)
        name = self._take(TokenKind.NAME)
        if name is None:
            return None
        if name.text == "headers" and self._take(TokenKind.SIGN, "["):
            return self._subscript()
        return _COLUMNS.get(name.text) or Header(name.text)

    def _subscript(self) -> Header:
        name = self._take(TokenKind.TEXT)
        if name is None:
            raise self._wrong("the name of a header in single quotes")
        self._need(TokenKind.SIGN, "]")
        return Header(name.text)


def _value(node: _Node, start: Token) -> Value:
    if isinstance(node, Header | Column | Text | Number | Truth | Arithmetic):
        return node
    raise refusal(start.position, "a value", "a condition")


def _number_value(node: _Node, start: Token) -> Value:
    value = _value(node, start)
    if is_boolean(value):
        raise refusal(start.position, "a number", start.shown)
    return value


def _negative(number: Number) -> Number:
    # Without the 0.0, zero would become -0.0.
    return Number(0.0 - number.value)


def _maybe_not(opposite: Token | None, condition: Condition) -> Condition:
    return condition if opposite is None else Not(condition)


def _check_kinds(left: Value, right: Value, start: Token) -> None:
    if is_numeric(left, right) and is_boolean(left, right):
        expected = "TRUE or FALSE" if is_boolean(left) else "a number or a text"
        raise refusal(start.position, expected, start.shown)
