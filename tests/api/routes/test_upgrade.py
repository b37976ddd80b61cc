"""`deltamq upgrade`, and the release before beside it (SPEC META-5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deltamq.api.first_start import make_administrator
from deltamq.api.service.service import Service
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.errors import Conflict, Unavailable
from deltamq.mq.meta.features import KNOWN_FEATURES
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import read_meta
from tests.api.running import config_for, running
from tests.releases import made_before_features


def test_meta_05_an_upgrade_is_applied_once_and_the_release_before_refuses_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tuple(KNOWN_FEATURES)
    with running(config_for(tmp_path)) as api, Admin(f"http://127.0.0.1:{api.port}") as admin:
        assert tuple(one.feature for one in admin.upgrade_state().on) == first, "no older process has to be waited for"
    monkeypatch.setitem(KNOWN_FEATURES, "signed-names", "names are signed")
    with running(config_for(tmp_path)) as api, Admin(f"http://127.0.0.1:{api.port}") as admin:
        url = f"http://127.0.0.1:{api.port}"
        assert [one.feature for one in admin.upgrade_state().ready] == ["signed-names"]
        assert cli._status(["upgrade", "--plan", "--url", url]) == 0
        assert "\nready: signed-names: names are signed\nwithout --plan" in capsys.readouterr().out
        assert tuple(one.feature for one in admin.upgrade_state().on) == first, "a plan switches nothing on"
        assert cli._status(["upgrade", "--url", url]) == 0
        assert {one.feature for one in admin.switch_on_features().on} == {*first, "signed-names"}
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
        assert "signed-names" not in {one.feature for one in admin.upgrade_state().on}


def test_meta_05_a_warehouse_is_not_guarded_beside_a_process_that_would_serve_it_all_the_same(tmp_path: Path) -> None:
    made_before_features(tmp_path, runs=True)
    with pytest.raises(Conflict, match=r"a guarded warehouse.*replace them: http://before") as refused:
        make_administrator(config_for(tmp_path), "admin")
    assert refused.value.code == "feature_waits"
    meta = read_meta(Warehouse.open(str(tmp_path)).store)
    assert meta is not None and not meta.auth.principals and not meta.features.on
