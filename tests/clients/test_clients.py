"""Generated clients of other languages, and event streams, against a service; the programs are those of the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.made import ADDRESS, CLIENTS, Client, example
from tests.console.chromium import chromium, needs_chromium
from tests.e2e.service_process import ServiceProcess
from tests.suites.cache import Cache, CannotRun, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

_CACHE = Cache(Path(__file__).parents[2] / ".clients")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path_factory.mktemp("clients") / "warehouse")
    yield service
    service.close()


def built(client: Client, text: str) -> tuple[list[str], Path]:
    """An example's command and folder; skips where the language is not installed."""
    if shutil.which({"typescript": "node"}.get(client.language, client.language)) is None:
        pytest.skip(f"{client.title} is not installed")
    try:
        return client.command(_CACHE, text)
    except CannotRun as error:
        pytest.skip(str(error)) if "is missing: install" in str(error) else pytest.fail(str(error))


def call(service: ServiceProcess, method: str, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(f"{service.url}{path}", json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request):
        pass


def send(service: ServiceProcess, topic: str, *numbers: int) -> None:
    bodies = [{"body": json.dumps({"n": number})} for number in numbers]
    call(service, "POST", f"/v1/topics/{topic}/messages", {"messages": bodies})


def answers(text: str) -> list[dict[str, Any]]:
    """What lines for a shell print, one JSON object after the other."""
    printed = run(["bash", "-euo", "pipefail", "-c", text])
    return [json.loads(line) for line in printed.replace("}{", "}\n{").splitlines()]


def test_the_lines_for_curl_do_what_the_page_says(service: ServiceProcess) -> None:
    topic, sent, fetched, acked, problem = answers(example("curl", "bash", service.url))
    assert topic["topic"] == "orders"
    assert sent["ranges"] == [{"partition": "orders@broker-a", "base_offset": 0, "count": 1}]
    assert fetched["messages"][0]["body"] == '{"amount": 12.5}'
    assert acked == {"acked": 1, "failed": []}
    assert problem["code"] == "topic_not_found"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.title)
def test_look_21_a_generated_client_sends_reads_takes_and_acknowledges(service: ServiceProcess, client: Client) -> None:
    text = example(client.title, client.language, service.url)
    command, folder = built(client, text)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (amount,) = set(re.findall(r"amount\\?\": ([0-9.]+)", text))
    assert done.stdout.splitlines() == [f'fetched {{"amount": {amount}}}', "acked 1", "error topic_not_found"]


_INTEGERS = """
import createClient from "openapi-fetch";
import type { paths } from "./deltamq";

const mq = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: "http://127.0.0.1:8080" });
const path = { topic: "integers" };
const most = Number.MAX_SAFE_INTEGER;
const kept = await mq.PUT("/v1/topics/{topic}", { params: { path }, body: { partitions: 1, retention_bytes: most } });
const again = await mq.PUT("/v1/topics/{topic}", {
  params: { path },
  body: { retention_bytes: kept.data?.retention_bytes ?? null },
});
const more = await mq.PUT("/v1/topics/{topic}", { params: { path }, body: { retention_bytes: most + 1 } });
console.log(kept.data?.retention_bytes === most, again.data?.retention_bytes === most, more.error?.code);
const body = { messages: [{ body: "x" }], producer: { id: "js", seq: most } };
await mq.POST("/v1/topics/{topic}/messages", { params: { path }, body });
const sent = await mq.POST("/v1/topics/{topic}/messages", { params: { path }, body });
const { partition, base_offset: offset } = sent.data!.ranges[0]!;
const fetched = await mq.GET("/v1/topics/{topic}/partitions/{partition}/messages", {
  params: { path: { ...path, partition }, query: { offset } },
});
console.log(sent.data?.duplicate, fetched.data?.messages[0]?.producer_seq === most, fetched.data?.next_offset);
"""


