"""Credentials of a machine's role, which the store's client renews before they expire (SPEC RELY-15)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables.store.object import ObjectStore
from tests.store_proxy import StoreProxy

# The first run builds server and proxy.
pytestmark = pytest.mark.timeout(600)

#: The store's client asks for new credentials when those that it has are valid for less than five minutes.
_VALID: Final = timedelta(minutes=5, seconds=2)


class _Role:
    """What a container asks for its role's credentials."""

    def __init__(self) -> None:
        self.keys = ("", "")
        self.asked = 0

    def answer(self) -> bytes:
        self.asked += 1
        expires = (datetime.now(UTC) + _VALID).strftime("%Y-%m-%dT%H:%M:%SZ")
        key, secret = self.keys
        return json.dumps({"AccessKeyId": key, "SecretAccessKey": secret, "Token": "", "Expiration": expires}).encode()


@contextlib.contextmanager
def _serving(role: _Role) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = role.answer()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/role"
        finally:
            server.shutdown()
            thread.join()


def test_rely_15_credentials_are_renewed_before_they_expire(
    proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process goes on with new ones, and one whose credentials are refused goes on as soon as it gets others."""
    settings, role = proxy.environment(), _Role()
    keys = settings.pop("AWS_ACCESS_KEY_ID"), settings.pop("AWS_SECRET_ACCESS_KEY")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("a container's")
    with _serving(role) as url:
        settings |= {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        store, number = ObjectStore(proxy.uri("renewed")), 0
        role.keys = (keys[0], "of yesterday")
        with pytest.raises(Unavailable):
            store.put_if_absent("log/0", b"", durable=True)
        role.keys = keys
        while not store.calls.so_far().calls["get"].requests:
            with contextlib.suppress(Unavailable):
                assert store.put_if_absent("log/1", b"one", durable=True)
                assert store.read("log/1").to_pybytes() == b"one"
            threading.Event().wait(0.1)
        renewed = role.asked
        while role.asked < renewed + 2:
            number += 1
            store.put(f"file-{number}", b"", durable=True)
            threading.Event().wait(0.1)
    assert not store.exists("log/0") and len(store.names("")) == number
