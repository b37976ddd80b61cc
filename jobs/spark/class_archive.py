"""The archive of Spark's classes, parsed and verified: with it, Spark starts and answers its first queries sooner.

    make classes:  a short application --> the classes that it loaded --> .jars/spark-classes-KEY.jsa
    a session:     is there one for this Java and this Spark? --> the JVM maps it

The key tells Java and Spark's jars. The JVM compares more (the class path, the size of pointers), and starts without
the archive if anything differs, so nothing depends on it but time.
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
    """Return the options by which the JVM uses the archive; none if there is none for this Java and this Spark."""
    path = archive_path(java)
    return (*QUIET, f"-XX:SharedArchiveFile={path}") if path.is_file() else ()


def archive_path(java: Path) -> Path:
    """Return where the archive for this Java and this Spark lies, or would lie."""
    # imported here: a platform's pyspark need not have it, and starts no JVM of ours
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
        found = file.stat()
        digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
