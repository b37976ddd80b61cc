"""The audit in the SDK and on the command line (SPEC SEC-42)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamq import Admin
from deltamq.mq.client.cli.root import main
from deltamq.mq.errors import Forbidden
from tests.api.guarded import Guarded, guarded


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("audit-clients")
    with guarded(folder) as first:
        first.put_topic("orders", partitions=1)
        first.caller("poor", ("topic", "orders", "publish"))
        assert first.by(None).call("GET", "/v1/topics").status == 401
    with guarded(folder, token=first.token) as api:  # a stop stores what was refused
        api.put_topic("orders", partitions=2)
        yield api


def test_sec_42_the_sdk_yields_acts_and_refusals(admin: Guarded) -> None:
    with Admin(f"http://127.0.0.1:{admin.port}", token=admin.token) as sdk:
        found = list(sdk.audit())
        assert [one.name for one in found if one.resource == "topic"] == ["orders", "orders"]
        assert found[-1].outcome == "done" and found[-1].time.tzinfo is not None
        assert list(sdk.audit(limit=2)) == found[:2]
        assert list(sdk.audit(since=found[-1].time)) == found[-1:]
        assert not list(sdk.audit(since=datetime(2200, 1, 1, tzinfo=UTC)))
        assert [one.principal for one in sdk.audit(principal="(files)")] == ["(files)"]
        (refusal,) = sdk.audit_refusals()
        assert (refusal.principal, refusal.status, refusal.count) == ("(anonymous)", 401, 1)


def test_sec_42_the_command_line_prints_them(
    admin: Guarded, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["audit", "--url", f"http://127.0.0.1:{admin.port}", *arguments])
        assert end.value.code == 0
        sys.stdout.flush()
        return capsysbinary.readouterr().out.decode()

    assert admin.token is not None
    monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", admin.token)
    last = json.loads(run("--json").splitlines()[-1])
    assert last["call"] == "PUT /v1/topics/{topic}" and last["outcome"] == "done"
    assert len(run("--json", "--max", "3").splitlines()) == 3
    assert "deltamq auth init" in run() and "(files)" in run()
    assert "unauthenticated" in run("--refusals")
    assert json.loads(run("--refusals", "--json"))["count"] == 1


def test_sec_42_without_the_right_neither_is_shown(admin: Guarded) -> None:
    token = admin.key("poor")["key"]
    with Admin(f"http://127.0.0.1:{admin.port}", token=token) as sdk, pytest.raises(Forbidden):
        list(sdk.audit())
