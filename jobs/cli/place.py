"""What the commands have in common: where the warehouse is, and how errors are told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.setup.jars import JarsUnusable
from jobs.setup.java import JavaMissing
from mq.errors import DeltaMQError, Refused
from tables.config import Config, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["conf_of", "errors_told", "moment_of", "session", "with_place"]

_warehouse = click.option("--warehouse", metavar="DIR", help="Folder or URL of the warehouse.")
_profile = click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local).")


def with_place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --warehouse and --profile."""
    return _warehouse(_profile(command))


def conf_of(
    profile: str | None, warehouse: str | None, *, engine: str | None = None, master: str | None = None
) -> Config:
    """Return the settings with what the command line says; a folder's path is made whole."""
    flags = {"warehouse.uri": warehouse, "jobs.engine": engine, "jobs.master": master}
    conf = load(profile, flags)
    uri = conf.warehouse.uri
    return conf if "://" in uri else load(profile, {**flags, "warehouse.uri": str(Path(uri).resolve())})


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """End the command with one line for an error that is meant for people."""
    try:
        yield
    except (DeltaMQError, JavaMissing, JarsUnusable, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def session(conf: Config) -> Iterator[SparkSession]:
    """Give a session of Spark that ends with the command."""
    from jobs.sql import spark_session  # importing Spark takes longer than a list should

    spark = spark_session("deltamq-export", warehouse=conf.warehouse.uri)
    try:
        yield spark
    finally:
        spark.stop()


def moment_of(text: str, option: str) -> datetime:
    """Return the time that an option says; `Refused` if it is none, or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Refused(f"{option}: a time with its zone, such as 2026-01-31T12:00:00Z, not {text!r}", field=option)
    return moment
