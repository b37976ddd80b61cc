"""A schema registry whose only store is a topic: cases of ours for Apicurio, by calls of Confluent's clients."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.free_ports import free_port
from tests.suites.broker import Broker
from tests.suites.cache import Cache
from tests.suites.java_suites import java
from tests.suites.outcomes import Outcome
from tests.suites.playing import outcomes_of, running, until

__all__ = ["play_apicurio"]

_APICURIO: Final = (
    "io.apicurio:apicurio-registry-app",
    "3.0.9",
    "all",
    "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43",
)
_FIRST: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
_SECOND: Final = {**_FIRST, "fields": [*_FIRST["fields"], {"name": "note", "type": "string", "default": ""}]}
_OTHER: Final = {**_FIRST, "fields": [{"name": "id", "type": "string"}]}


class _Registry(msgspec.Struct, frozen=True):
    port: int
    process: subprocess.Popen[bytes]

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """Return the answer of a call."""
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7/{path}"
        request = urllib.request.Request(url, data, head, method=method or ("POST" if data else "GET"))
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def status(self, path: str, body: Any) -> int:
        """Return the status of a call that may be refused."""
        try:
            self.ask(path, body)
        except urllib.error.HTTPError as refused:
            return refused.code
        return 200

    def register(self, subject: str, schema: Any) -> int:
        return int(self.ask(f"subjects/{subject}/versions", {"schema": json.dumps(schema)})["id"])

    def schema(self, number: int) -> Any:
        return json.loads(self.ask(f"schemas/ids/{number}")["schema"])

    def waits_for(self, number: int) -> Any:
        """Return a schema that another registry has stored."""
        return until(lambda: self.schema(number), self.process)


def play_apicurio(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play two registries on one topic, one of which is killed and started again with nothing but the topic."""
    folder, ids = cache.maven_archive(*_APICURIO), dict[str, int]()

    def schemas_are_registered_and_read() -> None:
        ids["first"] = one.register("orders-value", _FIRST)
        assert one.schema(ids["first"]) == _FIRST
        assert one.register("orders-value", _FIRST) == ids["first"]
        assert one.ask("subjects") == ["orders-value"]

    def a_schema_that_does_not_fit_is_refused() -> None:
        one.ask("config/orders-value", {"compatibility": "BACKWARD"}, "PUT")
        assert one.status("subjects/orders-value/versions", {"schema": json.dumps(_OTHER)}) == 409
        ids["second"] = one.register("orders-value", _SECOND)
        assert one.ask("subjects/orders-value/versions") == [1, 2]

    def a_second_registry_has_what_the_first_stored() -> None:
        assert [two.waits_for(ids[name]) for name in ("first", "second")] == [_FIRST, _SECOND]
        assert two.ask("subjects/orders-value/versions") == [1, 2]

    def what_each_stores_the_other_has() -> None:
        ids["by one"], ids["by two"] = one.register("one", _OTHER), two.register("two", {"type": "string"})
        assert two.waits_for(ids["by one"]) == _OTHER
        assert one.waits_for(ids["by two"]) == {"type": "string"}
        assert len(set(ids.values())) == len(ids)

    def one_that_was_killed_has_all_of_it_again() -> None:
        ids["meanwhile"] = two.register("meanwhile", {"type": "long"})
        wanted = [_FIRST, _SECOND, _OTHER, {"type": "string"}, {"type": "long"}]
        assert [again.waits_for(number) for number in ids.values()] == wanted
        assert sorted(again.ask("subjects")) == ["meanwhile", "one", "orders-value", "two"]
        assert again.status("subjects/orders-value/versions", {"schema": json.dumps(_OTHER)}) == 409
        assert again.register("after", {"type": "int"}) not in ids.values()

    with contextlib.ExitStack() as stack:
        with _registry(folder, broker, log) as one:
            first = (schemas_are_registered_and_read, a_schema_that_does_not_fit_is_refused)
            yield from outcomes_of(_named(*first), log, pattern)
            two = stack.enter_context(_registry(folder, broker, log))
            second = (a_second_registry_has_what_the_first_stored, what_each_stores_the_other_has)
            yield from outcomes_of(_named(*second), log, pattern)
            one.process.kill()
        again = stack.enter_context(_registry(folder, broker, log))
        yield from outcomes_of(_named(one_that_was_killed_has_all_of_it_again), log, pattern)


def _named(*cases: Any) -> dict[str, Any]:
    return {case.__name__.replace("_", " "): case for case in cases}


@contextlib.contextmanager
def _registry(folder: Path, broker: Broker, log: Path) -> Iterator[_Registry]:
    """Run a registry until the block ends; its tables are in memory."""
    port = free_port()
    settings = {
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": broker.address,
        "quarkus.http.port": str(port),
        "quarkus.http.host": "127.0.0.1",
    }
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    options += [f"-D{name}={value}" for name, value in settings.items()]
    jar = next(folder.glob("*-runner.jar"))
    with running([str(java()), *options, "-jar", str(jar)], cwd=folder, env=os.environ, log=log) as process:
        registry = _Registry(port, process)
        until(lambda: registry.ask("subjects"), process)
        yield registry
