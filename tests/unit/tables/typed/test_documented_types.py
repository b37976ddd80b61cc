"""The tables of types in tables/typed/README.md say what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER
from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.setting import Format
from deltamq.tables.typed.ddl import parse_ddl
from deltamq.tables.typed.misfit import TEXTS, Reason
from tests.typed import codec, record

_TABLES: dict[str, Format] = {"Avro": "avro", "JSON Schema": "json", "Protobuf": "protobuf"}
_IMPORTED = ("timestamp", "duration", "wrappers", "any", "struct")
_IMPORTS = "".join(f'import "google/protobuf/{name}.proto"; ' for name in _IMPORTED)


def _rows() -> Iterator[tuple[Format, str, str]]:
    form: Format | None = None
    for line in (PROJECT_FOLDER / "tables/typed/README.md").read_text().split("\n"):
        head = re.match(r"\| (Avro|JSON Schema|Protobuf) \| column", line)
        form = _TABLES[head[1]] if head else form if line.startswith("|") else None
        row = re.match(r"\| `(.*?)` \| `?(.*?)`? \|", line)
        if form and row:
            yield form, row[1], row[2]


def _text(form: Format, kind: str) -> str:
    if form == "avro":
        return record(("v", json.loads(kind)))
    if form == "json":
        return f'{{"type": "object", "properties": {{"v": {kind}}}}}'
    return f'syntax = "proto3"; {_IMPORTS} message A {{ {kind} }}'


def test_all_formats_have_a_table() -> None:
    assert {form for form, _, _ in _rows()} == set(_TABLES.values())


@pytest.mark.parametrize(("form", "kind", "column"), list(_rows()))
def test_type_12_a_documented_type_has_its_column(form: Format, kind: str, column: str) -> None:
    if column == "refused":
        with pytest.raises(Unprocessable):
            codec(form, _text(form, kind))
    else:
        value_type = codec(form, _text(form, kind)).value_type
        assert value_type.field("v").type == parse_ddl(f"v {column}").arrow.field("v").type


def test_type_11_reasons_have_the_same_numbers_in_both_ways_to_decode() -> None:
    source = (PROJECT_FOLDER / "tables/typed/columns.h").read_text()
    names = re.search(r"enum reason \{\n    NO_MEMORY = -1,\n    FITS,\n(.*?)\n\};", source, re.DOTALL)
    assert names is not None
    assert names[1].replace(" ", "").replace("\n", "").split(",") == [reason.name for reason in Reason]
    assert [reason.value for reason in Reason] == list(range(1, len(Reason) + 1))
    assert set(TEXTS) == set(Reason) - {Reason.ASK} and all(len(text) <= 200 for _, text in TEXTS.values())
