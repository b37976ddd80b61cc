"""What answers tell browsers, and what the console does with a key (SPEC SEC-37, SEC-38)."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.api.guarded import guarded
from tests.api.running import Api, config_for, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        found.put_topic("orders", partitions=1)
        yield found


def _headers(api: Api, method: str, path: str, body: bytes | None = None) -> list[tuple[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    with closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return [(name.lower(), value) for name, value in connection.getresponse().getheaders()]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/healthz", None),
        ("GET", "/v1/topics", None),
        ("GET", "/nowhere", None),
        ("GET", "/openapi.json", None),
        ("GET", "/metrics", None),
        ("GET", "/console.js", None),
        ("PUT", "/v1/topics/orders", b"no json"),
        ("POST", "/v1/topics/orders/messages", b'{"messages": [{"body": "x"}]}'),
        ("POST", "/v1/topics/orders/messages", b"no json"),
        ("GET", "/v1/topics/orders/partitions/orders@broker-a/messages", None),
        ("DELETE", "/v1/topics/orders/messages", None),
    ],
)
def test_sec_37_every_answer_tells_browsers_to_do_nothing_with_it(
    api: Api, method: str, path: str, body: bytes | None
) -> None:
    headers = _headers(api, method, path, body)
    assert headers.count(("x-content-type-options", "nosniff")) == 1
    assert headers.count(("content-security-policy", "frame-ancestors 'none'")) == 1
    assert headers.count(("referrer-policy", "no-referrer")) == 1
    assert "content-type" in dict(headers)


def test_sec_37_an_answer_to_what_is_no_http_does_too(api: Api) -> None:
    with closing(socket.create_connection(("127.0.0.1", api.port), timeout=30)) as sock:
        sock.sendall(b"nothing of the kind\r\n\r\n")
        head = sock.recv(65536).lower()
    assert b"x-content-type-options: nosniff" in head and b"frame-ancestors 'none'" in head


def test_sec_38_the_console_runs_no_text_that_it_shows(api: Api) -> None:
    policies = [value for name, value in _headers(api, "GET", "/") if name == "content-security-policy"]
    assert any("default-src 'none'" in one and "script-src 'self'" in one for one in policies)
    assert not any("unsafe" in one for one in policies)
    page, script = (api.call("GET", path).body.decode() for path in ("/", "/console.js"))
    assert not re.search(r"<style|<script>|\bon\w+=|style=|javascript:", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
    assert dict(_headers(api, "GET", "/console.js"))["content-type"] == "text/javascript; charset=utf-8"
    assert dict(_headers(api, "GET", "/console.css"))["content-type"] == "text/css; charset=utf-8"


def test_sec_38_the_console_keeps_a_key_in_its_tab_and_sends_it_in_one_header(api: Api) -> None:
    page, script = (api.call("GET", path).body.decode() for path in ("/", "/console.js"))
    assert not re.search(r"localStorage|document\.cookie|indexedDB|location\.(search|hash)|console\.log", script)
    assert set(re.findall(r"sessionStorage\.(\w+)\((\w+)", script)) == {
        ("getItem", "KEY"),
        ("setItem", "KEY"),
        ("removeItem", "KEY"),
    }
    assert script.count('headers.authorization = "Bearer " + key') == 1
    assert script.count("fetch(") == 1 and 'redirect: "error"' in script
    assert 'type="password"' in page and 'autocomplete="off"' in page


def test_sec_08_the_console_warns_of_a_service_without_authentication_as_the_log_does(api: Api, tmp_path: Path) -> None:
    page, script = (api.call("GET", path).body.decode() for path in ("/", "/console.js"))
    assert re.search(r'<p id="open"[^>]* hidden>Without authentication: anyone who can reach this port', page)
    assert 'getElementById("open").hidden = cluster === null || cluster.auth !== false;' in script
    assert api.call("GET", "/v1/cluster").json["auth"] is False
    with guarded(tmp_path) as admin:
        assert admin.call("GET", "/v1/cluster").json["auth"] is True
