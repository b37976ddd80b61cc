"""The files of the console: what is served, what they load and call, and where its libraries are from (SPEC LOOK-8)."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable  # the node that Playwright brings

from deltamq.api.routes.cluster import CONSOLE
from deltamq.api.schemas.endpoint import CALLS as REGISTRY
from deltamq.jobs.sql.views import VIEWS
from deltamq.tables.state.schema import STATE_TABLES
from tests.api.running import Api, config_for, running
from tests.unit.test_documented_commands import unknown_word

_ROOT = Path(__file__).parents[2]
_VENDOR = _ROOT / "api" / "console" / "vendor"
_OURS = {
    name: file.body.decode()
    for name, file in CONSOLE.items()
    if name.endswith(".js") and not name.startswith("vendor/")
}
_IMPORT = re.compile(r'import (?:(\w+)|\{\s+([^}]*)\s+\})\s+from\s+"([^"]+)";')
#: A request: the function that sends it, and the path, with a value of Python's `{}` for each of its names.
_REQUEST = re.compile(r'(?:send\("([A-Z]+)",\s+|(?<![\w.]))at`([^`]*)`')
_COMMAND = re.compile(r"deltamq ((?:[a-z-]+|\$\{[^}]+\}|--[a-z-]+|[A-Z]+)(?: [^\s\"`'<]+)*)")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        yield found


def test_each_file_is_served_with_its_type_the_policy_and_a_tag(api: Api) -> None:
    assert {"app.js", "app.css", "pages/topic.js", "vendor/preact.js", "vendor/LICENCES.txt"} <= CONSOLE.keys()
    for name, file in CONSOLE.items():
        reply = api.call("GET", f"/console/{name}")
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, file.kind, file.body), name
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        again = api.call("GET", f"/console/{name}", If_None_Match=reply.headers["etag"])
        assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "name", ["nothing.js", "", "../app.py", "..%2fapp.py", "vendor", "vendor/README.md", "app.js/"]
)
def test_nothing_else_is_served(api: Api, name: str) -> None:
    assert api.call("GET", f"/console/{name}").status == 404


def test_the_page_loads_files_of_the_console_alone(api: Api) -> None:
    reply = api.call("GET", "/")
    assert reply.headers["content-type"].startswith("text/html")
    loaded = re.findall(r'(?:src|href)\s*=\s*["\']([^"\']*)', reply.body.decode())
    assert loaded and {name.removeprefix("console/") for name in loaded} <= CONSOLE.keys()


def test_no_file_names_another_host() -> None:
    for name, text in _OURS.items() | {("app.css", CONSOLE["app.css"].body.decode())}:
        assert not re.search(r"https?:|url\(|@import|[\"'`(]//", text), name
    # Preact names the spaces of SVG and MathML: what loads nothing
    hosts = {
        host for file in CONSOLE.values() for host in re.findall(rb"[\"'`(](?:https?:)?//(?!www\.w3\.org/)", file.body)
    }
    assert hosts == set()


#: Parses each module, and links them all: an import without its export is an error.
_LINK = """
const vm = require("node:vm"), path = require("node:path").posix;
const files = JSON.parse(require("node:fs").readFileSync(0, "utf8")), modules = {};
for (const name in files) modules[name] = new vm.SourceTextModule(files[name], {identifier: name});
const found = (to, from) => modules[path.normalize(path.join(path.dirname(from.identifier), to))];
modules["app.js"].link((to, from) => found(to, from) ?? Promise.reject(new Error(from.identifier + ": no " + to)))
  .catch(error => { console.error(String(error)); process.exit(1); });
"""


def test_the_modules_are_sound_and_their_imports_are_there() -> None:
    scripts = {name: file.body.decode() for name, file in CONSOLE.items() if name.endswith(".js")}
    command = [compute_driver_executable()[0], "--experimental-vm-modules", "--no-warnings", "-e", _LINK]
    assert [name for name, text in _OURS.items() if max(map(len, text.splitlines())) > 120] == []
    linked = subprocess.run(command, input=json.dumps(scripts), capture_output=True, text=True, check=False)
    assert linked.returncode == 0, linked.stderr
    for name, text in _OURS.items():
        for default, names, _ in _IMPORT.findall(text):
            for one in filter(None, [default, *re.split(r",\s+", names.strip())]):
                assert len(re.findall(rf"(?<![\w.]){one.split(' as ')[-1]}\b", text)) > 1, f"{name} does not use {one}"


def _calls(document: dict[str, dict[str, object]]) -> set[str]:
    return {
        f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}" for path, methods in document.items() for method in methods
    }


def test_look_08_it_calls_the_public_rest_only(api: Api) -> None:
    documented = _calls(api.call("GET", "/openapi.json").json["paths"])
    documented |= {re.sub(r"{[^}]*}", "{}", call) for call in REGISTRY}
    called = set()
    for name, text in _OURS.items():
        asked = re.findall(r"(?<![\w.])(?:get|open|follow|useLive|useRows|send)\((?:\"[A-Z]+\",\s+)?([^,)]*)", text)
        for method, path in _REQUEST.findall(text):
            called.add(f"{method or 'GET'} /{re.sub(r'[$]{[^}]*}', '{}', path)}")
        # whatever sends is given a path that was written like this, in place or by its caller
        assert [one for one in asked if re.match(r"[\"']|`", one)] == [], name
    assert called - documented == set() and len(called) > 40


def test_look_28_each_table_names_what_gives_its_rows(api: Api) -> None:
    documented = _calls(api.call("GET", "/openapi.json").json["paths"])
    views, calls = set(), set()
    for name, text in _OURS.items():
        assert text.count("<${Table} ") == len(re.findall(r"\ssql=\$\{", text)), name
        views |= set(re.findall(r'view="(\w+)"', text))
        calls |= set(re.findall(r'call="([^"]+)"', text))
    assert views - {"job_shards", *VIEWS, *(f"mq_{table.replace('/', '_')}" for table in STATE_TABLES)} == set()
    assert {re.sub(r"{[^}]*}", "{}", call) for call in calls} - documented == set() and len(calls) > 6


def test_the_commands_that_it_names_are_there() -> None:
    named = {command for text in _OURS.values() for command in _COMMAND.findall(text)}
    assert len(named) > 8
    assert {one: word for one in named if (word := unknown_word(re.sub(r"\$\{[^}]*\}", "x", one)))} == {}


def test_its_libraries_are_those_of_npm() -> None:
    rows = re.findall(r"\| (\S+) \| (\S+) \| (\S+) \| `(\S+)` \| `(\w{64})` \|", (_VENDOR / "README.md").read_text())
    files = {path if "/" in path else f"api/console/vendor/{path}": sha for *_, path, sha in rows}
    assert {path: hashlib.sha256((_ROOT / path).read_bytes()).hexdigest() for path in files} == files
    there = {path.name for path in _VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert {Path(path).name for path in files if "vendor" in path} == there
    update, licences = ((_VENDOR / name).read_text() for name in ("update.sh", "LICENCES.txt"))
    for package, version, *_ in rows:
        assert f"take {package} {version} " in update
    assert all(f"{package} {version}, as " in licences for package, version, *_ in rows if package != "axe-core")
