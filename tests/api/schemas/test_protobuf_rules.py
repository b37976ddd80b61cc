"""Protobuf: which change is compatible, by the kinds of change that Confluent's registry names (SPEC TYPE-21).

Each row is what a message was, what it is, and whether the new file reads what the old one wrote. The rows cover the
kinds of change of Confluent's published examples (54 of them, at its commit 794611bd), whose verdicts are ours.
"""

from __future__ import annotations

import pytest

from deltamq.api.schemas import columns_rules, protobuf_rules
from deltamq.api.schemas.texts import Texts
from deltamq.mq.errors import Unprocessable

HEAD = 'syntax = "proto3"; package shop; '


def differences(reader: str, writer: str, imports: dict[str, str] | None = None) -> list[str]:
    return protobuf_rules.differences(*(protobuf_rules.parsed(Texts(text, imports or {})) for text in (reader, writer)))


def m(fields: str) -> str:
    """A message with these fields."""
    return f"message M {{ {fields} }}"


BOTH = "oneof a { int32 x = 1; int32 y = 2; }"
ROWS = {
    "a field more": (m("int32 a = 1;"), m("int32 a = 1; string b = 2;"), True),
    "a field less": (m("int32 a = 1; string b = 2;"), m("int32 a = 1;"), True),
    "another number": (m("int32 a = 1;"), m("int32 a = 2;"), True),
    "another name": (m("int32 a = 1;"), m("int32 b = 1;"), True),
    "a number of the same kind": (m("int32 a = 1;"), m("bool a = 1;"), True),
    "a number with another sign": (m("int32 a = 1;"), m("sint32 a = 1;"), False),
    "a wider signed number": (m("sint32 a = 1;"), m("sint64 a = 1;"), True),
    "a wider fixed number": (m("fixed32 a = 1;"), m("fixed64 a = 1;"), False),
    "a fixed number with a sign": (m("fixed64 a = 1;"), m("sfixed64 a = 1;"), True),
    "float to double": (m("float a = 1;"), m("double a = 1;"), False),
    "text to bytes": (m("string a = 1;"), m("bytes a = 1;"), True),
    "text to number": (m("string a = 1;"), m("int32 a = 1;"), False),
    "number to enum": (m("int32 a = 1;"), m("E a = 1;") + " enum E { X = 0; }", True),
    "enum to number": (m("E a = 1;") + " enum E { X = 0; }", m("int64 a = 1;"), True),
    "other values of an enum": (m("E a = 1; enum E { X = 0; Y = 1; }"), m("E a = 1; enum E { X = 0; Z = 1; }"), True),
    "number to message": (m("int32 a = 1;"), m("N a = 1;") + " message N { int32 x = 1; }", False),
    "a message more": (m("int32 a = 1;"), m("int32 a = 1;") + " message N { int32 x = 1; }", True),
    "a message less": (m("int32 a = 1;") + " message N { int32 x = 1; }", m("int32 a = 1;"), False),
    "messages in another order": (m("") + " message N {}", "message N {} " + m(""), True),
    "a nested message less": (m("int32 a = 1; message N {}"), m("int32 a = 1;"), False),
    "another message": (
        m("N a = 1;") + " message N {} message O {}",
        m("O a = 1;") + " message N {} message O {}",
        False,
    ),
    "inside a message": (
        m("N a = 1; message N { int32 x = 1; }"),
        m("N a = 1; message N { string x = 1; }"),
        False,
    ),
    "a message of itself": (m("M m = 1;"), m("M m = 1; int32 a = 2;"), True),
    "a list of numbers": (m("int32 a = 1;"), m("repeated int32 a = 1;"), False),
    "a list of texts": (m("string a = 1;"), m("repeated string a = 1;"), True),
    "a list of messages": (m("M a = 1;"), m("repeated M a = 1;"), True),
    "a map's values": (m("map<string, int32> a = 1;"), m("map<string, string> a = 1;"), False),
    "another name of a map": (m("map<string, int32> a = 1;"), m("map<string, int32> b = 1;"), True),
    "a map to a message": (m("map<string, int32> a = 1;"), m("N a = 1;") + " message N {}", False),
    "into a new oneof": (m("int32 x = 1;"), m("oneof a { int32 x = 1; }"), True),
    "several into a new oneof": (m("int32 x = 1; int32 y = 2;"), m(BOTH), False),
    "a new field in a oneof": (m("oneof a { int32 x = 1; }"), m(BOTH), True),
    "a field less in a oneof": (m(BOTH), m("oneof a { int32 x = 1; }"), False),
    "a oneof less": (m(BOTH), m("int32 z = 3;"), True),
    "another field into a oneof": (m("oneof a { int32 x = 1; } int32 y = 2;"), m(BOTH), False),
    "another name of a oneof": (m(BOTH), m("oneof b { int32 x = 1; int32 y = 2; }"), True),
    "a merge of oneofs": (
        m("oneof a { int32 x = 1; } oneof b { int32 y = 2; }"),
        m("oneof c { int32 x = 1; int32 y = 2; }"),
        False,
    ),
    "out of a oneof": (m(BOTH), m("oneof a { int32 x = 1; } int32 y = 2;"), True),
    "out of a oneof, with another type": (m(BOTH), m("oneof a { int32 x = 1; } string y = 2;"), False),
    "an optional field": (m("int32 a = 1;"), m("optional int32 a = 1;"), True),
}


