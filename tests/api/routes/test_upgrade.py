"""`deltamq upgrade`, and the release before beside it (SPEC META-5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deltamq.api.service.service import Service
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.features import KNOWN_FEATURES
from tests.api.running import config_for, running


def test_meta_05_an_upgrade_is_applied_once_and_the_release_before_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KNOWN_FEATURES, "signed-names", "names are signed")
    with running(config_for(tmp_path)) as api, Admin(f"http://127.0.0.1:{api.port}") as admin:
        url = f"http://127.0.0.1:{api.port}"
        assert [one.feature for one in admin.upgrade_state().ready] == ["schemas", "signed-names"]
        assert cli._status(["upgrade", "--plan", "--url", url]) == 0
        assert "\nready: signed-names: names are signed\nwithout --plan" in capsys.readouterr().out
        assert admin.upgrade_state().on == (), "a plan switches nothing on"
        assert cli._status(["upgrade", "--url", url]) == 0
        assert [one.feature for one in admin.switch_on_features().on] == ["schemas", "signed-names"]
        capsys.readouterr()
        assert cli._status(["upgrade", "--url", url]) == 0
        assert capsys.readouterr().out.endswith(
            "on: signed-names: names are signed\nevery feature that this release knows is on\n"
        )
    with running(config_for(tmp_path)) as api:
        assert api.call("GET", "/readyz").status == 200
    monkeypatch.delitem(KNOWN_FEATURES, "signed-names")
    with pytest.raises(Unavailable, match="signed-names") as refused:
        asyncio.run(Service.start(config_for(tmp_path)))
    assert refused.value.code == "feature_unknown"


def test_meta_05_a_process_of_the_release_before_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(config_for(tmp_path, brokers=("broker-a",))) as old, Admin(f"http://127.0.0.1:{old.port}") as admin:
        monkeypatch.setitem(KNOWN_FEATURES, "signed-names", "names are signed")
        (waiting,) = admin.switch_on_features().waiting
        assert waiting.feature == "signed-names" and len(waiting.lacking) == 1
        assert [one.feature for one in admin.upgrade_state().on] == ["schemas"]
