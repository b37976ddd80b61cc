"""Topics, groups and access as files, at a real service (SPEC LOOK-14)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.meta.desired import Desired
from tests.api.guarded import Guarded, guarded
from tests.api.running import config_for, running

FILE = """
[topics.orders]
partitions = 2
retention_bytes = 5_000_000
commit_window_ms = 300

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
    assert (len(orders["partitions"]), orders["retention_bytes"], orders["commit_window_ms"]) == (2, 5_000_000, 300)
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


def test_sec_51_prune_that_would_delete_the_last_administrator_does_nothing(
    admin: Guarded, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text("[topics.orders]\npartitions = 2\n")
    admin.put_topic("old", partitions=1)
    (refused,) = run("apply", str(file), "--plan", "--prune")["refused"]
    assert (refused["does"], refused["kind"], refused["name"]) == ("delete", "principal", "admin")
    access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(admin.token))
    assert cli._status(["apply", str(file), "--plan", "--prune", *access]) == 0
    assert "refused: principal admin is the last administrator" in capsys.readouterr().out
    assert run("apply", str(file), "--prune", status=1)["error"]["code"] == "last_administrator"
    assert admin.call("GET", "/v1/topics").json["topics"] == ["old"], "nothing is changed"
    assert "refused" not in run("apply", str(file), "--plan")


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


def test_look_19_what_differs_from_what_was_applied_is_shown_field_by_field(
    admin: Guarded, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text(FILE)
    nothing = {"applied_time": None, "applied_by": None, "names": 0, "differences": []}
    assert run("describe", "--drift") == nothing
    run("apply", str(file), "--plan")
    assert run("describe", "--drift") == nothing
    run("apply", str(file))
    applied = run("describe", "--drift")
    assert (applied["applied_by"], applied["names"], applied["differences"]) == ("admin", 4, [])
    admin.put_topic("orders", partitions=3, retention_ms=60_000)
    admin.put_topic("by-hand", partitions=1)
    assert admin.call("DELETE", "/v1/groups/billing").status == 204
    assert admin.call("PUT", "/v1/auth/quotas/reports", {"requests_per_s": 7, "bytes_in_per_s": 8}).status == 200
    admin.rule("reports", "topic", "salaries", "subscribe")
    capsys.readouterr()
    access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(admin.token))
    assert cli._status(["describe", "--drift", "--json", *access]) == 1
    shown = json.loads(capsys.readouterr().out)
    found = {(one["kind"], one["name"].partition("/")[0]): one for one in shown["differences"]}
    assert found.keys() == {("topic", "orders"), ("group", "billing"), ("quota", "reports"), ("rule", "reports")}
    assert found["topic", "orders"]["fields"] == {"partitions": {"applied": 2, "present": 3}}
    assert found["group", "billing"]["state"] == "missing"
    assert found["quota", "reports"]["fields"] == {
        "requests_per_s": {"applied": 100, "present": 7},
        "bytes_in_per_s": {"applied": None, "present": 8},
    }
    extra = found["rule", "reports"]
    assert (extra["state"], extra["fields"]["pattern"]) == ("extra", {"applied": None, "present": "salaries"})
    assert cli._status(["describe", "--drift", *access]) == 1
    assert "partitions" in capsys.readouterr().out
    file.write_text(FILE.replace("partitions = 2", "partitions = 3"))
    run("apply", str(file))
    assert admin.call("DELETE", f"/v1/auth/acls/{extra['name'].partition('/')[2]}").status == 204
    assert run("describe", "--drift")["differences"] == []
    assert run("describe", "--as-code")["principals"]["reports"]["quota"]["bytes_in_per_s"] is None


def test_look_19_files_that_are_applied_one_by_one_are_compared_together(
    admin: Guarded, run: Run, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(f"[topics.{name}]\npartitions = 1\n")
        run("apply", str(tmp_path / f"{name}.toml"))
    admin.put_topic("one", partitions=2)
    with Admin(f"http://127.0.0.1:{admin.port}", token=admin.token) as sdk:
        assert [(one.name, one.state) for one in sdk.applied().differences] == [("one", "changed")]
        assert sdk.applied().names == 2
        assert sdk.record_applied(Desired(), replace=True).names == 0
        assert sdk.applied().differences == ()


def test_look_19_a_restart_knows_what_was_applied_and_nonsense_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        assert api.call("PUT", "/v1/applied", {"topics": {"orders": {"partitions": 2}}}).status == 200
        reply = api.call("PUT", "/v1/applied", {"groups": {"billing": {"retry_policy": "often"}}})
        assert reply.status in (400, 422), reply
        assert api.call("PUT", "/v1/applied", {"topic": {}}).json["field"] == "topic"
        rules = {"rules": [{"resource": "topic", "pattern": "*", "verbs": ["publish"]}]}
        assert api.call("PUT", "/v1/applied", {"principals": {"a/b": rules}}).json["field"] == "principal"
        assert api.call("PUT", "/v1/applied", {"topics": {"orders": {"partitions": 2**63}}}).status == 422
    with running(config) as api:
        (difference,) = api.call("GET", "/v1/applied").json["differences"]
        assert difference["fields"] == {"partitions": {"applied": 2, "present": 1}}


def test_look_19_who_may_not_administer_applies_without_a_record(
    admin: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = admin.caller("maker", ("topic", "*", "create"), ("topic", "*", "alter"), ("topic", "*", "describe"))
    (tmp_path / "one.toml").write_text("[topics.one]\npartitions = 1\n")
    access = ("--url", f"http://127.0.0.1:{admin.port}", "--token", str(maker.token))
    assert cli._status(["apply", str(tmp_path / "one.toml"), *access]) == 0
    assert "not recorded" in capsys.readouterr().err
    assert admin.call("GET", "/v1/applied").json["applied_time"] is None
    assert maker.call("GET", "/v1/applied").status == 403
