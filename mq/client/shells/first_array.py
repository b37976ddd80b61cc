"""The first array of a process: with it, pyarrow imports pandas, if it is installed, in a quarter of a second."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from deltamq.mq.client.shells.shell import Shell


async def before_arrays(shell: Shell) -> None:
    """Make the first array where that keeps nobody waiting: on an event loop, in a thread."""
    if _make_array.cache_info().currsize == 0:
        await shell.blocking(_make_array)


@cache
def _make_array() -> None:
    pa.array([], pa.null())
