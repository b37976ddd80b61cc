"""Protobuf: whether one file reads what another one wrote, by Confluent's published rules, which are about the wire.

Fields are matched by number. A message of the file may not go, since messages on the wire name it by its place. Types
that are written alike may replace each other; so may a single text, bytes or message and a list of them, but no single
number and a list, which is packed. Fields may come into one `oneof` only if one of them at most could be set before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from deltamq.api.schemas.texts import DIFFERENCES_MAX, Texts
from deltamq.mq.schemas.proto_file import built

#: Types that are read as each other; any other is read only as itself.
_ALIKE: Final = (
    *(("int32", "uint32", "int64", "uint64", "bool", "enum"), ("sint32", "sint64"), ("string", "bytes")),
    *(("fixed32", "sfixed32"), ("fixed64", "sfixed64"), ("float",), ("double",), ("message",), ("group",)),
)
_KIND: Final = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): (at, name) for at, alike in enumerate(_ALIKE) for name in alike
}


def parsed(texts: Texts) -> Any:
    """Return the file's descriptor, with all types resolved."""
    return built(*texts)


def differences(reader: Any, writer: Any) -> list[str]:
    """Return why what was written by one file is not read by another."""
    if reader.package != writer.package:
        return [f"package {reader.package or '(none)'} was {writer.package or '(none)'}"]
    pairs = _Pairs()
    found = list(_removed(reader.message_types_by_name, writer.message_types_by_name, pairs))
    while pairs.todo and len(found) < DIFFERENCES_MAX:
        found += _message(*pairs.todo.pop(), pairs)
    return found[:DIFFERENCES_MAX]


class _Pairs:
    """The messages that are still to be compared, reader's and writer's: each pair once, however often it is used."""

    def __init__(self) -> None:
        self.todo: list[tuple[Any, Any]] = []
        self._seen: set[tuple[str, str]] = set()

    def add(self, reader: Any, writer: Any) -> None:
        names = reader.full_name, writer.full_name
        if names not in self._seen:
            self._seen.add(names)
            self.todo.append((reader, writer))


def _removed(reader: Any, writer: Any, pairs: _Pairs) -> Iterator[str]:
    """Add the messages of both files, and yield which are not there any more."""
    for name, old in writer.items():
        if name in reader:
            pairs.add(reader[name], old)
        elif not old.GetOptions().map_entry:
            yield f"message {old.full_name} was removed"


def _message(reader: Any, writer: Any, pairs: _Pairs) -> Iterator[str]:
    yield from _removed(reader.nested_types_by_name, writer.nested_types_by_name, pairs)
    ours, theirs = reader.fields_by_number, writer.fields_by_number
    surviving = {_oneof(field) for number, field in theirs.items() if number in ours}
    for number, field in theirs.items():
        where = f"{writer.full_name}.{field.name}"
        if number in ours:
            yield from _field(ours[number], field, where, pairs)
        elif field.is_required:
            yield f"{where}: a required field was removed"
        elif field.containing_oneof is not None and _oneof(field) in surviving:
            yield f"{where}: it was removed from oneof {field.containing_oneof.name}"
    for number, field in ours.items():
        if number not in theirs and field.is_required:
            yield f"{reader.full_name}.{field.name}: a required field was added"
    for oneof in reader.oneofs:
        if len({_oneof(theirs[field.number]) for field in oneof.fields if field.number in theirs}) > 1:
            yield f"{reader.full_name}.{oneof.name}: several of its fields could be set at once before"


def _oneof(field: Any) -> str | int:
    """Return the name of the `oneof` around a field; without one, its own number."""
    name: str | int = field.number if field.containing_oneof is None else field.containing_oneof.name
    return name


def _field(reader: Any, writer: Any, where: str, pairs: _Pairs) -> Iterator[str]:
    (ours, kind), (theirs, was) = _KIND[reader.type], _KIND[writer.type]
    if ours != theirs:
        yield f"{where}: type {kind} was {was}"
    elif kind in ("message", "group"):
        is_map = reader.message_type.GetOptions().map_entry
        if is_map != writer.message_type.GetOptions().map_entry:
            yield f"{where}: a map and a message do not replace each other"
        elif not is_map and _own_name(reader.message_type) != _own_name(writer.message_type):
            yield f"{where}: message {reader.message_type.full_name} was {writer.message_type.full_name}"
        else:
            pairs.add(reader.message_type, writer.message_type)
    elif reader.is_repeated != writer.is_repeated and kind not in ("string", "bytes"):
        yield f"{where}: a number and a list of numbers do not replace each other"
    if reader.is_required and not writer.is_required:
        yield f"{where}: it is required, and was not"


def _own_name(message: Any) -> str:
    """Return a message's name within its package: imported files may change theirs."""
    name: str = message.full_name
    return name.removeprefix(f"{message.file.package}.") if message.file.package else name