@pytest.mark.parametrize("name", ROWS)
def test_type_21_what_a_file_reads_of_another(name: str) -> None:
    before, now, fine = ROWS[name]
    found = differences(HEAD + now, HEAD + before)
    assert (not found) is fine, found
    assert differences(HEAD + now, HEAD + now) == []


def test_type_21_required_fields_of_proto2() -> None:
    plain, required = m("optional int32 a = 1;"), m("optional int32 a = 1; required int32 b = 2;")
    for reader, writer in ((required, plain), (plain, required), (m("required int32 a = 1;"), plain)):
        assert "required" in differences(reader, writer)[0]
    assert differences(plain, m("required int32 a = 1;")) == []


def test_type_21_the_package_stays_but_for_imported_files() -> None:
    assert differences(HEAD + m(""), 'syntax = "proto3"; ' + m("")) == ["package shop was (none)"]
    with_import = HEAD + 'import "n.proto"; message M { PACKAGE.N n = 1; }'
    files = [
        f'syntax = "proto3"; package {package}; message N {{ {kind} x = 1; }}'
        for package, kind in (("one", "int32"), ("two", "int64"), ("two", "string"))
    ]
    readers = [
        protobuf_rules.parsed(Texts(with_import.replace("PACKAGE", package), {"n.proto": file}))
        for package, file in zip(("one", "two", "two"), files, strict=True)
    ]
    assert protobuf_rules.differences(readers[1], readers[0]) == []
    assert protobuf_rules.differences(readers[2], readers[0]) == ["one.N.x: type string was int32"]


def test_type_24_large_files_are_compared() -> None:
    ring = HEAD + "".join(f"message M{at} {{ M{(at + 1) % 4_000} next = 1; }}" for at in range(4_000))
    assert differences(ring, ring) == []
    fields = "".join(f"int32 f{at} = {at + 1};" for at in range(9_000))
    assert differences(HEAD + m(f"oneof o {{ {fields} }}"), HEAD + m(fields)) == [
        "shop.M.o: several of its fields could be set at once before"
    ]


COLUMNS = "id BIGINT NOT NULL, address STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (COLUMNS, None),
        (COLUMNS + ", more DECIMAL(10,2)", None),
        (COLUMNS.replace("zip: INT", "zip: INT, street: STRING"), None),
        (COLUMNS.replace(" NOT NULL", ""), None),
        (COLUMNS + ", more INT NOT NULL", "column more is NOT NULL, and is new"),
        (COLUMNS.replace("city: STRING, ", ""), "column address.city was removed"),
        (COLUMNS.replace("zip: INT", "zip: STRING"), "column address.zip: type string was int32"),
        (COLUMNS.replace("ARRAY<STRING>", "ARRAY<INT>"), "column tags: type int32 was string"),
        (COLUMNS.replace("tags ARRAY<STRING>", "tags STRING"), "column tags: type string was list"),
        (COLUMNS.replace("<STRING>", "<STRING> NOT NULL"), "column tags is NOT NULL, and could be null"),
    ],
)
def test_type_21_columns_are_only_added(now: str, why: str | None) -> None:
    found = columns_rules.differences(*(columns_rules.parsed(Texts(text, {})) for text in (now, COLUMNS)))
    assert (found == []) if why is None else found[0].startswith(why), found
    with pytest.raises(Unprocessable, match="schema: "):
        columns_rules.parsed(Texts("id NOTHING", {}))
