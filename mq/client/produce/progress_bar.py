"""A progress bar on stderr that counts rows; draws nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def row_bar(title: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Draw a bar while the block runs; yields a function to call with the number of rows done so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    # rich takes 80 ms to import, so it is imported only if a bar is drawn.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(title, total=total, completed=done, rate=0.0)

        def advance(now_done: int) -> None:
            bar.update(task, completed=now_done, rate=bar.tasks[0].speed or 0.0)

        yield advance
