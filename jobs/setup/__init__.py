"""`make setup`, with the standard library alone: packages, Java, jars."""

from __future__ import annotations

from deltamq.jobs.setup.jars import (
    AVRO,
    DELTA,
    PROJECT_FOLDER,
    S3A,
    JarSet,
    JarsUnusable,
    jars_folder,
    pinned_jars,
    wrong_jars,
)
from deltamq.jobs.setup.java import JavaMissing, find_java, java_path

__all__ = [
    "AVRO",
    "DELTA",
    "PROJECT_FOLDER",
    "S3A",
    "JarSet",
    "JarsUnusable",
    "JavaMissing",
    "find_java",
    "jars_folder",
    "java_path",
    "pinned_jars",
    "wrong_jars",
]
