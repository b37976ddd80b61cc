"""Spark's Python workers, each of which does one task after another."""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_imports() -> None:
    """Take what the process has imported out of Python's garbage collection, once.

    A worker of Spark collects after each task, before it takes the next. With pyarrow and our packages in memory that
    takes 50 ms, which is more than most tasks.
    """
    gc.freeze()
