"""Spark's masters: the kind of an address, and whether a server answers there.

Spark tries a master that does not answer for a minute, and then reports that its context is stopped; a Connect client
tries for minutes. So the address is tried here first.

    local, local[*], local[2]            this process
    spark://host:7077[,host:7077]        a standalone cluster
    yarn, k8s://https://host             other kinds, which are not tried
    sc://host:15002                      Spark Connect
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from deltamq.jobs.setup.java import JavaMissing, java_path
from deltamq.mq.errors import Refused, Unavailable

_ANSWER_S: Final = 5.0
_MASTER_PORT: Final = 7077
_CONNECT_PORT: Final = 15002


def is_local(master: str) -> bool:
    """Return whether Spark's tasks run in this process's JVM."""
    return master == "local" or master.startswith("local[")


def is_remote(master: str) -> bool:
    """Return whether an address is of a Spark Connect server."""
    return master.startswith("sc://")


def is_elsewhere(master: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether another process has the session, so that no JVM is started on this machine."""
    ours = ("SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT")
    return is_remote(master) or any(environ.get(name) for name in ours)


def java_missing(master: str) -> JavaMissing | None:
    """Return the error if the session's JVM is to be started on this machine and there is no Java; it is not raised."""
    if is_elsewhere(master):
        return None
    try:
        java_path()
    except JavaMissing as error:
        return error
    return None


def check_master(master: str) -> None:
    """Raise unless a standalone master accepts connections; other kinds are not tried.

    Raises
    ------
    Refused
        The address is invalid.
    Unavailable
        None of the named masters answers.
    """
    if master.startswith("spark://"):
        _check(f"Spark master {master}", _addresses(master.removeprefix("spark://"), _MASTER_PORT))


def check_remote(remote: str) -> None:
    """Raise `Unavailable` unless a Spark Connect server accepts connections."""
    if remote.startswith("sc://"):
        _check(f"Spark Connect at {remote.partition(';')[0]}", _addresses(urlsplit(remote).netloc, _CONNECT_PORT))


def _addresses(text: str, port: int) -> Iterator[tuple[str, int]]:
    for address in text.split(","):
        try:
            parts = urlsplit(f"//{address}")
            yield parts.hostname or "localhost", parts.port or port
        except ValueError as error:
            raise Refused(f"{address!r} is not host:port", code="invalid_master", field="master") from error


def _check(what: str, addresses: Iterator[tuple[str, int]]) -> None:
    failures = []
    for host, port in addresses:
        try:
            with socket.create_connection((host, port), timeout=_ANSWER_S):
                return
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
    raise Unavailable(
        f"{what} does not answer ({'; '.join(failures)}): start it, or correct the address",
        code="spark_unreachable",
    )
