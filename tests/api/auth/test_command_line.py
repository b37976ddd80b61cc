"""`deltamq auth ...`: the first administrator, and all that it does from there (SPEC SEC-7)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.cli.root import main
from tests.api.guarded import Guarded
from tests.api.running import config_for, running, until

Run = Any


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """A function that runs the command line, and returns the status and standard output; `errors` is the other one."""
    for name in ("DELTAMQ_CLIENT_TOKEN", "DELTAMQ_URL", "DELTAMQ_CLIENT_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, token: str | None = None) -> tuple[int, str]:
        if token is not None:
            monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", token)
        with pytest.raises(SystemExit) as end:
            main(arguments)
        sys.stdout.flush()
        printed = capsysbinary.readouterr()
        callable_run.errors = printed.err.decode()
        return end.value.code, printed.out.decode()  # type: ignore[return-value] # it is a number

    callable_run: Run = run
    yield run


def done(result: tuple[int, str]) -> Any:
    status, text = result
    assert status == 0, text
    return json.loads(text)


def test_sec_07_the_first_administrator_is_made_beside_the_service_and_its_key_is_shown_once(
    tmp_path: Path, run: Run
) -> None:
    warehouse = str(tmp_path / "warehouse")
    status, token = run("auth", "init", "--warehouse", warehouse)
    assert status == 0 and token.startswith("mqk_")
    assert run("auth", "init", "--warehouse", warehouse)[0] == 1, "there is one"
    again = done(run("auth", "init", "--warehouse", warehouse, "--principal", "second", "--json"))
    with running(config_for(warehouse, auth=True)) as api:
        for key in (token.strip(), again["key"]):
            names = Guarded(api.port, api.service, token=key).call("GET", "/v1/auth/principals").json
            assert names["principals"] == ["admin", "second"]
        found = tmp_path / "warehouse"
        stored = b"".join(path.read_bytes() for path in found.rglob("*") if path.is_file())
        assert token.strip().encode()[-43:] not in stored


def test_sec_07_an_administrator_is_made_while_a_service_runs(tmp_path: Path, run: Run) -> None:
    with running(config_for(tmp_path / "warehouse", auth=True)) as api:
        made = done(run("auth", "init", "--warehouse", str(tmp_path / "warehouse"), "--json"))
        admin = Guarded(api.port, api.service, token=made["key"])
        until(lambda: admin.call("GET", "/v1/topics").status == 200)


def test_sec_07_everything_is_done_from_the_command_line(tmp_path: Path, run: Run) -> None:
    warehouse = str(tmp_path / "warehouse")
    root = done(run("auth", "init", "--warehouse", warehouse, "--json"))["key"]
    with running(config_for(warehouse, auth=True)) as api:
        at = ("--url", f"http://127.0.0.1:{api.port}", "--json")
        assert run("topic", "list", *at)[0] == 1, "without a key"
        made = done(run("auth", "principal", "create", "reports", "--note", "team blue", *at, token=root))
        assert made["note"] == "team blue"
        key = done(run("auth", "key", "create", "reports", "--until", "2099-01-01T00:00:00Z", *at))
        grant = ("--pattern", "orders.*", "--verb", "subscribe", "--verb", "describe")
        rule = done(run("auth", "acl", "add", "reports", *grant, *at))
        assert (rule["resource"], rule["effect"], rule["verbs"]) == ("topic", "allow", ["describe", "subscribe"])
        assert "orders.* covers names that begin with orders., not orders itself" in run.errors
        denied = done(
            run("auth", "acl", "add", "reports", "--pattern", "*", "--verb", "publish", "--effect", "deny", *at)
        )
        done(run("topic", "create", "orders.eu", *at))
        assert done(run("topic", "list", *at, token=key["key"])) == {"topics": ["orders.eu"]}
        assert run("auth", "principal", "list", *at)[0] == 1, "it may not"
        shown = done(run("auth", "principal", "show", "reports", *at, token=root))
        assert {one["acl_id"] for one in shown["acls"]} == {rule["acl_id"], denied["acl_id"]}
        assert [one["key_id"] for one in done(run("auth", "key", "list", "--principal", "reports", *at))["keys"]] == [
            key["key_id"]
        ]
        assert len(done(run("auth", "acl", "list", "--principal", "reports", *at))["acls"]) == 2
        bounds = done(run("auth", "quota", "set", "reports", "--requests-per-s", "7", *at))
        assert bounds["requests_per_s"] == 7 and bounds["bytes_in_per_s"] is None
        assert done(run("auth", "quota", "list", *at))["quotas"] == [bounds]
        off = done(run("auth", "principal", "disable", "reports", *at))
        assert off["disabled_time"] is not None and off["acls"] == shown["acls"]
        assert run("topic", "list", *at, token=key["key"])[0] == 1, "it is disabled"
        listed = done(run("auth", "principal", "list", *at, token=root))
        assert listed == {"principals": ["admin", "reports"], "disabled": ["reports"]}
        assert "reports (disabled)" in run("auth", "principal", "list", *at[:2])[1]
        assert "disabled since" in run("auth", "principal", "show", "reports", *at[:2])[1]
        assert run("auth", "principal", "disable", "admin", *at)[0] == 1, "nobody else may enable it"
        assert done(run("auth", "principal", "enable", "reports", *at))["disabled_time"] is None
        assert done(run("topic", "list", *at, token=key["key"])) == {"topics": ["orders.eu"]}
        done(run("auth", "acl", "remove", denied["acl_id"], *at, token=root))
        done(run("auth", "key", "revoke", key["key_id"], *at))
        assert run("topic", "list", *at, token=key["key"])[0] == 1
        done(run("auth", "principal", "delete", "reports", *at, token=root))
        assert done(run("auth", "principal", "list", *at)) == {"principals": ["admin"], "disabled": []}
        for words in (("principal", "list"), ("key", "list"), ("acl", "list"), ("principal", "show", "admin")):
            status, text = run("auth", *words, *at[:2])
            assert status == 0 and "admin" in text
