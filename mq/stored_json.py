"""JSON that DeltaMQ stores: one definition both reads and writes it, and text that does not fit it is damaged.

The definition is a type with annotated fields that msgspec reads and writes: the type of the core itself, or a separate
struct where the stored form differs. A field without a default must be present. Unknown fields are ignored, so an older
release can read what a newer one wrote.

Decoders and encoders are made at import: the interpreter crashes when two threads make msgspec 0.22 read the
annotations of one type at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import msgspec

from deltamq.mq.errors import Corrupt, Unavailable

_SHOWN_MAX: Final = 5

T = TypeVar("T")
S = TypeVar("S")

#: Encodes a value as JSON text.
to_json: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


class Form(msgspec.Struct, Generic[T], frozen=True):
    """The encoder and the decoder of one stored type."""

    to_json: Callable[[T], bytes]
    #: On damaged text, raises errors that `corrupt_when_damaged` converts.
    from_json: Callable[[bytes], T]


def form(stored: type[S], read: Callable[[S], T], write: Callable[[T], S]) -> Form[T]:
    """Return the form of values that are stored as another type, `stored`, which `read` and `write` convert."""
    decode = msgspec.json.Decoder(stored).decode
    return Form(lambda value: to_json(write(value)), lambda body: read(decode(body)))


def forms_of(*kinds: type[Any]) -> dict[str, Form[Any]]:
    """Return the forms of events that are stored field by field, by the kind of event."""
    return {event.kind: Form(to_json, msgspec.json.Decoder(event).decode) for event in kinds}


def reader(kind: type[T]) -> Callable[[object], T]:
    """Return a function that converts parsed JSON to a `kind`; `corrupt_when_damaged` converts its errors."""
    msgspec.json.Decoder(kind)  # reads the annotations at import, see above
    return lambda value: msgspec.convert(value, kind)


def check_event(fits: bool, *event: str) -> None:
    """Raise `Corrupt` (`meta_event_corrupt`) if an event of the metadata log does not fit the state before it.

    `event` are the words of the message for it, such as "an event of group", "g": a fold checks every event, and joins
    none for those that fit.
    """
    if not fits:
        raise Corrupt(f"{' '.join(event)} contradicts earlier events", code="meta_event_corrupt")


@contextmanager
def corrupt_when_damaged(what: str, *, code: str) -> Iterator[None]:
    """Convert the errors that readers of stored values raise to `Corrupt`, with `what` in the message."""
    try:
        yield
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} is damaged: {error!r}", code=code) from error


def check_nothing_lost(what: str, body: bytes, known: bytes) -> None:
    """Return if `known`, which a value that was read from `body` is written as, has all fields of `body`.

    A field that this release does not know would be dropped by its next snapshot, for good (SPEC META-6).

    Raises
    ------
    Unavailable
        `metadata_newer`: it names the fields.
    """
    if len(body) == len(known) and body == known:
        return
    lost = sorted(set(_lost(msgspec.json.decode(body), msgspec.json.decode(known), "")))
    if lost:
        raise Unavailable(
            f"{what} in the metadata has fields that this release does not know ({', '.join(lost[:_SHOWN_MAX])}): a "
            "newer release wrote them; start that one, or a newer one",
            code="metadata_newer",
        )


def _lost(there: object, here: object, path: str) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name, value in there.items():
            if name not in here:
                yield f"{path}.{name}".lstrip(".")
            else:
                yield from _lost(value, here[name], f"{path}.{name}")
    elif isinstance(there, list) and isinstance(here, list):
        if len(there) > len(here):
            yield f"{path}[{len(here)}]".lstrip(".")
        for item, known in zip(there, here, strict=False):
            yield from _lost(item, known, f"{path}[]")


def mapping(value: object) -> Mapping[str, object]:
    """Return `value` if it is a JSON object, else raise `TypeError`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} is not an object")
    return value


def integer(value: object) -> int:
    """Return `value` if it is a whole number, else raise `TypeError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not a whole number")
    return value
