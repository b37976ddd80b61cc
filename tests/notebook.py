"""Python that users type for Spark, run in a session that is there already, as a notebook's cells are.

Everything that starts Spark anew costs ten seconds of two cores, and then runs slowly, because nothing is compiled.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from deltamq.jobs.spark.datasource import register, session_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_as_notebook"]


def run_as_notebook(code: str, name: str, spark: SparkSession, environ: Mapping[str, str]) -> str:
    """Run the code in this thread's active session with these environment variables; return what it prints.

    Raises
    ------
    Exception
        Whatever the code raises.
    """
    before = session_warehouse(spark)
    assert before is not None
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        for variable, value in environ.items():
            patch.setenv(variable, value)
        try:
            exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "__main__", "__file__": name})
        finally:
            register(spark, warehouse=before)
    return printed.getvalue()
