"""Sends the project's own code to the executors, which have its dependencies but may not have the project.

Executors get a zip of the packages that this process runs, so both ends have the same version whatever is installed
there. The dependencies (pyarrow, numpy, msgspec, obstore, protobuf, jsonschema-rs) must be installed on every machine,
for the same Python.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import deltamq
from deltamq.jobs.tasks.connect import is_connect

_PACKAGES: Final = ("mq", "tables", "jobs")
_NAME: Final = "deltamq-code.zip"
_NOT_SHIPPED: Final = ("__pycache__",)


def ship(spark: SparkSession) -> None:
    """Give a session's tasks the code that this process runs; do nothing if it was itself loaded from a zip."""
    if not _folder().is_dir():
        return
    folder = Path(tempfile.mkdtemp(prefix="deltamq-"))
    # executors that start later, in place of lost ones, fetch it from the driver, so it is kept as long as the process
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    packed = str(pack(folder / _NAME))
    if is_connect(spark):
        spark.addArtifacts(packed, pyfile=True)
    else:
        spark.sparkContext.addPyFile(packed)


def pack(target: Path) -> Path:
    """Write the packages into a zip that Python can import from; the same code gives the same bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        files = [path for package in _PACKAGES for path in (_folder() / package).rglob("*")]
        for path in (_folder() / "__init__.py", *sorted(files)):
            if path.is_file() and not set(_NOT_SHIPPED) & set(path.parts):
                entry = zipfile.ZipInfo(f"deltamq/{path.relative_to(_folder())}")
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def _folder() -> Path:
    return Path(str(deltamq.__file__)).parent
