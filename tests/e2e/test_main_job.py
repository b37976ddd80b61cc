"""The main job from outside: it agrees, it serves, it stops (see the fixture `served`, too), and it fails loudly."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from jobs.flights.run import fresh_topic
from mq import Admin, Producer
from tests.e2e.main_job import EVENTS, MainJob, still_there

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_producer_service_and_spark_agree(served: MainJob) -> None:
    lines = {line["what"]: line for line in served.report["lines"]}
    assert [what for what, line in lines.items() if not line["agree"]] == []
    messages = lines["messages"]
    assert {messages["producer"], messages["service"], messages["spark"]} == {f"{EVENTS:,}"}
    assert lines["gapless partitions"]["spark"] == "4"
    assert f"Spark SQL finds {EVENTS:,} events; {EVENTS:,} were acknowledged when it was asked" in served.output


def test_the_service_serves_on_and_spark_has_gone(served: MainJob) -> None:
    with Admin(served.url) as admin:
        assert admin.get_topic("flights").messages == EVENTS
    assert [process.name() for process in served.processes() if "java" in process.name()] == []


def test_another_run_takes_a_fresh_topic(served: MainJob) -> None:
    with Admin(served.url) as admin:
        made = fresh_topic(admin)
        assert made == "flights-2"
        assert len(admin.get_topic(made).partitions) == 4
        admin.delete_topic(made)


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = MainJob(tmp_path / "warehouse", "--once", port=taken.getsockname()[1])
        assert job.wait() == 1
    assert "make run PORT=8081" in job.output
    assert "Traceback" not in job.output


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
