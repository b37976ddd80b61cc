"""How Spark reaches a warehouse on S3: Hadoop's file system S3A, with the same settings as our own store.

The service, the jobs and `format("mq")` read the usual environment of tools for S3 (AWS_ENDPOINT_URL, AWS_REGION,
AWS_ALLOW_HTTP, AWS_VIRTUAL_HOSTED_STYLE_REQUEST, AWS_SKIP_SIGNATURE, and the credentials). Spark takes the credentials
from there by itself; the others are translated here, so that one environment is enough. S3A also handles the scheme
`s3`, so a table has the same address everywhere.

State tables are committed through Delta's `S3SingleDriverLogStore` (SPEC RELY-3): Delta 4.4 has no log store that
puts if absent on S3, so two Spark applications could each write version n. The lock of the job excludes that: a lease
in a file that was put if absent, so that one driver at a time merges into a state table. Message tables do not depend
on it: `tables` commits them with conditional puts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("s3", "s3a")
_FILE_SYSTEM: Final = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    # set explicitly, though it is Delta's default: SPEC RELY-3 depends on it, so an upgrade must not change it
    "spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore",
    "spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore",
}
_S3A: Final = "spark.hadoop.fs.s3a."


def is_s3(warehouse: str) -> bool:
    """Return whether a warehouse is on S3, or on a server with its protocol."""
    return urlsplit(warehouse).scheme in _SCHEMES


def s3a_settings(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the Spark settings for the environment's S3 server; credentials are not among them."""
    return {**_FILE_SYSTEM, **{_S3A + key: value for key, value in _server(environ)}}


def _server(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    endpoint = _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    region = _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")
    if endpoint:
        yield "endpoint", endpoint
        yield "connection.ssl.enabled", not endpoint.startswith("http://")
        # buckets in host names need a name service that few servers besides Amazon's have
        yield "path.style.access", not _is_set(environ, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if region or endpoint:
        yield "endpoint.region", region or "us-east-1"
    if _is_set(environ, "AWS_SKIP_SIGNATURE"):
        yield "aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"


def task_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the Spark settings that give the Python workers of other machines the same environment.

    Where Spark shows settings, it redacts names like secret or token. Machines with a role of their own need
    none of this: without AWS_ variables here, nothing is passed on.
    """
    return {f"spark.executorEnv.{name}": value for name, value in environ.items() if name.startswith("AWS_")}


def _first(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in ("1", "true", "yes", "on")
