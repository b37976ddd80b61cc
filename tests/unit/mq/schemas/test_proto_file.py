"""Text of Protobuf's language, held against what Google's own compiler made of the same text (SPEC TYPE-24)."""

from __future__ import annotations

import base64
import importlib
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX
from deltamq.mq.schemas.proto_file import built, message_of, proto_file

#: Texts that Google ships beside what its compiler made of them.
SHIPPED = {
    str(file): Path(str(file.locate())).read_text(encoding="utf-8")
    for file in files("googleapis-common-protos") or ()
    if str(file).endswith(".proto") and not str(file).startswith("google/cloud/")
}
HEAD = 'syntax = "proto3";'


def compiled(name: str) -> FileDescriptorProto:
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def shown(message: Any) -> Any:
    """What a message is, without options that say nothing about its values."""
    fields = [
        (
            one.name,
            one.number,
            one.label,
            one.type,
            one.type_name,
            one.json_name,
            one.default_value,
            one.HasField("oneof_index") and one.oneof_index,
            one.proto3_optional,
        )
        for one in message.field
    ]
    return (
        message.name,
        fields,
        [one.name for one in message.oneof_decl],
        [shown(one) for one in message.nested_type],
        [enum_shown(one) for one in message.enum_type],
        [(one.start, one.end) for one in (*message.reserved_range, *message.extension_range)],
        list(message.reserved_name),
        message.options.map_entry,
    )


def enum_shown(enum: Any) -> Any:
    return enum.name, [(one.name, one.number) for one in enum.value], [(r.start, r.end) for r in enum.reserved_range]


def resolved(text: str, imports: dict[str, str]) -> FileDescriptorProto:
    file = FileDescriptorProto()
    built(text, imports).CopyToProto(file)
    return file


def test_type_24_there_are_texts_of_google() -> None:
    assert len(SHIPPED) > 30


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_type_24_a_text_of_google_is_read_as_its_compiler_reads_it(name: str) -> None:
    ours, theirs = resolved(SHIPPED[name], SHIPPED), compiled(name)
    assert [shown(one) for one in ours.message_type] == [shown(one) for one in theirs.message_type]
    assert [enum_shown(one) for one in ours.enum_type] == [enum_shown(one) for one in theirs.enum_type]
    assert [(e.name, e.number, e.extendee, e.type) for e in ours.extension] == [
        (e.name, e.number, e.extendee, e.type) for e in theirs.extension
    ]
    assert (ours.package, list(ours.dependency)) == (theirs.package, list(theirs.dependency))


def test_type_24_a_descriptor_in_base64_is_the_text_that_it_was_made_of() -> None:
    for name in ("google/rpc/status.proto", "google/type/date.proto"):
        text = base64.b64encode(compiled(name).SerializeToString()).decode()
        assert resolved(text, SHIPPED).message_type == resolved(SHIPPED[name], SHIPPED).message_type


def test_type_24_the_language_of_both_syntaxes() -> None:
    file = built(
        """// before all
        message Old {
          required int32 a = 1 [default = -0x10]; optional group Result = 2 { required string url = 1; }
          optional string s = 3 [default = "a\\tb" 'c', json_name = "text"]; optional Kind k = 4 [default = Y];
          optional double d = 5 [default = inf]; repeated int32 p = 6 [packed = true, (mine).x = { a: [1] }];
          extensions 100 to 199, 500 to max; oneof one_of { option (o) = 1; int32 b = 7; bytes c = 8; }
          message message { optional Old option = 1; } optional message message = 9; reserved 10 to 12; reserved "x";
        }
        enum Kind { option allow_alias = true; X = 01; Y = 2 [deprecated = true]; Z = 2; reserved -3 to -1, 9 to max; }
        extend Old { optional int32 more = 100; }
        service S { rpc Do (Old) returns (stream Old) { option (http) = { get: "/x" }; } }""",
        {},
    )
    old = message_of(file, "Old")
    fields = {field.name: field for field in old.fields}
    assert (fields["a"].default_value, fields["s"].default_value, fields["k"].default_value) == (-16, "a\tbc", 2)
    assert fields["s"].json_name == "text" and fields["d"].default_value == float("inf")
    assert fields["result"].type == FieldDescriptorProto.TYPE_GROUP and fields["message"].message_type.name == "message"
    assert [field.name for field in old.oneofs_by_name["one_of"].fields] == ["b", "c"]
    assert message_of(file, "Old.message").fields_by_name["option"].message_type is old
    assert [one.start for one in proto_file("message M { reserved 2, 9 to max; }", "m").message_type[0].reserved_range]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message M {\n  int32 a = 1;\n}", r"line 2: expects optional, required or repeated .* at 'int32'"),
        (f"{HEAD} message M {{ int32 a = 1;", "line 1: expects a word"),
        (f"{HEAD} message M {{ int32 a = 1; int32 b = 1; }}", "duplicate field number"),
        (f"{HEAD} message M {{ int32 a = 0; }}", "a field's number is from 1"),
        (f"{HEAD} message M {{ int32 a = 08; }}", "expects a whole number"),
        (f"{HEAD} message M {{ Nothing a = 1; }}", "resolve name 'Nothing'"),
        (f"{HEAD} enum E {{ A = 2147483648; }}", "32 bits"),
        (f'{HEAD} import "other.proto";', 'import "other.proto" has no reference'),
        (f'{HEAD} import "google/protobuf/../os.proto";', "has no reference"),
        (f'{HEAD} import "google/protobuf/nothing.proto";', "Protobuf has no such file"),
        ('edition = "2023";', "line 1: 'edition' begins no statement"),
        ('syntax = "proto4";', "the syntax is"),
        ('{"type": "record"}', "line 1: '{' begins no statement"),
        ("/* not ended", "line 1: '/' begins no statement"),
        (HEAD + ";" * 500_000, "more than 400000 words"),
        (HEAD + "message M {" * (SCHEMA_DEPTH_MAX + 1), "nested at most 100 levels"),
        (HEAD + "message M {" + "int32 a = 1;" * (SCHEMA_FIELDS_MAX + 1), "at most 10000 fields"),
    ],
)
def test_type_24_a_text_that_is_wrong_is_refused_with_where_and_why(text: str, why: str) -> None:
    with pytest.raises(Unprocessable, match=why) as refused:
        built(text, {})
    assert (refused.value.code, refused.value.field) == ("invalid_schema", "schema")


def test_type_24_files_that_import_each_other_in_a_circle_are_refused() -> None:
    circle = {"a": f'{HEAD} import "b";', "b": f'{HEAD} import "a";'}
    with pytest.raises(Unprocessable, match="imports itself"):
        built(f'{HEAD} import "a";', circle)
    with pytest.raises(Unprocessable, match="there is no message X"):
        message_of(built(f"{HEAD} message M {{}}", {}), "X")
    with pytest.raises(Unprocessable, match="it has no message"):
        message_of(built(HEAD, {}))


def test_type_24_what_confluents_clients_take_as_given_is_given() -> None:
    text = f'{HEAD} import "confluent/type/decimal.proto"; message M {{ confluent.type.Decimal d = 1; }}'
    assert message_of(built(text, {})).fields[0].message_type.full_name == "confluent.type.Decimal"
