"""Programs of ours for what is built on Kafka's client in Java; its jars are Maven Central's, pinned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deltamq.jobs.setup.jars import JarSet, JarsUnusable, fetch_jars, pinned_jars
from deltamq.jobs.setup.java import JavaMissing, find_java
from tests.suites.broker import Broker
from tests.suites.cache import PINS, Cache, CannotRun, run
from tests.suites.outcomes import Outcome, printed_outcomes
from tests.suites.playing import output_of

__all__ = ["fetched_jars", "jars", "java", "play_flink"]

_PROGRAMS: Final = Path(__file__).parent / "programs"
#: What Flink's serializers look into, from Java 17 on.
_OPENED: Final = [f"--add-opens=java.base/java.{one}=ALL-UNNAMED" for one in ("lang", "util", "util.concurrent")]
_LIMIT_S: Final = 900


def jars(pin: str, *coordinates: str, without: tuple[str, ...] = ()) -> JarSet:
    """Return jars of which a file of pins has the checksums."""
    return JarSet(pins=PINS / f"{pin}.sha256", coordinates=coordinates, excluded=without)


_FLINK: Final = jars(
    "flink",
    "org.apache.flink:flink-clients:2.2.1",
    "org.apache.flink:flink-connector-base:2.2.1",
    "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
)


def java() -> Path:
    """Return the path of Java."""
    try:
        return find_java().path
    except JavaMissing as missing:
        raise CannotRun(str(missing)) from None


def fetched_jars(cache: Cache, wanted: JarSet) -> list[Path]:
    """Return the paths of jars, fetched if need be."""
    folder = cache.place("jars", wanted.pins.stem)
    try:
        fetch_jars(folder, wanted)
    except JarsUnusable as error:
        raise CannotRun(str(error)) from None
    return [folder / name for name in pinned_jars(wanted)]


def play_flink(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our jobs with Flink's Kafka source and sink, each in a cluster of its own; all, whatever the pattern."""
    path = ":".join(map(str, fetched_jars(cache, _FLINK)))
    classes = cache.fresh("play", "flink")
    # the jobs' classes must be files: a cluster loads them itself
    compiler = [str(java()), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    run([*compiler, "-cp", path, "-d", str(classes), str(_PROGRAMS / "Flink.java")])
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g", *_OPENED, "-cp", f"{classes}:{path}"]
    command = [str(java()), *options, "Flink", broker.address]
    output = output_of(command, cwd=classes, env=os.environ, log=log, limit_s=_LIMIT_S)
    yield from printed_outcomes(output, pattern)
