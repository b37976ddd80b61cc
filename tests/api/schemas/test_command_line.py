"""`deltamq schema`, and `Admin`'s calls behind it, against a real service (SPEC TYPE-20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.errors import Conflict, NotFound, Unprocessable
from deltamq.mq.wire.schemas import SchemaReference
from tests.api.running import Api, config_for, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("cli"))) as api:
        yield api


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


ID, NOTE = {"name": "id", "type": "int"}, {"name": "note", "type": "string"}


def test_type_20_schemas_are_registered_shown_checked_and_deleted_by_command(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, worse = tmp_path / "first.avsc", tmp_path / "worse.avsc"
    first.write_text(record(ID), encoding="utf-8")
    worse.write_text(record(ID, NOTE), encoding="utf-8")

    def run(*arguments: str, status: int = 0) -> str:
        assert cli._status(["schema", *arguments, "--url", f"http://127.0.0.1:{api.port}"]) == status, (
            capsys.readouterr()
        )
        said = capsys.readouterr()
        return said.out + said.err

    assert run("register", "orders-value", str(first)) == "version 1 of orders-value, id 1\n"
    assert run("list") == "orders-value\n"
    assert "1   1  AVRO" in run("list", "orders-value")
    assert json.loads(run("show", "orders-value")) == json.loads(record(ID))
    assert json.loads(run("show", "orders-value", "--version", "1", "--json"))["schemaType"] == "AVRO"
    assert run("check", "orders-value", str(first)) == "compatible\n"
    assert "field note has no default" in run("check", "orders-value", str(worse), status=1)
    assert "is incompatible with an earlier schema" in run("register", "orders-value", str(worse), status=1)
    used = tmp_path / "uses.avsc"
    used.write_text('{"type": "array", "items": "Order"}', encoding="utf-8")
    reference = ("--reference", "Order=orders-value:1")
    assert run("register", "many-value", str(used), *reference) == "version 1 of many-value, id 2\n"
    assert "NAME=SUBJECT:VERSION" in run("register", "many-value", str(used), "--reference", "x", status=2)
    assert "is used by version 1 of many-value" in run("delete", "orders-value", status=1)
    assert run("delete", "many-value", "--version", "1") == "deleted many-value\n"
    assert run("list", "--deleted") == "many-value\norders-value\n" and run("list") == "orders-value\n"
    assert run("delete", "many-value", "--permanent") == "deleted many-value\n"
    assert "there is no subject many-value" in run("show", "many-value", status=1)


def test_type_20_schemas_by_the_sdk(api: Api) -> None:
    with Admin(f"http://127.0.0.1:{api.port}") as admin:
        base = admin.register_schema("base.proto", 'syntax = "proto3"; message Base {}', schema_type="PROTOBUF")
        text = 'syntax = "proto3"; import "b"; message Top { Base base = 1; }'
        top = admin.register_schema(
            "top-value", text, schema_type="PROTOBUF", references=[SchemaReference("b", "base.proto")]
        )
        assert (top.version, top.references) == (1, (SchemaReference("b", "base.proto", base.version),))
        assert admin.get_schema("top-value", 1) == top == admin.get_schema("top-value")
        assert admin.list_schemas("top-value") == [1] and "top-value" in admin.list_subjects()
        assert admin.check_schema("base.proto", 'syntax = "proto3";', schema_type="PROTOBUF") != []
        with pytest.raises(Conflict, match="incompatible"):
            admin.register_schema("base.proto", 'syntax = "proto3";', schema_type="PROTOBUF")
        with pytest.raises(Unprocessable, match="line 1: "):
            admin.register_schema("base.proto", "message", schema_type="PROTOBUF")
        with pytest.raises(NotFound, match="has no version 9"):
            admin.get_schema("top-value", 9)
        admin.delete_schema("top-value")
        with pytest.raises(NotFound, match="there is no subject top-value"):
            admin.get_schema("top-value")
