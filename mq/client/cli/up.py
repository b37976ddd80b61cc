"""`deltamq up`: the service and the jobs of one machine, started and stopped together.

up --> deltamq serve ...                 if either ends by itself, the other is stopped, and up ends with its status
   --> deltamq jobs run --wait ...       SIGTERM, Ctrl-C: both drain; a kill of `up` stops both (on Linux)
"""

from __future__ import annotations

import time
from typing import Final

import click

from deltamq.mq.client.cli.processes import DELTAMQ, asked_to_stop, started

#: Seconds for which the jobs wait for the service to make the warehouse.
_WAREHOUSE_S: Final = 60
#: Seconds between two looks at the processes.
_LOOK_S: Final = 0.1


@click.command()
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="What delivers messages again: local follows them in memory, spark finds them in tasks.",
)
@click.option("--warehouse", metavar="DIR", help="Folder or URL of the tables.")
@click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local).")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--kafka-port", type=click.IntRange(0, 65535), help="Port for Kafka's clients; 0 for none.")
def up(
    engine: str, warehouse: str | None, profile: str | None, host: str | None, port: int | None, kafka_port: int | None
) -> int:
    """Run the service and the jobs together, on one machine, until SIGTERM or Ctrl-C.

    With the engine local and without Java, only the jobs run that need no Spark: messages come again and are delayed as
    they should, but state tables are not merged, exports not made, the catalog is not kept, no partition is verified.
    """
    shared = _options(warehouse=warehouse, profile=profile)
    serve = [*DELTAMQ, "serve", *shared, *_options(host=host, port=port, kafka_port=kafka_port)]
    jobs = [*DELTAMQ, "jobs", "run", *shared, "--engine", engine, "--wait", str(_WAREHOUSE_S)]
    asked = asked_to_stop()
    processes = [started(serve), started(jobs)]
    while not asked and all(process.poll() is None for process in processes):
        time.sleep(_LOOK_S)
    ended = next((process.returncode for process in processes if process.poll() is not None), 0)
    # the jobs first: they may look into the service's warehouse until they end
    for process in reversed(processes):
        process.terminate()
    handed_on = 1
    for process in processes:
        while process.poll() is None:
            if len(asked) > handed_on:  # asked again while they drain
                handed_on = len(asked)
                process.terminate()
            time.sleep(_LOOK_S)
    if asked:
        return max(abs(process.wait()) for process in processes)
    return abs(ended) or 1


def _options(**values: object) -> list[str]:
    return [
        text
        for name, value in values.items()
        if value is not None
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
