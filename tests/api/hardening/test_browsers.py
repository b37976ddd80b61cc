"""What answers tell browsers, and what the console does with a key (SPEC SEC-37, SEC-38)."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deltamq.api.routes.cluster import CONSOLE
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
        ("GET", "/console/app.js", None),
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


def _scripts(api: Api) -> dict[str, str]:
    """Every script of ours that the console loads."""
    names = [name for name in CONSOLE if name.endswith(".js") and not name.startswith("vendor/")]
    assert len(names) > 10
    return {name: api.call("GET", f"/console/{name}").body.decode() for name in names}


def test_sec_38_the_console_runs_no_text_that_it_shows(api: Api) -> None:
    policies = [value for name, value in _headers(api, "GET", "/") if name == "content-security-policy"]
    assert any("default-src 'none'" in one and "script-src 'self'" in one for one in policies)
    assert not any("unsafe" in one for one in policies)
    assert not re.search(r"<style|<script>|\bon\w+=|style=|javascript:", api.call("GET", "/").body.decode())
    for name, script in _scripts(api).items():
        found = re.search(
            r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|dangerously", script
        )
        assert not found, name


def test_sec_38_the_console_keeps_a_key_in_its_tab_and_sends_it_in_one_header(api: Api) -> None:
    scripts = _scripts(api)
    del scripts["signin.js"]
    everything, requests = "\n".join(scripts.values()), scripts["api.js"]
    assert not re.search(r"localStorage|document\.cookie|indexedDB|location\.search|console\.\w+\(", everything)
    assert everything.count("sessionStorage.") == requests.count("sessionStorage.")
    assert set(re.findall(r"sessionStorage\.(\w+)\((\w+)", requests)) == {
        ("getItem", "KEY"),
        ("setItem", "KEY"),
        ("removeItem", "KEY"),
    }
    assert everything.count('headers.authorization = "Bearer " + key') == 1
    assert len(re.findall(r"\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|EventSource", everything)) == 1
    assert 'redirect: "error"' in requests and 'credentials: "omit"' in requests
    form = re.search(r"<input type=\"password\".*?/>", scripts["app.js"], re.DOTALL)
    assert form and 'autocomplete="off"' in form[0]


def test_sec_50_tokens_stay_in_the_tab_and_go_to_the_provider_alone(api: Api) -> None:
    script = _scripts(api)["signin.js"]
    assert not re.search(r"localStorage|document\.cookie|indexedDB|console\.\w+\(|authorization\b(?!_)", script)
    assert set(re.findall(r"sessionStorage\.\w+\((\w+)", script)) == {"PENDING", "TOKENS", "name"}
    (request,) = re.findall(r"\bfetch\((.*?)\}\);", script, re.DOTALL)
    assert request.startswith("provider.token_endpoint, ")
    assert 'redirect: "error"' in request and 'credentials: "omit"' in request
    # The code leaves the address before anything else happens.
    before, after = script.split("history.replaceState", 1)
    assert "await" not in before[before.index("function finish") :] and "await" in after


def test_sec_08_a_service_without_authentication_says_so_to_the_console(api: Api, tmp_path: Path) -> None:
    warning = r"cluster\.data\?\.auth === false\s+&& html`<p\s+class=\"open\">Without authentication: "
    assert re.search(warning, _scripts(api)["app.js"])
    assert api.call("GET", "/v1/cluster").json["auth"] is False
    with guarded(tmp_path) as admin:
        assert admin.call("GET", "/v1/cluster").json["auth"] is True
