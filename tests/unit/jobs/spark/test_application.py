"""When Spark is made again: at once, and after growing waits when it dies soon; here without Spark."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltamq.jobs.spark.application import WAITS_S, SparkApplication, SparkGone
from deltamq.jobs.spark.runner import SparkRunner
from deltamq.tables.config import Config
from tests.unit.jobs.run.test_schedule import NOW, _job


class Remote:
    """A session as Connect's: no context, and a server that may be gone."""

    def __init__(self) -> None:
        self.gone = False
        self.stopped = False
        self.tags: list[str] = []
        self.interrupted: list[str] = []

    @property
    def version(self) -> str:
        if self.gone:
            raise ConnectionError("server is gone")
        return "4"

    @property
    def client(self) -> Remote:
        return self

    def close(self) -> None:
        """Nothing is open."""

    def stop(self) -> None:
        self.stopped = True

    def cloneSession(self) -> Remote:
        return self

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> None:
        self.interrupted.append(tag)


class Maker:
    """Makes sessions, or fails."""

    def __init__(self) -> None:
        self.made: list[Remote] = []
        self.fails = False
        self.now_s = 1_000.0

    def __call__(self, conf: Config) -> Any:
        if self.fails:
            raise OSError("no server")
        self.made.append(Remote())
        return self.made[-1]

    def application(self) -> SparkApplication:
        return SparkApplication(Config(), make=self, is_given=lambda: False, monotonic_s=lambda: self.now_s)


def test_spark_07_an_error_of_a_job_leaves_spark_alone() -> None:
    maker = Maker()
    application = maker.application()
    session = application.session("a")
    assert not application.has_died(session, ValueError("the job's own"))
    assert application.session("a") is session


def test_spark_07_one_that_died_is_made_again_at_once_and_later_after_growing_waits() -> None:
    maker = Maker()
    application = maker.application()
    waited = []
    for _ in range(len(WAITS_S) + 1):
        died_s = maker.now_s
        while True:
            try:
                session: Any = application.session("a")
                break
            except SparkGone as error:
                assert "it ended by ConnectionError: reset" in error.detail
                maker.now_s += 0.5
        waited.append(maker.now_s - died_s)
        session.gone = True
        assert application.has_died(session, ConnectionError("reset"))
        assert application.has_died(session, ConnectionError("reset")), "the next job that fails by it"
        assert session.stopped
    assert waited == [0.0, *WAITS_S]
    maker.now_s += 600
    session = application.session("a")
    maker.now_s += 600
    session.gone = True
    application.has_died(session, ConnectionError("reset"))
    assert application.session("a") is not session, "one that lived long is made again at once"


def test_spark_07_one_that_does_not_start_is_tried_again_later() -> None:
    maker = Maker()
    application = maker.application()
    maker.fails = True
    for _ in range(2):
        with pytest.raises(OSError, match="no server"):
            application.session("a")
    with pytest.raises(SparkGone, match="OSError: no server"):
        application.session("b")
    maker.fails = False
    maker.now_s += 1
    assert application.session("b") is not None


def test_spark_07_over_connect_a_run_has_a_tag_by_which_it_is_cancelled() -> None:

    maker = Maker()
    runner = SparkRunner(Config(), application=maker.application())
    tags: list[str] = []

    def run(spark: Any, *_: object) -> dict[str, int | str]:
        tags.extend(spark.tags)
        runner.cancel("a")
        return {"progress": runner.progress("a")}

    assert runner(msgspec.structs.replace(_job("a"), run=run), Config(), NOW, ["all"]) == {"progress": ""}
    (session,) = maker.made
    assert session.interrupted == tags
    assert len(tags) == 1
    assert session.tags == []
    runner.cancel("a")  # no run
    assert session.interrupted == tags
