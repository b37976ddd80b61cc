"""What the commands share: the options for the warehouse, and how errors are shown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from jobs.setup import JarsUnusable, JavaMissing
from jobs.tasks import absolute
from mq.errors import DeltaMQError, Refused
from mq.request_values import zoned_time
from tables.config import Config, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["conf_of", "errors_told", "moment_of", "session", "show", "with_options", "with_place"]

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_options(*options: Option) -> Option:
    """Return a decorator that adds options to a command; its help shows them in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


with_place: Final = with_options(
    click.option("--warehouse", metavar="DIR", help="Folder or URL of the warehouse."),
    click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local)."),
)


def conf_of(
    profile: str | None, warehouse: str | None, *, engine: str | None = None, master: str | None = None
) -> Config:
    """Return the settings with those of the command line; the path of a folder is made absolute."""
    conf = load(profile, {"warehouse.uri": warehouse, "jobs.engine": engine, "jobs.master": master})
    return replace(conf, warehouse=replace(conf.warehouse, uri=absolute(conf.warehouse.uri)))


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """End the command with one line for an error with a message for people."""
    try:
        yield
    except (DeltaMQError, JavaMissing, JarsUnusable, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def session(conf: Config) -> Iterator[SparkSession]:
    """Yield a Spark session that ends with the command."""
    from jobs.sql import spark_session  # imported here: Spark's import takes longer than a list should

    spark = spark_session("deltamq-export", warehouse=conf.warehouse.uri)
    try:
        yield spark
    finally:
        spark.stop()


def show(shown: Sequence[Mapping[str, Any]], text: str, *, as_json: bool) -> None:
    """Print the items: each as `text` with its fields, or all as one JSON document."""
    if as_json:
        click.echo(json.dumps(shown, indent=2))
        return
    for one in shown:
        click.echo(text.format_map(one))


def moment_of(text: str, option: str) -> datetime:
    """Return the time that an option gives; raise `Refused` if it is not one, or has no zone."""
    moment = zoned_time(text)
    if moment is None:
        raise Refused(f"{option}: give a time with its zone, such as 2026-01-31T12:00:00Z, not {text!r}", field=option)
    return moment
