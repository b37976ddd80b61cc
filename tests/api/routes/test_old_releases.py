"""Releases from before this one, for real, on the warehouse of after (SPEC META-5, META-6)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deltamq.api.first_start import make_administrator
from deltamq.mq.auth.changes import decide_first_administrator, decide_put_principal
from deltamq.mq.auth.keys import new_key
from deltamq.mq.limits import KEY_ID_BYTES, SECRET_BYTES
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog, read_meta
from tests.api.guarded import Guarded, guarded
from tests.api.running import config_for, running
from tests.releases import RELEASES, started

_TYPED = {"format": "columns", "schema": "id BIGINT"}


def _fill(admin: Guarded) -> str:
    """Make what releases before would misread; return the key of a principal that is disabled."""
    admin.put_topic("orders", partitions=2, partitioner="kafka")
    assert admin.send("orders", "x").status == 200
    admin.put_principal("rests")
    key: str = admin.key("rests")["key"]
    assert admin.call("POST", "/v1/auth/principals/rests/disable").status == 200
    return key


def _append_snapshot(warehouse: Path) -> None:
    """Let a start begin at a snapshot: the events before it say nothing any more."""
    opened = Warehouse.open(str(warehouse))
    meta = MetaLog(opened, snapshot_events=1)
    for note in ("one", "two"):
        meta.submit_any(lambda state: decide_put_principal(state.auth, "noted", note, 1_000))  # noqa: B023  # called here
        meta.maintain()
    opened.close()


def _files(warehouse: Path) -> dict[str, bytes]:
    """What is in the warehouse, but for the spare files that a process makes before it knows whether it may serve."""
    return {
        str(name): path.read_bytes()
        for path in sorted(warehouse.rglob("*"))
        if path.is_file() and not (name := path.relative_to(warehouse)).parts[0].startswith(".pool-")
    }


def _refused(release: str, warehouse: Path, folder: Path, says: str, *, auth: bool = True) -> None:
    """The release does not start on a copy of the warehouse, says why, and leaves all bytes as they were."""
    copy = shutil.copytree(warehouse, folder / "copy")
    before = _files(copy)
    ended = started(release, folder, copy, auth=auth)
    assert ended.returncode != 0 and not ended.serves
    assert re.search(f"event=start_failed {says}", ended.stderr), ended.stderr
    assert _files(copy) == before


def _guard_as_before_features(warehouse: Path) -> str:
    """Make an administrator and `rests` as releases before features did; return the administrator's key."""
    key, token = new_key("admin", b"k" * KEY_ID_BYTES, b"s" * SECRET_BYTES, 1_000)
    opened = Warehouse.open(str(warehouse))
    meta = MetaLog(opened)
    meta.submit_any(lambda state: decide_first_administrator(state.auth, key))
    meta.submit_any(lambda state: decide_put_principal(state.auth, "rests", "", 1_000))
    opened.close()
    return token


@pytest.mark.parametrize("auth", [True, False])
@pytest.mark.parametrize("starts_at", [pytest.param("events", marks=pytest.mark.long), "a snapshot"])
@pytest.mark.parametrize("release", RELEASES)
def test_meta_05_an_older_release_does_not_start_on_a_newer_warehouse(
    release: str, starts_at: str, auth: bool, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    with guarded(warehouse) as admin:
        key = _fill(admin)
        admin.put_topic("typed", schema=_TYPED)
    if starts_at == "a snapshot":
        _append_snapshot(warehouse)
    _refused(release, warehouse, tmp_path, RELEASES[release].refusal, auth=auth)
    with guarded(tmp_path / "copy", token=admin.token) as again:
        assert again.by(key).call("GET", "/v1/topics").json["code"] == "principal_disabled"
        assert again.call("GET", "/v1/topics/orders").json["partitioner"] == "kafka"
        assert sum(again.stored("orders").values()) == 1
        assert again.call("GET", "/v1/topics/typed").json["schema"]["format"] == "columns"


@pytest.mark.parametrize("release", RELEASES)
def test_meta_05_an_older_release_does_not_start_where_a_newer_one_was_first(release: str, tmp_path: Path) -> None:
    with running(config_for(tmp_path / "warehouse", brokers=("broker-a",))) as api:
        api.put_topic("orders", partitions=1)
    _refused(release, tmp_path / "warehouse", tmp_path, RELEASES[release].refusal, auth=False)


def _guard(warehouse: Path) -> None:
    make_administrator(config_for(warehouse), "admin")


def _use_kafkas_partitioner(warehouse: Path) -> None:
    with running(config_for(warehouse, brokers=("broker-a",))) as api:
        api.put_topic("orders", partitions=8, partitioner="kafka")


@pytest.mark.parametrize("use", [_guard, _use_kafkas_partitioner])
def test_meta_05_an_older_release_goes_back_until_its_warehouse_uses_a_feature(
    use: Callable[[Path], None], tmp_path: Path
) -> None:
    release, warehouse = "before-features", tmp_path / "warehouse"
    assert started(release, tmp_path, warehouse, auth=False).serves
    with running(config_for(warehouse, brokers=("broker-a",))) as api:
        assert api.call("GET", "/readyz").status == 200
    assert started(release, tmp_path, warehouse, auth=False).serves
    use(warehouse)
    _append_snapshot(warehouse)
    _refused(release, warehouse, tmp_path, RELEASES[release].refusal, auth=False)


def test_meta_05_an_older_release_does_not_let_in_who_was_disabled(tmp_path: Path) -> None:
    release, warehouse = "before-features", tmp_path / "warehouse"
    assert started(release, tmp_path, warehouse).serves
    token = _guard_as_before_features(warehouse)
    with guarded(warehouse, token=token) as admin:
        assert admin.call("POST", "/v1/auth/principals/rests/disable").status == 200
    _append_snapshot(warehouse)
    _refused(release, warehouse, tmp_path, RELEASES[release].refusal)


def test_meta_06_a_release_that_does_not_know_a_field_does_not_start(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    opened = Warehouse.open(str(warehouse))
    wanted = TopicRequest(partitions=1, kafka={"cleanup.policy": "compact"})
    MetaLog(opened).submit(lambda state: decide_put_topic(state, "orders", wanted, ("broker-a",), "0" * 32, 1_000))
    opened.close()
    _refused("with-features", warehouse, tmp_path, r"code=metadata_newer .*\btopic\.kafka\b")
    with running(config_for(tmp_path / "copy", brokers=("broker-a",))) as again:
        assert again.call("GET", "/v1/topics/orders").status == 200
    before, after = (read_meta(Warehouse.open(str(one)).store) for one in (warehouse, tmp_path / "copy"))
    assert after is not None and after.topics.topics["orders"].kafka == {"cleanup.policy": "compact"}
    assert before is not None and not before.features.on, "the field alone stopped it"
