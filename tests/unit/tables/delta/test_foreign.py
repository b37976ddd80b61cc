"""Which commits of other engines are passed over, and who is named (SPEC TABLE-2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import encode_fence, encode_guard, parse_commit
from deltamq.tables.delta.foreign import ForeignCommit, check_metadata

TABLE = "an-id"
INFO = {
    "timestamp": 1_700_000_000_000,
    "operation": "VACUUM START",
    "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
}
COLUMNS = json.dumps(
    {"type": "struct", "fields": [{"name": "offset", "type": "long", "nullable": False, "metadata": {}}]}
)
BEFORE: dict[str, object] = {
    "id": TABLE,
    "schemaString": COLUMNS,
    "partitionColumns": [],
    "format": {"provider": "parquet", "options": {}},
    "configuration": {"mq.topic": "orders"},
}


def commit(*actions: dict[str, Any], info: dict[str, Any] | None = None) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in ({"commitInfo": info or INFO}, *actions))


@pytest.mark.parametrize(
    "actions",
    [
        (),
        ({"txn": {"appId": "their-stream", "version": 3}},),
        ({"metaData": BEFORE},),
    ],
    ids=["nothing", "a transaction of theirs", "metadata"],
)
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["as deltalake ends a commit", "as Spark does"])
def test_table_02_what_changes_no_row_is_passed_over(actions: tuple[dict[str, Any], ...], end: bytes) -> None:
    found = parse_commit(commit(*actions) + end, table_id=TABLE, version=7, source="commit")
    assert (found.version, found.adds, found.removes, found.end_offset, found.fences) == (7, (), (), None, ())
    assert found.author == "VACUUM START of Apache-Spark/4.2.0 Delta-Lake/4.4.0 at 2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ({"add": {"path": "a"}}, "adds 1 files"),
        ({"remove": {"path": "a"}}, "removes 1 files"),
        ({"protocol": {"minReaderVersion": 3}}, "changes the protocol"),
        ({"txn": {"appId": "mq.offset", "version": 3}}, "sets transactions of DeltaMQ"),
        ({"cdc": {"path": "a"}}, "has cdc actions"),
        ({"domainMetadata": {"domain": "d"}}, "has domainMetadata actions"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_table_02_everything_else_is_refused_by_name(action: dict[str, Any], told: str) -> None:
    with pytest.raises(ForeignCommit, match=f"the/commit: VACUUM START of Apache-Spark.* {told}; no other engine"):
        parse_commit(commit(action), table_id=TABLE, version=7, source="the/commit")


def test_table_02_who_is_not_told_is_unknown_and_a_user_is_named() -> None:
    with pytest.raises(ForeignCommit, match="a commit of an unknown engine adds"):
        parse_commit(commit({"add": {}}, info={"x": None}), table_id=TABLE, version=7, source="c")
    info = {**INFO, "userName": "ann", "timestamp": "soon"}
    with pytest.raises(ForeignCommit, match=r"of Apache-Spark/4\.2\.0 Delta-Lake/4\.4\.0 for ann adds"):
        parse_commit(commit({"add": {}}, info=info), table_id=TABLE, version=7, source="c")


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"[]\n", b"{}\n", b'{"commitInfo":{}}\n', b'{"commitInfo":\n', b"\x00" * 80]
)
def test_table_02_what_is_no_commit_is_no_commit_of_another_engine(text: bytes) -> None:
    with pytest.raises(Corrupt) as refused:
        parse_commit(text, table_id=TABLE, version=7, source="c")
    assert not isinstance(refused.value, ForeignCommit)


@pytest.mark.parametrize("kind", ["fence", "guard"])
def test_rely_4_no_flipped_bit_makes_our_commit_one_that_is_passed_over(kind: str) -> None:
    common: dict[str, Any] = {"table_id": TABLE, "version": 7, "batch_id": "b", "now_ms": 1}
    raw = {
        "fence": lambda: encode_fence(**common, name="broker-a", epoch=3),
        "guard": lambda: encode_guard(**common, metadata=dict(BEFORE), flushed=True),
    }[kind]().data
    for at in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                parse_commit(bytes(damaged), table_id=TABLE, version=7, source="c")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"configuration": {"mq.topic": "orders", "delta.appendOnly": "true"}}, None),
        ({"description": "ours"}, None),
        ({"schemaString": COLUMNS.replace('"metadata": {}', '"metadata": {"comment": "c"}')}, None),
        ({"schemaString": COLUMNS.replace("long", "string")}, "the columns"),
        ({"id": "another"}, "id"),
        ({"partitionColumns": ["tag"]}, "partitionColumns"),
        ({"configuration": {}}, "mq.topic"),
        ({"configuration": {"mq.topic": "orders", "delta.columnMapping.mode": "name"}}, "delta.columnMapping.mode"),
    ],
)
def test_table_02_comments_and_properties_are_passed_over_and_columns_are_not(
    change: dict[str, object], told: str | None
) -> None:
    after = {**BEFORE, **change}
    if told is None:
        check_metadata(BEFORE, after, author="somebody", source="version 7")
        return
    with pytest.raises(ForeignCommit, match=f"version 7: somebody changes {told}; no other"):
        check_metadata(BEFORE, after, author="somebody", source="version 7")