def test_look_21_a_generated_client_of_javascript_keeps_the_greatest_integers(service: ServiceProcess) -> None:
    command, folder = built(CLIENTS[0], _INTEGERS.replace(ADDRESS, service.url))
    assert run(command, cwd=folder).splitlines() == ["true true invalid_value", "true true 1"]


@pytest.mark.parametrize("client", CLIENTS[1:], ids=lambda client: client.title)
def test_cons_15_a_program_without_an_sdk_sends_an_event_and_follows_a_partition(
    service: ServiceProcess, client: Client
) -> None:
    topic = f"{client.language}-visits"
    call(service, "PUT", f"/v1/topics/{topic}", {"partitions": 1})
    text = example(f"Events in {client.title}", client.language, service.url).replace("visits", topic)
    command, folder = built(client, text)
    (event,) = run(command, cwd=folder).splitlines()
    message = json.loads(event.removeprefix("event "))
    assert (message["message_id"], message["key"], message["body"]) == ("visit-9", "customer-9", '{"seconds": 90}')


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_cons_15_the_sdk_of_cloud_events_sends_and_reads_events(service: ServiceProcess, mode: str) -> None:
    lines = example("CloudEvents", "bash", service.url).replace("visits", f"{mode}-visits").splitlines(keepends=True)
    taken = json.loads(
        run(["bash", "-euo", "pipefail", "-c", "".join(lines)]).partition("}")[2].partition("}")[2] or "{}"
    )
    assert (taken["id"], taken["subject"], taken["data"]) == ("visit-1", "customer-3", {"seconds": 40})
    text = example("CloudEvents", "typescript", service.url).replace("visits", f"{mode}-visits")
    accept = "application/cloudevents" + ("+json" if mode == "structured" else "")
    command, folder = built(
        CLIENTS[0], text.replace("HTTP.binary", f"HTTP.{mode}").replace('"application/cloudevents"', f'"{accept}"')
    )
    printed = run(command, cwd=folder)
    received = json.loads(printed.removeprefix("received "))
    assert (received["source"], received["subject"], received["data"]) == ("/shops/7", "customer-4", {"seconds": 50})
    assert received["mqattempt"] == "1"


def check_tail(service: ServiceProcess, topic: str, seen: Callable[[], list[str]]) -> None:
    """A stream shows each message once, in order, though the service is restarted meanwhile."""
    send(service, topic, 0, 1, 2)
    wait_for(lambda: len(seen()) >= 3)
    assert service.stop() == 0
    service.start()
    send(service, topic, 3, 4)
    wait_for(lambda: len(seen()) >= 5)
    assert seen() == [f'{topic}@broker-a:{n} {{"n": {n}}}' for n in range(5)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


def tail_of(service: ServiceProcess, topic: str) -> str:
    """The page's program, which goes on reading here."""
    call(service, "PUT", f"/v1/topics/{topic}", {"partitions": 1})
    text = example("Event streams", "typescript", service.url).replace("orders", topic)
    return re.sub(r" *tail\.close.*\n", "", text)


def test_look_21_nodes_event_source_goes_on_after_a_restart(service: ServiceProcess) -> None:
    command, folder = built(CLIENTS[0], tail_of(service, "node"))
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, cwd=folder, stdout=output) as reader:

        def seen() -> list[str]:
            output.seek(0)
            return output.read().splitlines()

        try:
            check_tail(service, "node", seen)
        finally:
            reader.kill()


@needs_chromium
def test_look_21_a_browsers_event_source_goes_on_after_a_restart(service: ServiceProcess) -> None:
    program = re.sub(r"^import .*\n", "", tail_of(service, "browser"))
    seen: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{service.url}/")
        page.on("console", lambda said: seen.append(said.text) if said.type == "log" else None)
        page.evaluate(f"() => {{ {program} }}")

        def shown() -> list[str]:
            page.wait_for_timeout(50)  # lets the browser's events in
            return seen

        check_tail(service, "browser", shown)
