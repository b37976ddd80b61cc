"""The first line of an error says what happened and what to do (SPEC SPARK-23).

A process that Spark starts for a Python source or sink hands an exception on as text: a traceback, with the exception's
own line at the end. Spark puts its own words before that text, and the query's plan behind it. So for a DeltaMQ error,
which is a sentence, the traceback is left out, by the switch that Spark's setting
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` turns. Other errors are faults, and keep their tracebacks.

    [STREAM_FAILED] Query [...] terminated with exception: [...] Failed ...: mq.errors.NotFound: there is no topic ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from deltamq.mq.errors import DeltaMQError

P = ParamSpec("P")
R = TypeVar("R")

_HIDDEN: Final = "SPARK_HIDE_TRACEBACK"
#: Set by Spark in each process that it starts for Python. Such a process ends after it has passed on an exception, so
#: that nothing else is hidden.
_IN_WORKER: Final = "SPARK_BUFFER_SIZE"
_SENTENCE: Final = re.compile(r"\b(?:mq|tables|jobs)\.[\w.]*\b[A-Z]\w*: (.+)")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Let the driver get DeltaMQ errors without a traceback."""
    try:
        yield
    except DeltaMQError:
        if _IN_WORKER in os.environ:
            os.environ[_HIDDEN] = "1"
        raise


def in_one_line(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose DeltaMQ errors reach the driver without a traceback; not for generators."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with errors_in_one_line():
            return function(*args, **kwargs)

    return call


def sentence_of(text: str) -> str:
    """Return the DeltaMQ error's sentence in the text of a Spark error; without one, the text's first line.

    An error within `foreachBatch` has the traceback of the caller's own function before it.
    """
    sentences = _SENTENCE.findall(text)
    return sentences[-1].strip() if sentences else text.strip().partition("\n")[0]
