"""`deltamq jobs export`, `replay` and `reset`: what people type, and what they are told."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.schema import INTERNAL_SCHEMA

_ID = "7b0a4c1e-90f5-4a39-8a7e-0d6f5a0f6a11"


def _invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(jobs_command, list(args), catch_exceptions=False)
    return result.exit_code, result.output


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """A topic with three messages, and a group with two dead letters."""
    made = Warehouse.open(str(tmp_path))
    meta = MetaLog(made)
    meta.submit(lambda state: decide_put_topic(state, "orders", TopicRequest(partitions=1), ["broker-a"], _ID, 0))
    groups = meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0)).groups
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"a", b"b", b"c"])})
    made.create(PartitionRef(Space.TOPICS, "orders", "orders@broker-a")).append([Batch(rows)])
    origin = {"topic": "orders", "partition": "orders@broker-a", "offset": 0}
    letters = [{"body": b"dead", "origin": origin, "reconsume_times": 3, "message_id": f"m{n}"} for n in range(2)]
    batch = Batch(pa.RecordBatch.from_pylist(letters, schema=INTERNAL_SCHEMA))
    made.create(dead_ref("billing", groups.group("billing").epoch, "broker-a")).append([batch])
    made.close()
    return str(tmp_path)


def test_spark_10_a_reset_is_shown_first_and_done_when_asked(warehouse: str) -> None:
    ask = ("reset", "--group", "billing", "--topic", "orders", "--warehouse", warehouse)
    code, told = _invoke(*ask, "--to", "earliest")
    assert (code, told) == (0, "orders@broker-a 0\ngroup billing would get 3 messages; add --apply to do it\n")
    code, told = _invoke(*ask, "--offset", "orders@broker-a=2", "--apply")
    assert code == 0 and told.startswith("orders@broker-a 2\ngroup billing gets 1 messages, in epoch ")
    code, told = _invoke(*ask, "--to", "2020-01-01T00:00:00Z", "--retries", "drop", "--apply")
    assert code == 0 and "gets 3 messages" in told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--to", "soon"), "first, last, or an RFC 3339 time"),
        ((), "either --to or --offset"),
        (("--offset", "orders@broker-a"), "PARTITION=OFFSET"),
        (("--offset", "orders@broker-a=9"), "end offset 3"),
    ],
)
def test_spark_10_a_reset_that_cannot_be_is_one_line(warehouse: str, args: tuple[str, ...], told: str) -> None:
    code, output = _invoke("reset", "--group", "billing", "--topic", "orders", "--warehouse", warehouse, *args)
    assert code == 1 and output.startswith("Error: ") and told in output


@pytest.mark.long
def test_spark_10_dead_letters_are_counted_first_and_sent_back_when_asked(warehouse: str) -> None:
    ask = ("replay", "--group", "billing", "--warehouse", warehouse)
    assert _invoke(*ask) == (0, "2 dead letters would be sent back; add --apply to do it\n")
    assert _invoke(*ask, "--id", "m1", "--apply") == (0, "1 dead letters sent back, 0 had been sent back before\n")
    assert _invoke(*ask, "--apply") == (0, "1 dead letters sent back, 1 had been sent back before\n")
    code, output = _invoke(*ask, "--since", "yesterday")
    assert code == 1 and "--since" in output


def test_spark_09_an_export_is_defined_listed_and_forgotten(warehouse: str, tmp_path: Path) -> None:
    at = ("--warehouse", warehouse)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}))
    code, told = _invoke("export", "add", "--topic", "orders", "--to", "silver", "--json-schema", str(schema), *at)
    assert (code, told) == (0, "export orders: orders -> silver\n")
    code, told = _invoke("export", "list", "--json", *at)
    [shown] = json.loads(told)
    assert (shown["name"], shown["schema"], shown["rows"], shown["batch"]) == ("orders", "`id` BIGINT", 0, -1)
    assert "orders: orders -> silver, 0 rows, 0 in quarantine" in _invoke("export", "list", *at)[1]
    code, told = _invoke("export", "add", "--topic", "orders", "--to", "gold", "--schema", "id BIGINT", *at)
    assert code == 1 and "remove it, or use another name" in told
    assert _invoke("export", "remove", "orders", *at)[0] == 0
    assert json.loads(_invoke("export", "list", "--json", *at)[1]) == []
    assert "there is no export" in _invoke("export", "remove", "orders", *at)[1]
    assert _invoke("export", "remove", "orders", "--forget", *at)[0] == 0, "its progress was still there"
    assert _invoke("export", "remove", "orders", "--forget", *at)[0] == 1


def test_spark_10_a_replay_and_a_reset_are_scheduled_listed_and_forgotten(warehouse: str) -> None:
    at = ("--warehouse", warehouse)
    first = ("--first", "2026-01-01T02:00:00Z")
    code, told = _invoke(
        "scheduled", "add-replay", "again", "--group", "billing", "--to", "retry", "--every", "1h", *at
    )
    assert code == 0 and "replay dead letters of group billing to retry, every 3600 s" in told
    reset = ("scheduled", "add-reset", "nightly", "--group", "billing", "--topic", "orders", "--to", "-24h")
    assert _invoke(*reset, "--every", "1d", *first, *at)[0] == 0
    shown = json.loads(_invoke("scheduled", "list", "--json", *at)[1])
    assert [one["name"] for one in shown] == ["again", "nightly"]
    assert shown[1]["does"] == "reset group billing in topic orders to -24h"
    assert (shown[1]["every_s"], shown[1]["due"]) == (86_400, "2026-01-01T02:00:00Z")
    code, told = _invoke("run", "replay", "reset", "--once", *at)
    assert code == 0 and "rows=2" in told and "rows=1" in told
    assert "due 2026-01-01T02:00:00Z" not in _invoke("scheduled", "list", *at)[1]
    assert _invoke("scheduled", "remove", "reset", "nightly", *at)[0] == 0
    assert [one["name"] for one in json.loads(_invoke("scheduled", "list", "--json", *at)[1])] == ["again"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--every", "soon"), "must be a duration such as 30m"),
        (("--every", "1s"), "every: must be 60 seconds"),
        (("--every", "1h", "--first", "noon"), "--first"),
    ],
)
def test_spark_10_a_schedule_that_cannot_be_is_one_line(warehouse: str, args: tuple[str, ...], told: str) -> None:
    code, output = _invoke("scheduled", "add-replay", "x", "--group", "billing", "--warehouse", warehouse, *args)
    assert code == 1 and output.startswith("Error: ") and told in output
