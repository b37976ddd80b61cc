"""Why a body does not fit its schema (SPEC TYPE-11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final

from deltamq.mq.schemas.limits import TYPED_CELLS_MIN, TYPED_CELLS_PER_BYTE_MAX


class Reason(IntEnum):
    """What is wrong with a body, or with a field of it; `columns.h` has the same numbers."""

    #: The compiled decoder leaves the body to the plain twin.
    ASK = 1
    NOT_JSON = 2
    MORE_JSON = 3
    NOT_UTF8 = 4
    SURROGATE = 5
    NOT_OBJECT = 6
    NOT_ARRAY = 7
    NOT_BOOLEAN = 8
    NOT_NUMBER = 9
    NOT_WHOLE = 10
    NOT_DECIMAL = 11
    NOT_STRING = 12
    NOT_BASE64 = 13
    NOT_DATE = 14
    NOT_TIMESTAMP = 15
    RANGE = 16
    MISSING = 17
    IS_NULL = 18
    UNKNOWN_FIELD = 19
    REPEATED = 20
    TRUNCATED = 21
    TRAILING = 22
    BRANCH = 23
    SYMBOL = 24
    LONG_NUMBER = 25
    LENGTH = 26
    ELEMENTS = 27
    NO_DIGITS = 28
    OTHER_SCHEMA = 29
    NO_HEADER = 30
    NOT_LOCAL = 31
    CONSTRAINT = 32
    NO_TAG = 33


#: The code and the text of each reason. No text has a part of the body: they go into logs and audits.
TEXTS: Final[dict[Reason, tuple[str, str]]] = {
    Reason.NOT_JSON: ("not_json", "is not JSON"),
    Reason.MORE_JSON: ("not_json", "has more than one value of JSON"),
    Reason.NOT_UTF8: ("not_text", "is not UTF-8"),
    Reason.SURROGATE: ("not_text", "has half of a surrogate pair"),
    Reason.NOT_OBJECT: ("wrong_type", "is not an object"),
    Reason.NOT_ARRAY: ("wrong_type", "is not an array"),
    Reason.NOT_BOOLEAN: ("wrong_type", "is neither true nor false"),
    Reason.NOT_NUMBER: ("wrong_type", "is not a number"),
    Reason.NOT_WHOLE: ("wrong_type", "is not a whole number"),
    Reason.NOT_DECIMAL: ("wrong_type", "is not a number, nor a string with one"),
    Reason.NOT_STRING: ("wrong_type", "is not a string"),
    Reason.NOT_BASE64: ("wrong_type", "is not base64 (RFC 4648, section 4)"),
    Reason.NOT_DATE: ("wrong_type", "is not a string YYYY-MM-DD"),
    Reason.NOT_TIMESTAMP: ("wrong_type", "is not a string YYYY-MM-DDTHH:MM:SS.ffffff with Z or +HH:MM"),
    Reason.NOT_LOCAL: ("wrong_type", "is not a string YYYY-MM-DDTHH:MM:SS.ffffff without a time zone"),
    Reason.RANGE: ("out_of_range", "has no exact value in its column: too large, too many digits, or no such day"),
    Reason.MISSING: ("missing", "is missing, and the schema requires it"),
    Reason.IS_NULL: ("missing", "is null, which the schema does not allow"),
    Reason.UNKNOWN_FIELD: ("unknown_field", "is not a field of the schema"),
    Reason.REPEATED: ("repeated_field", "occurs twice in its object"),
    Reason.TRUNCATED: ("truncated", "ends within a value"),
    Reason.TRAILING: ("trailing_bytes", "has bytes after its value"),
    Reason.BRANCH: ("wrong_type", "names a branch that the union does not have"),
    Reason.NO_TAG: ("wrong_type", "is not Protobuf: it has a field's number, or a kind of value, that there is not"),
    Reason.SYMBOL: ("out_of_range", "names a symbol that the enum does not have"),
    Reason.LONG_NUMBER: ("out_of_range", "is a number of more than 64 bits"),
    Reason.LENGTH: ("out_of_range", "has a length below zero"),
    Reason.ELEMENTS: ("out_of_range", "has more elements, with their columns, than a body of its size may have"),
    Reason.NO_DIGITS: ("wrong_type", "is a decimal without bytes"),
    Reason.OTHER_SCHEMA: ("unknown_schema", "names a schema that the topic's subject does not have"),
    Reason.CONSTRAINT: ("not_allowed", "does not meet what the schema asks of values"),
    Reason.NO_HEADER: ("unknown_schema", "does not begin with Confluent's header: a zero byte, and a schema's id"),
}

#: Reasons after which the rest of an encoded body cannot be read.
BREAKING: Final = frozenset(
    (
        Reason.TRUNCATED,
        Reason.TRAILING,
        Reason.BRANCH,
        Reason.NO_TAG,
        Reason.LONG_NUMBER,
        Reason.LENGTH,
        Reason.ELEMENTS,
    )
)
#: Characters of a name in a path that is the sender's: a map's key, or an unknown field.
_NAME_CHARS: Final = 40


class Misfit(Exception):
    """A body does not fit: the reason, and the field as a path (empty: the whole body)."""

    def __init__(self, why: Reason, text: str | None = None) -> None:
        self.why = why
        self.code, common = TEXTS[why]
        self.reason = common if text is None else text
        super().__init__(self.reason)
        self._path: list[str] = []

    @property
    def breaks(self) -> bool:
        """Whether nothing behind it can be read (Avro, Protobuf)."""
        return self.why in BREAKING

    def copy(self) -> Misfit:
        """Return the same fault, whose path may become another's."""
        copied = Misfit(self.why, self.reason)
        copied._path = list(self._path)
        return copied

    def within(self, part: str) -> None:
        """Put the name of what contains the field, or an element's place (`[2]`), in front of the path."""
        self._path.append(part)

    @property
    def field(self) -> str:
        """The path of the field, such as `customer.address[2].zip`."""
        return path_of(reversed(self._path))


