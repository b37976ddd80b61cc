"""A guarded warehouse has no open door: SEC-44 and SEC-45."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from deltamq.api.first_start import make_administrator
from deltamq.api.service.service import Service
from deltamq.mq.errors import Unavailable
from tests.api.guarded import guarded
from tests.api.running import config_for, running, until
from tests.free_ports import free_port


def test_sec_44_a_process_without_authentication_does_not_serve_a_guarded_warehouse(tmp_path: Path) -> None:
    make_administrator(config_for(tmp_path), "admin")
    with pytest.raises(Unavailable, match="set DELTAMQ_SERVICE_AUTH=true") as refused:
        asyncio.run(Service.start(config_for(tmp_path)))
    assert refused.value.code == "warehouse_guarded"


def test_sec_44_an_open_process_ends_its_service_when_the_warehouse_is_guarded(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        make_administrator(config_for(tmp_path), "admin")
        until(lambda: api.call("GET", "/readyz").status == 503)
        for method, path in (("GET", "/v1/topics"), ("PUT", "/v1/topics/evil"), ("GET", "/"), ("GET", "/readyz")):
            refused = api.call(method, path)
            assert (refused.status, refused.json["code"]) == (503, "warehouse_guarded"), path
        assert api.send("orders", "x").json["code"] == "warehouse_guarded"
        assert api.call("GET", "/v1/topics", Mq_Forwarded="1").status == 503, "whoever says that it was forwarded"
        assert api.call("GET", "/healthz").status == 200


def test_sec_45_who_was_put_out_is_not_known_where_the_metadata_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(tmp_path) as admin:
        meta = admin.service.meta
        assert admin.call("GET", "/v1/topics").status == 200

        def away(*_: object, **__: object) -> None:
            raise Unavailable("the disk does not answer", code="storage_error")

        for look in ("submit_all", "refresh"):
            monkeypatch.setattr(meta._log, look, away)
        monkeypatch.setattr(meta, "_read_within_s", 0.05)
        until(lambda: admin.call("GET", "/readyz").status == 503)
        for who in (admin, admin.by(None)):
            for method, path in (("GET", "/v1/topics"), ("POST", "/v1/topics/orders/messages"), ("GET", "/v1/nowhere")):
                # A renewal that was under way may have read the metadata once more.
                until(lambda: who.call(method, path).status == 503)  # noqa: B023  # called here
                refused = who.call(method, path)
                assert (refused.status, refused.json["code"]) == (503, "metadata_unread"), (method, path)
        told = admin.call("GET", "/readyz").json
        assert told["code"] == "metadata_unread" and "the disk does not answer" in told["detail"]
        assert admin.call("GET", "/healthz").status == 200
        monkeypatch.undo()
        until(lambda: admin.call("GET", "/readyz").status == 200)
        assert admin.call("GET", "/v1/topics").status == 200


def test_sec_45_after_a_pause_the_first_request_reads_the_metadata(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        for _ in range(3):
            admin.service.meta._read_at -= 3_600
            assert admin.call("GET", "/v1/topics").status == 200


def test_sec_44_kafkas_clients_are_put_out_too(tmp_path: Path) -> None:
    port = free_port()
    with running(config_for(tmp_path, kafka_port=port)), contextlib.closing(socket.socket()) as sock:
        sock.settimeout(60)
        sock.connect(("127.0.0.1", port))
        make_administrator(config_for(tmp_path), "admin")
        assert sock.recv(1) == b"", "it is closed"
