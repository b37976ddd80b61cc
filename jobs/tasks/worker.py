"""Spark's Python workers, each of which runs one task after another."""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_imports() -> None:
    """Exclude the imported modules from Python's garbage collection, once.

    A worker of Spark collects before it takes the next task. With pyarrow and our packages in memory that
    takes 50 ms, which is more than most tasks.
    """
    gc.freeze()
