"""The commands' common options for the warehouse, and their error messages."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from deltamq.jobs.setup.jars import JarsUnusable
from deltamq.jobs.setup.java import JavaMissing
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import DeltaMQError, NotFound, Refused
from deltamq.mq.request_values import zoned_time
from deltamq.tables.config import Config, load
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_options(*options: Option) -> Option:
    """Return a decorator that adds options to a command; its help shows them in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_warehouse_options: Final = with_options(
    click.option("--warehouse", metavar="DIR", help="Folder or URL of the warehouse."),
    click.option(
        "--url", metavar="URL", help="Instead: the warehouse that this service serves (token: DELTAMQ_CLIENT_TOKEN)."
    ),
    click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local)."),
)


def with_warehouse(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the warehouse; the command gets `warehouse` and `profile`."""

    @wraps(command)
    def call(*arguments: Any, url: str | None, warehouse: str | None, **options: Any) -> Any:
        if url is not None:
            if warehouse is not None:
                raise click.UsageError("--url and --warehouse both name the warehouse: give one of them")
            with errors_shown():
                warehouse = _served(url)
        return command(*arguments, warehouse=warehouse, **options)

    return _warehouse_options(call)


def _served(url: str) -> str:
    from deltamq.mq.client.admin.admin import Admin
    from deltamq.mq.client.http.calls import ClientAccess
    from deltamq.mq.client.http.credentials import TOKEN_ENV
    from deltamq.mq.client.http.endpoint import CA_ENV, CERT_ENV, KEY_ENV
    from deltamq.mq.client.http.retries import Patience

    token, ca, cert, key = (os.environ.get(name) for name in (TOKEN_ENV, CA_ENV, CERT_ENV, KEY_ENV))
    access = ClientAccess(token=token, ca=ca, cert=cert, key=key)
    with Admin(url, patience=Patience(retries=3, first_wait_ms=100.0, timeout_s=20.0), **access) as admin:
        served = admin.cluster().warehouse
    if "://" not in served and not Path(served).is_dir():
        detail = f"{url} serves {served}, which is no folder of this machine: run this where the warehouse can be read"
        raise NotFound(detail, code="warehouse_not_found", field="url")
    return served


def conf_of(
    profile: str | None,
    warehouse: str | None,
    *,
    engine: str | None = None,
    master: str | None = None,
    metrics_port: int | None = None,
) -> Config:
    """Return the settings with the command line's changes; the path of a folder is made absolute."""
    flags = {"warehouse.uri": warehouse, "jobs.engine": engine, "jobs.master": master}
    conf = load(profile, {**flags, "jobs.metrics_port": metrics_port})
    return replace(conf, warehouse=replace(conf.warehouse, uri=absolute(conf.warehouse.uri)))


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """End the command with one line for an error with a message for people."""
    try:
        yield
    except (DeltaMQError, JavaMissing, JarsUnusable, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def session(conf: Config) -> Iterator[SparkSession]:
    """Yield a Spark session that ends with the command."""
    from deltamq.jobs.spark.session import (
        spark_session,
    )  # imported here: Spark's import takes longer than a list should

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
    for item in shown:
        click.echo(text.format_map(item))


def moment_of(text: str, option: str) -> datetime:
    """Return the time that an option gives; raise `Refused` if it is not a time, or has no zone."""
    moment = zoned_time(text)
    if moment is None:
        raise Refused(f"{option}: give a time with its zone, such as 2026-01-31T12:00:00Z, not {text!r}", field=option)
    return moment


def warehouse_uri(profile: str | None, warehouse: str | None) -> str:
    """Return the warehouse of the command line or of the profile; the path of a folder is made absolute."""
    return absolute(load(profile, {"warehouse.uri": warehouse}).warehouse.uri)


@contextlib.contextmanager
def opened(uri: str) -> Iterator[Warehouse]:
    """Yield an existing warehouse; end the command with one line if it does not exist."""
    if "://" not in uri and not Path(uri).is_dir():
        raise click.ClickException(f"there is no warehouse at {uri}: name it with --warehouse")
    warehouse = Warehouse.open(uri, settings=LogSettings(), create=False)
    try:
        yield warehouse
    finally:
        warehouse.close()
