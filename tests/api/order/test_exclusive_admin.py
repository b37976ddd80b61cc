"""What administrators see and set of an exclusive group: Python and the command line against a service."""

from __future__ import annotations

import json

from click.testing import CliRunner

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.groups import group as commands
from tests.api.exclusive import Member
from tests.api.running import Api


def cli(api: Api, *words: str) -> str:
    done = CliRunner().invoke(commands, [*words, "--url", f"http://127.0.0.1:{api.port}"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_order_02_an_administrator_sees_who_consumes_what(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    with Admin(f"http://127.0.0.1:{api.port}") as admin:
        made = admin.create_group(topic, consume_strategy="exclusive", allocation_strategy="circle")
        assert made.allocation_strategy == "circle" and made.clients == () and made.allocation == {}
        first, second = (Member(api, topic, topic, name) for name in ("c0", "c1"))
        first.beat()
        second.beat()
        found = admin.get_group(topic)
        assert [(one.client_id, one.online) for one in found.clients] == [("c0", True), ("c1", True)]
        assert found.clients[0].topics[topic].order and found.clients[0].topics[topic].tags == "*"
        assert 0 < (found.clients[0].authorized_ms or 0) <= api.service.settings.authorization_ms
        expected = {"c0": [f"{topic}@broker-a"], "c1": [f"{topic}@broker-b"]}
        assert found.allocation[topic].clients == expected
        second.leave()
        left = admin.get_group(topic)
        assert [one.online for one in left.clients] == [True, False]
        assert left.allocation[topic].epoch > found.allocation[topic].epoch


def test_order_02_the_command_line_shows_clients_and_their_partitions(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    created = cli(api, "create", topic, "--strategy", "exclusive", "--allocation", "average")
    assert created.startswith(f"created {topic}: exclusive (average), from first")
    first, second = (Member(api, topic, topic, name) for name in ("c0", "c1"))
    first.beat()
    second.beat()
    second.leave()
    lines = [line.split() for line in cli(api, "show", topic).splitlines()]
    assert ["c0", "online", topic, f"{topic}@broker-a", f"{topic}@broker-b"] in lines
    assert ["c1", "leaving", topic, "-"] in lines
    shown = json.loads(cli(api, "show", topic, "--json"))
    assert shown["allocation"][topic]["clients"] == {"c0": [f"{topic}@broker-a", f"{topic}@broker-b"]}
