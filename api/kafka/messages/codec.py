"""The codec of requests and answers: made for each message and version from the fields that a class declares.

    class ListedOffset(Message):
        index: Int32
        leader_epoch: Annotated[Int32, At(4)] = -1      # versions below 4 do not have it; then it has its default

A *flexible* version has compact lengths (a varint, one more than the length, 0 for null) and tagged fields at the end
of each structure. Tagged fields are optional; those of requests are passed over, and answers have none.

No length is trusted: it is compared with what is left of the frame, and a frame has a bounded number of elements.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from deltamq.mq.errors import Refused

#: Most elements of all arrays of one frame, and tagged fields: each takes Python's time, or is an object of it.
ELEMENTS_MAX: Final = 100_000
#: Stands in place of a topic's id where there is none.
NO_TOPIC_ID: Final = bytes(16)
_VARINT_BYTES_MAX: Final = 5
#: What stands before a structure that may be null: -1 or 1.
_NULL: Final = 0xFF
_THERE: Final = 1
_VERSION_MAX: Final = 1 << 15
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

Parts: TypeAlias = list[bytes | memoryview]
_Read: TypeAlias = Callable[["Reader"], Any]
_Write: TypeAlias = Callable[[Parts, Any], None]
M = TypeVar("M", bound="Message")


class At(msgspec.Struct, frozen=True):
    """The versions that have a field."""

    since: int
    until: int = _VERSION_MAX


class _Number(msgspec.Struct, frozen=True):
    form: str


class _Run(msgspec.Struct, frozen=True):
    """A text or bytes behind their length, which has in inflexible versions 2 bytes for a text, and 4 for bytes."""

    text: bool
    nullable: bool = False


class _Raw(msgspec.Struct, frozen=True):
    """Bytes of a fixed size."""

    size: int


Bool: TypeAlias = Annotated[bool, _Number(">?")]
Int8: TypeAlias = Annotated[int, _Number(">b")]
Int16: TypeAlias = Annotated[int, _Number(">h")]
UInt16: TypeAlias = Annotated[int, _Number(">H")]
Int32: TypeAlias = Annotated[int, _Number(">i")]
Int64: TypeAlias = Annotated[int, _Number(">q")]
Float64: TypeAlias = Annotated[float, _Number(">d")]
String: TypeAlias = Annotated[str, _Run(text=True)]
NullableString: TypeAlias = Annotated[str | None, _Run(text=True, nullable=True)]
Bytes: TypeAlias = Annotated[bytes | memoryview, _Run(text=False)]
NullableBytes: TypeAlias = Annotated[bytes | memoryview | None, _Run(text=False, nullable=True)]
Uuid: TypeAlias = Annotated[bytes, _Raw(16)]


class Message(msgspec.Struct):
    """A request, an answer or a structure in one; its fields stand in the order of the protocol."""


def malformed(detail: str) -> Refused:
    """Return the error for a frame that is not the message that it says."""
    return Refused(f"request: {detail}", code="malformed_request")


class Reader:
    """A position in a frame; each read is checked against what is left."""

    __slots__ = ("_left", "at", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0
        self._left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        at = self.at
        if size < 0 or size > len(self.view) - at:
            raise malformed("it is cut off, or a length in it is wrong")
        self.at = at + size
        return self.view[at : self.at]

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def varint(self) -> int:
        """Return an unsigned varint of 32 bits."""
        value = 0
        for i in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * i)
            if not byte & 0x80:
                return value
        raise malformed("a number is too long")

    def count(self, flexible: bool) -> int:
        """Return the number of elements of an array, -1 for null."""
        count: int = self.varint() - 1 if flexible else self.number(_INT)
        self._left -= max(count, 0)
        if count < -1 or count > len(self.view) - self.at or self._left < 0:
            raise malformed("an array has too many elements")
        return count

    def tags(self) -> None:
        """Pass over the tagged fields of a structure; they count among the frame's elements."""
        count = self.varint()
        self._left -= count
        if self._left < 0:
            raise malformed("it has too many tagged fields")
        for _ in range(count):
            self.varint()
            self.take(self.varint())


def read_message(kind: type[M], reader: Reader, version: int, *, flexible: bool) -> M:
    """Return the message at the reader's position.

    Raises
    ------
    Refused
        `malformed_request`.
    """
    message: M = _reader_of(kind, version, flexible)(reader)
    return message


def write_message(parts: Parts, message: Message, version: int, *, flexible: bool) -> None:
    """Append the message's bytes to `parts`; long ones are not copied."""
    _writer_of(type(message), version, flexible)(parts, message)


def _fields(kind: type[Message], version: int) -> list[tuple[str, Any]]:
    fields = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        at = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, At)), At(0))
        if at.since <= version <= at.until:
            fields.append((name, hint))
    return fields


