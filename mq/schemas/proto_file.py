"""Text of Protobuf's language (.proto, syntax proto2 and proto3) as descriptors; Confluent's Python client sends these.

    text, or a FileDescriptorProto in base64  -> FileDescriptorProto -.
    the same of all that it imports ----------------------------------+-> a pool of its own, which checks them
    google/protobuf/*.proto, of the package protobuf -----------------'

Options that say nothing about values (packages of languages, custom ones) are skipped, and so are services.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

_TOKEN: Final = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<sign>[^\s])",
    re.DOTALL | re.ASCII,
)
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_SCALARS: Final[Mapping[str, int]] = {
    name[5:].lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
#: More than SCHEMA_FIELDS_MAX fields have, with their options.
_TOKENS_MAX: Final = 40 * SCHEMA_FIELDS_MAX
_FIELD_MAX: Final = 2**29
_ENUM_MAX: Final = 2**31 - 1
_OWN: Final = "google/protobuf/"
#: What Confluent's clients take as given, beside Google's.
_GIVEN: Final = {
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type;'
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
}


def proto_file(text: str, name: str) -> FileDescriptorProto:
    """Return the file that a text in Protobuf's language describes, or that it holds in base64.

    Types of fields are as written: a pool resolves them.

    Raises
    ------
    Unprocessable
        `invalid_schema`: with line and reason.
    """
    file = _from_base64(text)
    if file is None:
        file = _Parser(text, name).file()
    file.name = name
    return file


def built(text: str, imports: Mapping[str, str]) -> FileDescriptor:
    """Return a checked file with all types resolved; `imports` has the text of what it imports, by name.

    Raises
    ------
    Unprocessable
        `invalid_schema`: one of the texts is wrong, or imports what is not there.
    """
    pool = DescriptorPool()
    _add(pool, "", text, imports, ())
    return pool.FindFileByName("")


def _add(pool: DescriptorPool, name: str, text: str, imports: Mapping[str, str], behind: tuple[str, ...]) -> None:
    file = proto_file(text, name)
    for needed in file.dependency:
        if needed in behind or len(behind) > SCHEMA_DEPTH_MAX:
            raise _invalid(f"{needed} imports itself")
        try:
            pool.FindFileByName(needed)
        except KeyError:
            if needed in imports or needed in _GIVEN:
                given = imports.get(needed) or _GIVEN[needed]
                _add(pool, needed, given, imports, (*behind, needed))
            else:
                _add_own(pool, needed)
    try:
        pool.Add(file)
        pool.FindFileByName(name)
    except (TypeError, KeyError) as error:
        raise _invalid(f"{name or 'the file'}: {str(error)[:500]}") from None


def _add_own(pool: DescriptorPool, name: str) -> None:
    stem = name.removeprefix(_OWN).removesuffix(".proto")
    if not name.startswith(_OWN) or not stem.isidentifier():
        raise _invalid(f'import "{name}" has no reference: name the subject and version with that text')
    try:
        module = importlib.import_module(f"google.protobuf.{stem}_pb2")
    except ImportError:
        raise _invalid(f'import "{name}": Protobuf has no such file') from None
    file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for needed in file.dependency:
        _add_own(pool, needed)
    pool.Add(file)


def _from_base64(text: str) -> FileDescriptorProto | None:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return file if file.message_type or file.enum_type else None


def _invalid(why: str) -> Unprocessable:
    return Unprocessable(f"schema: {why}", code="invalid_schema", field="schema")


class _Parser:
    """Reads one text; each method reads what its name says, from the present token on."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._at = self._depth = self._fields = 0
        self._tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            assert match.lastgroup is not None
            if match.lastgroup != "space":
                self._tokens.append((match.lastgroup, match[0], match.start()))
        if len(self._tokens) > _TOKENS_MAX:
            raise _invalid(f"it has more than {_TOKENS_MAX} words and signs")
        self._file = FileDescriptorProto(name=name, syntax="proto2")

    def file(self) -> FileDescriptorProto:
        statements: dict[str, Callable[[], Any]] = {
            "syntax": self._syntax,
            "import": self._import,
            "package": self._package,
            "option": self._option,
            "message": lambda: self._message(self._file.message_type.add()),
            "enum": lambda: self._enum(self._file.enum_type.add()),
            "extend": lambda: self._extend(self._file.extension, self._file.message_type),
            "service": self._service,
            ";": lambda: None,
        }
        while self._at < len(self._tokens):
            word = self._next()
            if word not in statements:
                raise self._wrong(f"{word[:80]!r} begins no statement", back=1)
            statements[word]()
        return self._file

    # Tokens.

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self, kind: str = "") -> str:
        if self._at >= len(self._tokens) or (kind and self._tokens[self._at][0] != kind):
            raise self._wrong(f"expects a {kind or 'word'}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _take(self, sign: str) -> bool:
        taken = self._peek() == sign
        self._at += taken
        return taken

    def _expect(self, *signs: str) -> None:
        for sign in signs:
            if not self._take(sign):
                raise self._wrong(f"expects {sign}")

    def _wrong(self, why: str, back: int = 0) -> Unprocessable:
        at = self._at - back
        place = self._tokens[at][2] if at < len(self._tokens) else len(self._text)
        shown = f" at {self._tokens[at][1][:80]!r}" if at < len(self._tokens) and not back else ""
        return _invalid(f"line {self._text.count(chr(10), 0, place) + 1}: {why}{shown}")

    def _integer(self) -> int:
        sign = -1 if self._take("-") else 1
        word = self._next("number")
        try:
            is_octal = len(word) > 1 and word[0] == "0" and word.isdecimal()
            return sign * (int(word, 8) if is_octal else int(word, 0))
        except ValueError:
            raise self._wrong("expects a whole number", back=1) from None

    def _string(self) -> str:
        """Read texts that stand behind each other, without their quotes; escapes stay."""
        text = self._next("text")[1:-1]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            text += self._next()[1:-1]
        return text

    # Statements.

    def _syntax(self) -> None:
        self._expect("=")
        self._file.syntax = self._string()
        if self._file.syntax not in ("proto2", "proto3"):
            raise self._wrong('the syntax is "proto2" or "proto3"', back=1)
        self._expect(";")

    def _import(self) -> None:
        is_public = self._peek() == "public"
        if self._peek() in ("public", "weak"):
            self._next()
        if is_public:
            self._file.public_dependency.append(len(self._file.dependency))
        self._file.dependency.append(self._string())
        self._expect(";")

    def _package(self) -> None:
        self._file.package = self._next("name")
        self._expect(";")

    def _option(self) -> tuple[str, str]:
        option = self._assignment()
        self._expect(";")
        return option

    def _assignment(self) -> tuple[str, str]:
        """Read `name = value`; return both as they are written, a whole block as nothing."""
        name = ""
        while self._peek() not in ("=", "", ";"):
            name += self._next()
        self._expect("=")
        return name, self._value()

    def _value(self) -> str:
        if self._peek() in ("{", "["):
            self._skip_block()
            return ""
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            return self._string()
        sign = "-" if self._take("-") else ""
        return sign + self._next()

    def _skip_block(self) -> None:
        depth = 0
        while True:
            word = self._next()
            depth += (word in ("{", "[")) - (word in ("}", "]"))
            if not depth:
                return

    def _service(self) -> None:
        self._next("name")
        if self._peek() != "{":
            raise self._wrong("expects {")
        self._skip_block()

    def _count(self) -> None:
        self._fields += 1
        if self._fields > SCHEMA_FIELDS_MAX:
            raise self._wrong(f"a schema has at most {SCHEMA_FIELDS_MAX} fields")

    # Messages.

    def _message(self, message: DescriptorProto) -> None:
        message.name = self._next("name")
        self._body(message)

    def _body(self, message: DescriptorProto) -> None:
        self._count()
        self._depth += 1
        if self._depth > SCHEMA_DEPTH_MAX:
            raise self._wrong(f"messages are nested at most {SCHEMA_DEPTH_MAX} levels deep")
        self._expect("{")
        while not self._take("}"):
            self._member(message)
        for field in message.field:
            # A field that may be absent in proto3 is a choice of one, behind all real choices.
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
        self._depth -= 1

    def _member(self, message: DescriptorProto) -> None:
        before = self._at
        statements: dict[str, Callable[[], Any]] = {
            "message": lambda: self._message(message.nested_type.add()),
            "enum": lambda: self._enum(message.enum_type.add()),
            "extend": lambda: self._extend(message.extension, message.nested_type),
            "extensions": lambda: self._ranges(message.extension_range, _FIELD_MAX, 1),
            "reserved": lambda: self._reserved(message, _FIELD_MAX, 1),
            "option": lambda: self._message_option(message),
            "oneof": lambda: self._oneof(message),
            "map": lambda: self._map(message),
            ";": lambda: None,
        }
        word = self._next()
        # `message` and its like may also be the name of a type: then the name of a field and its number follow.
        is_field = self._tokens[self._at + 1 : self._at + 2] and self._tokens[self._at + 1][1] == "="
        if word in statements and not (is_field and word not in ("map", "option")):
            statements[word]()
            return
        self._at = before
        self._field(message.field, message.nested_type)

    def _message_option(self, message: DescriptorProto) -> None:
        name, value = self._option()
        if name == "message_set_wire_format":
            message.options.message_set_wire_format = value == "true"

    def _field(self, fields: Any, nested: Any, *, oneof: int | None = None) -> FieldDescriptorProto:
        self._count()
        field: FieldDescriptorProto = fields.add(label=1)
        if self._peek() in _LABELS and oneof is None:
            label = self._next()
            field.label = _LABELS[label]
            field.proto3_optional = label == "optional" and self._file.syntax == "proto3"
        elif self._file.syntax == "proto2" and oneof is None:
            raise self._wrong("expects optional, required or repeated (a text without `syntax` is proto2)")
        if oneof is not None:
            field.oneof_index = oneof
        is_group = self._peek() == "group"
        self._type(field)
        field.name = self._next("name")
        self._expect("=")
        field.number = self._number()
        self._options(field)
        if is_group:
            group = nested.add(name=field.name)
            field.ClearField("type_name")
            field.type, field.type_name, field.name = FieldDescriptorProto.TYPE_GROUP, group.name, field.name.lower()
            self._body(group)
        else:
            self._expect(";")
        return field

    def _type(self, field: FieldDescriptorProto) -> None:
        name = self._next("name")
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name

    def _number(self) -> int:
        number = self._integer()
        if not 0 < number < _FIELD_MAX:
            raise self._wrong(f"a field's number is from 1 to {_FIELD_MAX - 1}", back=1)
        return number

    def _options(self, field: FieldDescriptorProto) -> None:
        if not self._take("["):
            return
        while True:
            name, value = self._assignment()
            if name == "default":
                field.default_value = _plain(value) if field.type == FieldDescriptorProto.TYPE_STRING else value
            elif name == "json_name":
                field.json_name = _plain(value)
            elif name == "packed":
                field.options.packed = value == "true"
            if not self._take(","):
                break
        self._expect("]")

    def _oneof(self, message: DescriptorProto) -> None:
        at = len(message.oneof_decl)
        message.oneof_decl.add(name=self._next("name"))
        self._expect("{")
        while not self._take("}"):
            if self._take("option"):
                self._option()
            elif not self._take(";"):
                self._field(message.field, message.nested_type, oneof=at)

    def _map(self, message: DescriptorProto) -> None:
        self._count()
        entry = DescriptorProto()
        self._expect("<")
        self._type(entry.field.add(name="key", number=1, label=1))
        self._expect(",")
        self._type(entry.field.add(name="value", number=2, label=1))
        self._expect(">")
        field = message.field.add(label=3, name=self._next("name"), type=FieldDescriptorProto.TYPE_MESSAGE)
        self._expect("=")
        field.number = self._number()
        self._options(field)
        self._expect(";")
        entry.name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry.options.map_entry = True
        message.nested_type.append(entry)
        field.type_name = entry.name

    def _extend(self, fields: Any, nested: Any) -> None:
        extended = self._next("name")
        self._expect("{")
        while not self._take("}"):
            if not self._take(";"):
                self._field(fields, nested).extendee = extended

    # Enums, and ranges of numbers.

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._next("name")
        self._expect("{")
        while not self._take("}"):
            word = self._next()
            if word == "option" and self._peek() != "=":
                if self._option() == ("allow_alias", "true"):
                    enum.options.allow_alias = True
            elif word == "reserved" and self._peek() != "=":
                self._reserved(enum, _ENUM_MAX, 0)
            elif word != ";":
                self._count()
                self._expect("=")
                enum.value.add(name=word, number=self._enum_number())
                if self._take("["):
                    self._at -= 1
                    self._skip_block()
                self._expect(";")

    def _enum_number(self) -> int:
        number = self._integer()
        if not -_ENUM_MAX - 1 <= number <= _ENUM_MAX:
            raise self._wrong("the number of an enum's value has 32 bits", back=1)
        return number

    def _reserved(self, what: Any, largest: int, beyond: int) -> None:
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            what.reserved_name.append(self._string())
            while self._take(","):
                what.reserved_name.append(self._string())
            self._expect(";")
        else:
            self._ranges(what.reserved_range, largest, beyond)

    def _ranges(self, ranges: Any, largest: int, beyond: int) -> None:
        """Read ranges of numbers; their ends count as `beyond` the last number, which is one less than `largest`."""
        while True:
            start = end = self._enum_number()
            if self._take("to"):
                end = largest - beyond if self._take("max") else self._enum_number()
            ranges.add(start=start, end=end + beyond)
            if not self._take(","):
                break
        if self._peek() == "[":
            self._skip_block()
        self._expect(";")


def _plain(text: str) -> str:
    """Return what a text with escapes says."""
    try:
        return text.encode().decode("unicode_escape").encode("latin-1").decode() if "\\" in text else text
    except (UnicodeError, ValueError):
        return text


def message_of(file: FileDescriptor, name: str = "") -> Any:
    """Return a message of a file by its full name, or its first one; raise `Unprocessable` if there is none."""
    messages: Sequence[Any] = list(file.message_types_by_name.values())
    if not name:
        if not messages:
            raise _invalid("it has no message")
        return messages[0]
    try:
        return file.pool.FindMessageTypeByName(name)
    except KeyError:
        known = ", ".join(message.full_name for message in messages[:10])
        raise _invalid(f"there is no message {name}; there are {known}") from None
