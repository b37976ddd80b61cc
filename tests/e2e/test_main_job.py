"""The main job from outside: it agrees, it serves, it stops (see the fixture `served`, too), and it fails loudly."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from deltamq import Admin, Producer
from deltamq.jobs.flights.events import events_of, read_airports, read_flights
from deltamq.jobs.flights.group_account import fails
from deltamq.jobs.flights.groups import fresh_groups
from deltamq.jobs.flights.run import fresh_topic
from tests.e2e.main_job import EVENTS, PATIENCE_S, MainJob, still_there

pytestmark = [pytest.mark.spark, pytest.mark.timeout(PATIENCE_S + 300)]


def test_producer_service_and_spark_agree(served: MainJob) -> None:
    lines = {line["what"]: line for line in served.report["lines"]}
    assert [what for what, line in lines.items() if not line["agree"]] == []
    messages = lines["messages"]
    assert {messages["producer"], messages["service"], messages["spark"]} == {f"{EVENTS:,}"}
    assert lines["gapless partitions"]["spark"] == "4"
    assert f"Spark SQL finds {EVENTS:,} events; {EVENTS:,} were acknowledged when it was asked" in served.output


@pytest.mark.long
def test_retry_03_every_message_is_acknowledged_or_dead_by_four_accounts(served: MainJob) -> None:
    lines = {(line["group"], line["what"]): line for line in served.report["groups"]}
    assert [key for key, line in lines.items() if not line["agree"]] == []
    assert {group for group, _ in lines} == {"tower", "repairs"}
    dead = sum(map(fails, events_of(read_flights(), read_airports())["key"].slice(0, EVENTS).to_pylist()))
    assert dead > 0
    assert number(lines["tower", "acknowledged"]) == EVENTS
    assert number(lines["tower", "delivered again"]) == number(lines["tower", "dead letters"]) == 0
    assert number(lines["repairs", "acknowledged"]) == EVENTS - dead
    assert number(lines["repairs", "dead letters"]) == number(lines["repairs", "distinct origins"]) == dead
    assert number(lines["repairs", "left over"]) == number(lines["tower", "left over"]) == 0


def test_pop_11_what_a_killed_worker_held_came_again(served: MainJob) -> None:
    held = int(re.search(r"a worker killed itself with ([\d,]+) messages", served.output)[1].replace(",", ""))
    lines = {(line["group"], line["what"]): line for line in served.report["groups"]}
    dead = number(lines["repairs", "dead letters"])
    again = number(lines["repairs", "delivered again"])
    # What failed is delivered twice more in any case, whether the dead worker held it or not.
    assert 2 * dead < again <= 2 * dead + held


def number(line: dict[str, str]) -> int:
    """What the tables say of a line of the report."""
    return int(line["spark"].replace(",", ""))


def test_the_service_and_the_jobs_serve_on(served: MainJob) -> None:
    with Admin(served.url) as admin:
        assert admin.get_topic("flights").messages == EVENTS
        # The examples of the documents, which run against the same service, make groups of their own.
        assert {"repairs", "tower"} <= set(admin.list_groups())
    running = served.commands()
    assert any("jobs run merge revive delay retain" in line for line in running)
    assert [line for line in running if "deltamq.jobs.flights" in line] == []


def test_another_run_takes_a_fresh_topic_and_fresh_groups(served: MainJob) -> None:
    with Admin(served.url) as admin:
        made = fresh_topic(admin)
        assert made == "flights-2"
        assert len(admin.get_topic(made).partitions) == 4
        admin.delete_topic(made)
        groups = [group.name for group in fresh_groups(admin)]
        assert groups == ["tower-2", "repairs-2"]
        for group in groups:
            admin.delete_group(group)


@pytest.mark.long
def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = MainJob(tmp_path / "warehouse", "--once", port=taken.getsockname()[1])
        assert job.wait() == 1
    assert "make run PORT=8081" in job.output
    assert "Traceback" not in job.output


@pytest.mark.long
def test_a_killed_service_ends_the_job_with_its_log(tmp_path: Path) -> None:
    job = MainJob(tmp_path / "warehouse", "--once", "--events", "1000")
    try:
        job.wait_for("service   http://")
        job.service().kill()
        left = job.processes()
        assert job.wait() == 1
        assert "the service was killed by SIGKILL; the end of its log:" in job.output
        assert "event=setting" in job.output
        assert "Traceback" not in job.output
        assert still_there(left) == []
    finally:
        job.end()


@pytest.mark.long
def test_ctrl_c_before_the_report_ends_everything(tmp_path: Path) -> None:
    job = MainJob(tmp_path / "warehouse", "--once")
    try:
        job.wait_for("service   http://")
        left = job.processes()
        assert job.interrupt() == 128 + signal.SIGINT
        assert still_there(left) == []
    finally:
        job.end()


@pytest.mark.long
def test_a_message_of_somebody_else_turns_the_report_red(tmp_path: Path) -> None:
    job = MainJob(tmp_path / "warehouse", "--once", "--events", "20000", "--rate", "4000")
    try:
        job.wait_for("topic     flights")
        with Producer(job.url) as producer:
            producer.send("flights", "not a flight", key="N725MQ", tag="departure")
        assert job.wait() == 1
        red = {line["what"] for line in job.report["lines"] if not line["agree"]}
        assert {"messages", "departures", "gapless partitions", "aircraft in order", "checksum of bodies"} <= red
        assert "N725MQ" in job.report["out_of_order"]
    finally:
        job.end()