@functools.cache
def _reader_of(kind: type[Message], version: int, flexible: bool) -> _Read:
    fields = [(name, _read(hint, version, flexible)) for name, hint in _fields(kind, version)]

    def read(reader: Reader) -> Message:
        message = kind(**{name: read_field(reader) for name, read_field in fields})
        if flexible:
            reader.tags()
        return message

    return read


def _form_of(hint: Any) -> _Number | _Run | _Raw | None:
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, _Number | _Run | _Raw)), None)


def _unwrapped(hint: Any) -> Any:
    """Return a type without its versions."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _array_of(hint: Any) -> tuple[Any, bool] | None:
    """Return the type of an array's elements, and whether the array may be null; None if it is no array."""
    hint = _unwrapped(hint)
    if get_origin(hint) is list:
        return get_args(hint)[0], False
    lists = [option for option in get_args(hint) if get_origin(option) is list]
    return (get_args(lists[0])[0], True) if lists else None


def _structure_of(hint: Any) -> tuple[type[Message], bool]:
    """Return the type of a structure, and whether it may be null."""
    hint = _unwrapped(hint)
    options = [option for option in get_args(hint) if option is not type(None)]
    return (options[0], True) if options else (hint, False)


def _read(hint: Any, version: int, flexible: bool) -> _Read:
    form = _form_of(hint)
    if isinstance(form, _Number):
        number = struct.Struct(form.form)
        return lambda reader: reader.number(number)
    if isinstance(form, _Raw):
        size = form.size
        return lambda reader: bytes(reader.take(size))
    if form is not None:
        return _read_run(form, flexible)
    array = _array_of(hint)
    if array is None:
        kind, nullable = _structure_of(hint)
        read_structure = _reader_of(kind, version, flexible)
        if not nullable:
            return read_structure
        return lambda reader: None if reader.take(1)[0] == _NULL else read_structure(reader)
    element, nullable = array
    read_element = _read(element, version, flexible)

    def read_array(reader: Reader) -> list[Any] | None:
        count = reader.count(flexible)
        if count < 0 and not nullable:
            raise malformed("an array is null")
        return None if count < 0 else [read_element(reader) for _ in range(count)]

    return read_array


def _read_run(form: _Run, flexible: bool) -> _Read:
    length = _SHORT if form.text else _INT

    def read_run(reader: Reader) -> str | memoryview | None:
        size = reader.varint() - 1 if flexible else reader.number(length)
        if size == -1:
            if form.nullable:
                return None
            raise malformed("a field is null that must not be")
        raw = reader.take(size)
        return _text(raw) if form.text else raw

    return read_run


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise malformed("a text is not UTF-8") from None


@functools.cache
def _writer_of(kind: type[Message], version: int, flexible: bool) -> _Write:
    fields = [(name, _write(hint, version, flexible)) for name, hint in _fields(kind, version)]

    def write(parts: Parts, message: Message) -> None:
        for name, write_field in fields:
            write_field(parts, getattr(message, name))
        if flexible:
            parts.append(b"\x00")

    return write


def _write(hint: Any, version: int, flexible: bool) -> _Write:
    form = _form_of(hint)
    if isinstance(form, _Number):
        number = struct.Struct(form.form)
        return lambda parts, value: parts.append(number.pack(value))
    if isinstance(form, _Raw):
        return lambda parts, value: parts.append(value)
    if form is not None:
        return _write_run(form, flexible)
    array = _array_of(hint)
    if array is None:
        kind, nullable = _structure_of(hint)
        write_structure = _writer_of(kind, version, flexible)
        return _write_nullable(write_structure) if nullable else write_structure
    write_element = _write(array[0], version, flexible)

    def write_array(parts: Parts, value: list[Any] | None) -> None:
        count = -1 if value is None else len(value)
        parts.append(_varint(count + 1) if flexible else _INT.pack(count))
        for element in value or ():
            write_element(parts, element)

    return write_array


def _write_nullable(write_structure: _Write) -> _Write:
    def write_nullable(parts: Parts, value: Message | None) -> None:
        parts.append(bytes([_NULL if value is None else _THERE]))
        if value is not None:
            write_structure(parts, value)

    return write_nullable


def _write_run(form: _Run, flexible: bool) -> _Write:
    length = _SHORT if form.text else _INT

    def write_run(parts: Parts, value: str | bytes | memoryview | None) -> None:
        raw = value.encode() if isinstance(value, str) else value
        size = -1 if raw is None else len(raw)
        parts.append(_varint(size + 1) if flexible else length.pack(size))
        if raw:
            parts.append(raw)

    return write_run


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
