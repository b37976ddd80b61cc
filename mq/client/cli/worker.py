"""`deltamq worker`: runs the handlers that modules declare with `@deltamq.handler` (SPEC CONS-14).

    deltamq worker app.handlers --processes 4 --metrics-port 9200

With more than one process, or with `--reload`, this process starts the others, hands SIGTERM and Ctrl-C on, and starts
a process again that was killed. One that ends by an error of its own ends all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from deltamq.mq.client.cli.console import print_table, service_options
from deltamq.mq.client.cli.processes import DELTAMQ, asked_to_stop, started
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.worker.handlers import Declared, handlers_of
from deltamq.mq.client.worker.running import Worker, observed
from deltamq.mq.errors import Refused

#: The variable that says which of several processes this one is, from 0 on.
_NUMBER: Final = "DELTAMQ_WORKER_NUMBER"
_PROCESSES_MAX: Final = 256
_ORDERS: Final = {"True": "by partition", "False": "none", "None": "as the group"}
#: Seconds between two looks at processes and files, and before a process that was killed is started again.
_LOOK_S: Final = 0.2
_AGAIN_S: Final = 1.0


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE[:NAME,...]...")
@click.option("--processes", type=click.IntRange(1, _PROCESSES_MAX), default=1, show_default=True, metavar="N")
@click.option("--reload", "is_reloading", is_flag=True, help="Start again when a .py file below this folder changes.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve /healthz and /metrics there; each further process takes the next port.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of that port.")
@service_options
def worker(
    modules: tuple[str, ...],
    processes: int,
    is_reloading: bool,
    metrics_port: int | None,
    metrics_host: str,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> int:
    """Run the handlers that modules declare, until SIGTERM or Ctrl-C; those that run are finished.

    MODULE is a module of Python, found from this folder on: its functions with @deltamq.handler, or only those named.
    """
    number = os.environ.get(_NUMBER)
    if number is None and (processes > 1 or is_reloading):
        return _supervise(processes, is_reloading=is_reloading)
    sys.path.insert(0, os.getcwd())
    declared = [each for module in modules for each in _declared(module)]
    if number in (None, "0"):
        _print(declared)
    _spare_collector()
    asyncio.run(_run(declared, url, access, metrics_host, metrics_port, int(number or 0)))
    return 0


def _spare_collector() -> None:
    """Let the garbage collector pass over what the program's modules made: it lives as long as the process.

    Messages in the handlers make the collector look at everything again and again. With 1,000 handlers of 0.1 s and
    90,000 objects of modules, that was a fifth of the time; no handler goes on in the meantime.
    """
    gc.collect()
    gc.freeze()


async def _run(
    declared: Sequence[Declared],
    url: str,
    access: ClientAccess,
    metrics_host: str,
    metrics_port: int | None,
    number: int,
) -> None:
    running = Worker(declared, url, access)
    with contextlib.ExitStack() as ending:
        _stop_at_signals(running)
        if metrics_port is not None:
            at = metrics_port + number if metrics_port else 0
            port = ending.enter_context(observed(running, metrics_host, at))
            click.echo(f"metrics at http://{metrics_host}:{port}/metrics")
        sys.stdout.flush()
        await running.run()


def _stop_at_signals(running: Worker) -> None:
    """Let SIGTERM and Ctrl-C stop a worker, and a second one the process, whose messages come again."""
    asked: list[int] = []

    def stop(number: int) -> None:
        asked.append(number)
        if len(asked) > 1:
            os._exit(128 + number)
        running.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def _declared(argument: str) -> list[Declared]:
    name, _, functions = argument.partition(":")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something
        raise Refused(f"there is no module {name} in {os.getcwd()}", code="no_module", field="MODULE") from error
    return handlers_of(module, [function for function in functions.split(",") if function])


def _print(declared: Sequence[Declared]) -> None:
    rows = [
        (
            each.name,
            ", ".join(each.topics),
            each.group,
            each.takes,
            each.options.concurrency,
            _ORDERS.get(str(each.options.order), "by key"),
        )
        for each in declared
    ]
    print_table(("handler", "topics", "group", "takes", "at once", "order"), rows, right=("at once",))


# Several processes ----------------------------------------------------------------------------------------------------


def _supervise(count: int, *, is_reloading: bool) -> int:
    """Run the same command in `count` processes; returns 0 after a signal, else the status of one that failed."""
    asked = asked_to_stop()
    command = [*DELTAMQ, *sys.argv[1:]]
    running = [started(command, {_NUMBER: str(number)}) for number in range(count)]
    before = _changed() if is_reloading else None
    while not asked:
        time.sleep(_LOOK_S)
        if is_reloading and (now := _changed()) != before:
            before = now
            click.echo("files have changed: the handlers start again")
            _end(running)
            running = [started(command, {_NUMBER: str(number)}) for number in range(count)]
        for number, process in enumerate(running):
            status = process.poll()
            if status is None or (is_reloading and status >= 0):
                continue  # an error is printed; the next change starts it again
            if status >= 0:
                _end(running)
                return status or 1
            click.echo(f"process {process.pid} was killed by signal {-status}: another one starts", err=True)
            time.sleep(_AGAIN_S)
            running[number] = started(command, {_NUMBER: str(number)})
    return _end(running, asked)


def _end(running: Sequence[subprocess.Popen[bytes]], asked: Sequence[int] = ()) -> int:
    """Let processes finish; a further signal is handed on. Returns the worst status.

    A process that ends by SIGTERM had only begun, and holds nothing.
    """
    handed_on = len(asked)
    for process in running:
        process.terminate()
    while any(process.poll() is None for process in running):
        if len(asked) > handed_on:
            handed_on = len(asked)
            for process in running:
                process.terminate()
        time.sleep(_LOOK_S)
    statuses = [process.wait() for process in running]
    return max((abs(status) for status in statuses if status != -signal.SIGTERM), default=0)


def _changed() -> dict[str, int]:
    """Return when each .py file below this folder was changed; folders with a point before their name do not count."""
    return dict(_files(Path.cwd()))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone since
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "__")):
                    yield from _files(Path(entry.path))
                elif entry.name.endswith(".py"):
                    yield entry.path, entry.stat().st_mtime_ns
