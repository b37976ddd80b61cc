"""A warehouse that this process may only read (fault F7): a file system, and an object store's credentials."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from obstore.store import S3Store

from deltamq.api.service.service import Service
from deltamq.jobs.cli.doctor_checks import table_checks
from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.jobs.cli.verify_command import verify_command
from deltamq.mq.client.cli.doctor import CheckOutcome, Subject
from deltamq.mq.errors import READ_ONLY, Unavailable
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.object import ObjectStore
from tests.api.running import config_for
from tests.faults.small_disk import mounted
from tests.rows import REF, all_bodies, batch


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A warehouse with one message on a file system that is mounted to be read."""
    with mounted(tmp_path, 8) as disk:
        warehouse = Warehouse.open(str(disk.folder))
        warehouse.create(REF).append([batch(b"before")])
        warehouse.close()
        disk.remount("ro")
        yield disk.folder


def test_rely_17_what_may_only_be_read_is_read_and_what_must_write_says_so(read_only: Path) -> None:
    warehouse = Warehouse.open(str(read_only))
    log = warehouse.open_partition(REF)
    assert all_bodies(log) == [b"before"]
    with pytest.raises(Unavailable) as refused:
        log.append([batch(b"more")])
    assert (refused.value.code, refused.value.outcome) == (READ_ONLY, "not_stored")
    warehouse.close()

    place = ["--warehouse", str(read_only)]
    assert CliRunner().invoke(verify_command, place, standalone_mode=False).return_value == 0
    checks = table_checks(Subject(url="u", warehouse=str(read_only)))
    (warned,) = [check for check in checks if check.health is not CheckOutcome.OK]
    assert "may only read" in warned.detail and warned.health is CheckOutcome.WARNING

    sentence = f"this process may only read {read_only}"
    for command, arguments in ((verify_command, ["--repair"]), (jobs_command, ["run", "revive", "--engine", "local"])):
        told = CliRunner().invoke(command, [*arguments, *place])
        assert told.exit_code == 1 and told.output.startswith(f"Error: {sentence}") and told.output.count("\n") == 1
    with pytest.raises(Unavailable, match=f"^{sentence}, and a service must write there"):
        asyncio.run(Service.start(config_for(read_only)))


class _ReadOnlyBucket(BaseHTTPRequestHandler):
    """An empty bucket that answers writes as S3 does where a policy forbids them."""

    def _answer(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            self._answer(200, b"<ListBucketResult></ListBucketResult>")
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_PUT(self) -> None:
        self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    do_HEAD = do_GET
    do_POST = do_DELETE = do_PUT

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_rely_17_credentials_that_may_only_read_open_a_warehouse() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _ReadOnlyBucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote = S3Store(
            "warehouse",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            access_key_id="reader",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        warehouse = Warehouse.open("", store=ObjectStore("s3://warehouse", remote))
        assert not warehouse.may_write
        with pytest.raises(Unavailable) as refused:
            warehouse.create(REF)
        assert (refused.value.code, refused.value.outcome) == (READ_ONLY, "not_stored")
        warehouse.close()
        server.shutdown()
