"""Topics, groups and access as files, at a real service (SPEC LOOK-14)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.cli import root as cli
from tests.api.guarded import Guarded, guarded
from tests.api.running import config_for, running

FILE = """
[topics.orders]
partitions = 2
retention_bytes = 5_000_000

[topics.fixed]
total_queues = 4

[groups.billing]
max_attempts = 5
retry_policy = { exponential = { initial_ms = 5_000 } }
consume_from = "2026-01-01T00:00:00Z"

[principals.reports]
note = "nightly"
rules = [
    { resource = "topic", pattern = "orders*", verbs = ["subscribe"] },
    { resource = "cluster", verbs = ["metrics"] },
]
quota = { requests_per_s = 100 }
"""
Run = Callable[..., Any]


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path / "warehouse") as found:
        yield found


@pytest.fixture
def run(admin: Guarded, capsys: pytest.CaptureFixture[str]) -> Run:
    def done(*arguments: str, status: int = 0) -> Any:
        access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(admin.token))
        assert cli._status([*arguments, *access, "--json"]) == status
        out, err = capsys.readouterr()
        return json.loads(out if not status else err)

    return done


def test_look_14_files_say_what_there_is_and_a_repeat_changes_nothing(
    admin: Guarded, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text(FILE)
    planned = run("apply", str(file), "--plan")["changes"]
    assert len(planned) == 7 and admin.call("GET", "/v1/topics").json["topics"] == []
    assert run("apply", str(file))["changes"] == planned
    assert run("apply", str(file)) == {"plan": False, "changes": []}
    orders = admin.call("GET", "/v1/topics/orders").json
    assert (len(orders["partitions"]), orders["retention_bytes"]) == (2, 5_000_000)
    assert admin.call("GET", "/v1/topics/fixed").json["total_queues"] == 4
    shown = admin.call("GET", "/v1/auth/principals/reports").json
    assert shown["note"] == "nightly" and len(shown["acls"]) == 2
    access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(admin.token))
    assert cli._status(["describe", "--as-code", *access]) == 0
    described = tmp_path / "described.toml"
    described.write_text(capsys.readouterr().out)
    assert run("apply", str(described), "--plan", "--prune")["changes"] == []
    admin.put_topic("orders", retention_bytes=6_000_000)  # somebody changes it by hand
    (drift,) = run("apply", str(file), "--plan")["changes"]
    assert drift["fields"] == {"retention_bytes": [6_000_000, 5_000_000]}


def test_look_14_prune_deletes_what_files_do_not_name(
    admin: Guarded, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "warehouse.toml"
    access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(admin.token))
    assert cli._status(["describe", *access]) == 0
    administrator = capsys.readouterr().out
    file.write_text(administrator + FILE)
    run("apply", str(file))
    admin.put_topic("old", partitions=1)
    admin.caller("eve", ("topic", "old", "publish"))
    more = admin.rule("reports", "group", "billing", "subscribe")
    assert run("apply", str(file))["changes"] == []
    deleted = {(one["does"], one["kind"], one["name"]) for one in run("apply", str(file), "--prune")["changes"]}
    assert deleted == {
        ("delete", "topic", "old"),
        ("delete", "principal", "eve"),
        ("delete", "rule", f"reports/{more}"),
    }
    assert "old" not in admin.call("GET", "/v1/topics").json["topics"]
    assert admin.call("GET", "/v1/auth/principals/eve").status == 404


def test_look_14_what_the_service_refuses_ends_it_and_the_rest_is_done_later(
    admin: Guarded, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text("[topics.a]\npartitions = 2\n[topics.b]\npartitions = 0\n")
    assert run("apply", str(file), status=1)["error"]["code"] == "partitions_out_of_range"
    assert admin.call("GET", "/v1/topics").json["topics"] == ["a"]
    file.write_text("[topics.a]\npartitions = 2\n[topics.b]\npartitions = 1\n")
    assert [one["name"] for one in run("apply", str(file))["changes"]] == ["b"]


def test_look_14_a_service_without_authentication_has_no_principals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(config_for(tmp_path / "warehouse")) as api:
        url = ("--url", f"http://127.0.0.1:{api.port}")
        file = tmp_path / "a.toml"
        file.write_text("[topics.a]\npartitions = 1\n[groups.g]\n")
        assert cli._status(["apply", str(file), "--prune", *url]) == 0
        assert "create topic a: done" in capsys.readouterr().out
        assert cli._status(["describe", *url]) == 0
        assert capsys.readouterr().out.startswith('[topics."a"]\n')
        file.write_text("[principals.ada]\n")
        assert cli._status(["apply", str(file), *url]) == 1
        assert "auth_off" in capsys.readouterr().err
