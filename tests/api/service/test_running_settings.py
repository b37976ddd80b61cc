"""The settings of a running service over REST, in the SDK and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.root import main
from deltamq.tables.config import load
from tests.api.guarded import guarded
from tests.api.running import running

SECRET = "s" * 40


def test_sec_06_running_settings_say_what_differs_and_where_it_was_given_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"DELTAMQ_SERVICE_PORT": "0", "DELTAMQ_CLIENT_TOKEN": SECRET}
    with running(load(overrides={"warehouse.uri": str(tmp_path)}, environ=given)) as api:
        reply, url = api.call("GET", "/v1/settings"), f"http://127.0.0.1:{api.port}"
        assert reply.status == 200 and SECRET.encode() not in reply.body
        shown = {one["name"]: one for one in reply.json["settings"]}
        differing = {name: (one["value"], one["source"]) for name, one in shown.items() if one["differs"]}
        assert differing == {
            "warehouse.uri": (str(tmp_path), "flag for warehouse.uri"),
            "service.port": (0, "environment variable DELTAMQ_SERVICE_PORT"),
            "client.token": ("***", "environment variable DELTAMQ_CLIENT_TOKEN"),
        }
        with Admin(url) as admin:
            assert {one.name for one in admin.settings()} == set(shown)
            assert [job.name for job in admin.jobs().jobs] == ["delay", "revive"]
        for flags, names in (((), set(differing)), (("--all",), set(shown))):
            with pytest.raises(SystemExit) as ended:
                main(["settings", *flags, "--url", url, "--json"])
            assert not ended.value.code
            assert {one["name"] for one in json.loads(capsys.readouterr().out)} == names


def test_sec_04_settings_are_for_those_who_may_see_metrics(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        assert admin.caller("curious", ("topic", "*", "subscribe")).call("GET", "/v1/settings").status == 403
        assert admin.caller("operator", ("cluster", "*", "metrics")).call("GET", "/v1/settings").status == 200
