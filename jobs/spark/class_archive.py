"""The archive of Spark's classes, parsed and verified: with it, Spark starts and answers its first queries sooner.

    make classes:  a short application --> the classes that it loaded --> .jars/spark-classes-KEY.jsa
    a session:     an archive for this Java and this Spark --> the JVM maps it

The key depends on Java and Spark's jars. The JVM compares more (the class path, the size of pointers), and starts
without the archive if anything differs, so only the time depends on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deltamq.jobs.setup.jars import jars_folder

_NAME: Final = "spark-classes-{key}.jsa"
#: Without these, the JVM would print a warning about an archive that does not fit.
QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def archive_options(java: Path) -> tuple[str, ...]:
    """Return the options by which the JVM uses the archive; none without an archive for this Java and this Spark."""
    path = archive_path(java)
    return (*QUIET, f"-XX:SharedArchiveFile={path}") if path.is_file() else ()


def archive_path(java: Path) -> Path:
    """Return the path of the archive for this Java and this Spark, which may not exist."""
    # imported here: a platform's pyspark may lack it, and starts no JVM with the archive
    from pyspark.find_spark_home import _find_spark_home

    jars = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    return jars_folder() / _NAME.format(key=_key([java.resolve(), *jars]))


def remove_others(kept: Path) -> None:
    """Remove the archives for other Javas and Sparks."""
    for path in kept.parent.glob(_NAME.format(key="*")):
        if path != kept:
            path.unlink(missing_ok=True)


def _key(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