def path_of(parts: Iterable[str]) -> str:
    """Return names and places, from the outside in, as a path."""
    return "".join(part if part.startswith("[") else f".{part}" for part in parts).removeprefix(".")


def place(key: int | str) -> str:
    """Return the part of a path for an element of a list or a map."""
    return f"[{key if isinstance(key, int) else senders_name(key)}]"


def senders_name(name: str) -> str:
    """Return the part of a path for a name that is not the schema's: short, and Unicode."""
    return name[:_NAME_CHARS].encode("utf-8", "replace").decode()


class Budget:
    """What is left of the columns' values that one body may take, and in mode `rescue` what did not fit."""

    def __init__(self, body_bytes: int, *, rescues: bool = False) -> None:
        self._cells = TYPED_CELLS_MIN + TYPED_CELLS_PER_BYTE_MAX * body_bytes
        #: Each fault with the value there; None: the first fault ends it.
        self.rest: list[tuple[Misfit, Any]] | None = [] if rescues else None

    def take(self, elements: int, leaves: int) -> None:
        """Count elements of a list or a map; raise `Misfit` if they are too many for the body's size."""
        self._cells -= elements * leaves
        if self._cells < 0:
            raise Misfit(Reason.ELEMENTS)

    def within(self, part: str, read: Callable[..., Any], *source: Any) -> Any:
        """Return what `read` does; faults get the part in front of their paths."""
        before = 0 if self.rest is None else len(self.rest)
        try:
            return read(*source)
        except Misfit as misfit:
            misfit.within(part)
            raise
        finally:
            for misfit_inside, _ in self.rest[before:] if self.rest is not None else ():
                misfit_inside.within(part)

    def field(self, name: str, sent: Callable[[], Any], read: Callable[..., Any], *source: Any) -> Any:
        """Return what `read` does; in mode `rescue` a fault is kept with what was sent, and the field is null."""
        try:
            return self.within(name, read, *source)
        except Misfit as misfit:
            if self.rest is None or misfit.breaks:
                raise
            self.rest.append((misfit, sent()))
            return None
