"""Spark as a reader: how long a count takes. Without Java or the jars there are no such figures, and a line says so."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from tests.bench.load import LoadError
from tests.bench.session import Session, Window

__all__ = ["SparkCounter"]


class SparkCounter:
    """A Spark session, started at the first count."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._spark: Any = None
        self._missing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spark is not None:
            self._spark.stop()

    def windows(self, session: Session, location: str, count: int) -> list[Window]:
        """Windows of counts over the Delta table at `location`, which has to find at least `count` rows."""
        spark = self.started()
        if spark is None:
            return []

        def once(_: float) -> dict[str, float]:
            began = time.perf_counter()
            found = spark.read.format("delta").load(location).count()
            if found < count:
                raise LoadError(f"Spark counted {found} of {count} rows")
            return {"took": (time.perf_counter() - began) * 1e3}

        return session.windows(once)

    def started(self) -> Any:
        """The session, started at the first call; None where there are to be no such figures."""
        if self._spark is None and not self._missing and self._session.effort.spark:
            try:
                from deltamq.jobs.spark.session import spark_session

                self._spark = spark_session("deltamq-bench", warehouse=self._session.folder)
            except Exception as error:
                self._missing = True
                self._session.say(f"no Spark figures: {error}")
        return self._spark
