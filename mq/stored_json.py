"""What DeltaMQ stores as JSON is read and written by one definition; anything else is damage.

The definition is a type with annotated fields, which msgspec reads and writes: the type of the core itself, or a struct
beside it where the two differ. A field without a default must be there. Unknown fields are left alone, so that an older
release can read what a newer one wrote.

Decoders and encoders are made at import: two threads that let msgspec 0.22 read the annotations of one type at once
crash the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from mq.errors import Corrupt

__all__ = ["Form", "corrupt_when_damaged", "form", "forms_of", "integer", "mapping", "reader", "to_json"]

T = TypeVar("T")
S = TypeVar("S")

#: The JSON text of a value.
to_json: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How values of one type are stored."""

    to_json: Callable[[T], bytes]
    #: Raises what `corrupt_when_damaged` catches.
    from_json: Callable[[bytes], T]


def form(stored: type[S], read: Callable[[S], T], write: Callable[[T], S]) -> Form[T]:
    """Values that are stored as `stored`, a type of its own."""
    decode = msgspec.json.Decoder(stored).decode
    return Form(lambda value: to_json(write(value)), lambda body: read(decode(body)))


def forms_of(*kinds: type[Any]) -> dict[str, Form[Any]]:
    """Events that are stored field by field, by their kinds."""
    return {one.kind: Form(to_json, msgspec.json.Decoder(one).decode) for one in kinds}


def reader(kind: type[T]) -> Callable[[object], T]:
    """What makes a `kind` of the values that JSON text stands for; it raises what `corrupt_when_damaged` catches."""
    msgspec.json.Decoder(kind)  # reads the annotations now, see above
    return lambda value: msgspec.convert(value, kind)


@contextmanager
def corrupt_when_damaged(what: str, *, code: str) -> Iterator[None]:
    """Turn what readers of stored values raise into `Corrupt`, which names `what`."""
    try:
        yield
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} is damaged: {error!r}", code=code) from error


def mapping(value: object) -> Mapping[str, object]:
    """`value` if it is a JSON object, else `TypeError`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} is not an object")
    return value


def integer(value: object) -> int:
    """`value` if it is a whole number, else `TypeError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not a whole number")
    return value
