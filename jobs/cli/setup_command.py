"""`deltamq setup`: Java and the pinned jars, which Spark needs beside its packages.

Without it, the first session fetches the jars.
"""

from __future__ import annotations

import click

from deltamq.jobs.cli.options import errors_shown
from deltamq.jobs.setup.jars import AVRO, DELTA, S3A, fetch_jars, jars_folder
from deltamq.jobs.setup.java import find_java


@click.command(name="setup")
@click.option("--s3", is_flag=True, help="Also the jars for a warehouse on S3.")
@click.option("--jars", "only_paths", is_flag=True, help="Print only the paths of the jars, for spark-submit --jars.")
@click.option("--quiet", is_flag=True, help="Print only changes.")
def setup_command(s3: bool, only_paths: bool, quiet: bool) -> None:
    """Check Java, and fetch the missing jars of Spark by their hashes.

    The jars lie in DELTAMQ_JARS, else in .jars of a checkout, else in the user's cache.
    """
    with errors_shown():
        java = find_java()
        jars = [
            path for jar_set in (DELTA, AVRO, *((S3A,) if s3 else ())) for path in fetch_jars(jars_folder(), jar_set)
        ]
    if only_paths:
        click.echo(",".join(map(str, jars)))
    elif not quiet:
        click.echo(f"ready: Java {java.version} at {java.path}, {len(jars)} jars in {jars_folder()}")
