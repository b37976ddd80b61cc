"""Programs of Kafka's jars, run with the Java that Spark has.

What Kafka's jars need of others (Jackson, SLF4J, compression) is among Spark's jars, so little has to be fetched:
Kafka's own, once, into a folder beside the project's other jars. The pins hold name and sha256 of each.
"""

from __future__ import annotations

import fcntl
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark
import pytest

from deltamq.jobs.setup.jars import JarSet, JarsUnusable, fetch_jars, jars_folder
from deltamq.jobs.setup.java import JavaMissing, find_java

__all__ = ["BROKER", "CONNECT", "DEBEZIUM", "GENERATIONS", "REGISTRY", "SPARK_KAFKA", "Java", "JavaProgram", "fetched"]

_PINS: Final = Path(__file__).parent / "pins"
_TIMEOUT_S: Final = 120
#: Organisations whose jars Spark has, or that are not needed.
_SPARKS: Final = ("org.slf4j", "org.lz4", "at.yawk.lz4", "org.xerial.snappy", "com.github.luben", "org.scala-lang")
_UNUSED: Final = (
    *("com.fasterxml.*", "com.typesafe.*", "org.apache.zookeeper", "io.dropwizard.*", "commons-*"),
    *("com.github.ben-manes.*", "org.glassfish.*", "org.eclipse.*", "jakarta.*", "javax.*", "org.rocksdb", "ch.qos.*"),
    *("org.apache.logging.*", "com.yammer.*", "org.bitbucket.*", "org.pcollections", "org.javassist", "org.ow2.*"),
    *("io.opentelemetry.*", "org.apache.maven", "org.reflections", "org.checkerframework", "org.apache.hadoop"),
    *("com.google.code.*", "com.google.errorprone", "com.google.guava", "com.google.protobuf"),
)


def _jars(pins: str, *coordinates: str, without: Sequence[str] = (*_SPARKS, *_UNUSED)) -> JarSet:
    return JarSet(
        pins=_PINS / f"{pins}.sha256",
        coordinates=coordinates,
        excluded=tuple(f"{one}:*" for one in without),
    )


def _kafka(generation: str, version: str, *others: str) -> JarSet:
    names = ("kafka-clients", "kafka-tools", *others)
    return _jars(f"kafka-{generation}", *(f"org.apache.kafka:{name}:{version}" for name in names))


#: Kafka's clients and tools, by generation.
GENERATIONS: Final = {
    "2.8": _kafka("2.8", "2.8.2"),
    "3.9": _kafka("3.9", "3.9.2"),
    "4.3": _kafka("4.3", "4.3.1", "kafka-storage", "kafka-streams"),
}
SPARK_KAFKA: Final = _jars("spark", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}")
#: Debezium for PostgreSQL; what it shares with a worker of Connect is among the worker's.
DEBEZIUM: Final = _jars(
    "debezium",
    "io.debezium:debezium-connector-postgres:3.6.1.Final",
    without=(
        *("org.apache.kafka", "com.fasterxml.jackson.core", "at.yawk.lz4", "jakarta.ws.rs"),
        *("com.google.protobuf", "org.slf4j"),
    ),
)
#: Confluent's client of a schema registry, and Flink's serializers that use it. Confluent's own jars are not on Maven
#: Central; Flink's has the classes of their client 7.5.3, in packages of its own.
REGISTRY: Final = _jars(
    "registry",
    "org.apache.flink:flink-sql-avro-confluent-registry:2.0.0",
    "org.apache.flink:flink-core:2.0.0",
    without=("com.*", "commons-*", "org.apache.commons", "org.objenesis", "org.slf4j", "org.snakeyaml"),
)
CONNECT: Final = _jars(
    "connect",
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-file:4.3.1",
    "org.apache.kafka:connect-mirror:4.3.1",
    without=("org.slf4j", "com.github.luben", "org.xerial.snappy", "org.lz4"),
)
#: Kafka itself, a broker that is its own controller.
BROKER: Final = _jars(
    "broker",
    "org.apache.kafka:kafka_2.13:4.3.1",
    without=(
        *("org.slf4j", "org.lz4", "at.yawk.lz4", "org.xerial.snappy", "com.github.luben", "org.scala-lang"),
        *("org.glassfish.*", "org.eclipse.*", "jakarta.*", "javax.*", "io.swagger.*", "org.javassist"),
        *("org.apache.maven", "com.fasterxml.jackson.core", "org.reflections", "io.github.classgraph"),
    ),
)


def fetched(jars: JarSet) -> list[Path]:
    """Return the paths of jars, fetched if need be; skip the test if there is no Java or no network."""
    folder = jars_folder() / "kafka" / jars.pins.stem
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return fetch_jars(folder, jars)
    except (JarsUnusable, JavaMissing) as error:
        pytest.skip(f"Kafka's jars are not available: {error}")


class Java:
    """Runs programs with some jars, and with those of Spark behind them."""

    def __init__(self, *jars: JarSet, with_sparks: bool = True, heap: str = "256m") -> None:
        spark = Path(pyspark.__file__).parent / "jars"
        needed = ("jackson", "slf4j-api", "scala-library", "snappy", "lz4", "zstd", "commons-logging", "avro-1")
        behind = [path for path in sorted(spark.glob("*.jar")) if path.name.startswith(needed)] if with_sparks else []
        ours = [path for some in jars for path in fetched(some)]
        self.classpath = ":".join(map(str, [*ours, *behind]))
        self._java = find_java().path
        self._heap = heap

    def compile(self, source: Path, classes: Path) -> None:
        """Compile a source file into a folder, whose classes are then among the others."""
        compiler = [str(self._java), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", self.classpath]
        done = subprocess.run(
            [*compiler, "-d", str(classes), str(source)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        self.classpath = f"{classes}:{self.classpath}"

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command of a class, or of a source file, which Java compiles first."""
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{self._heap}", "-cp", self.classpath]
        return [str(self._java), *options, program, *arguments]

    def run(self, program: str, *arguments: str) -> list[str]:
        """Run a program to its end, and return the lines that it wrote."""
        done = subprocess.run(
            self.command(program, *arguments), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, (
            f"{program} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        return done.stdout.splitlines()

    def start(self, program: str, *arguments: str) -> JavaProgram:
        """Start a program that runs until it is stopped."""
        return JavaProgram(self.command(program, *arguments))


class JavaProgram:
    """A running program; its output goes to a file, which is read at any time."""

    def __init__(self, command: list[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed in stop()
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """Return the lines that it wrote so far."""
        size = self._output.seek(0, 2)
        self._output.seek(0)
        return self._output.read(size).decode(errors="replace").splitlines()

    def wait(self, timeout_s: float = _TIMEOUT_S) -> list[str]:
        """Wait until it ends by itself with status 0, and return its lines."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.lines()[-20:]}") from None
        assert status == 0, f"it ended with {status}: {self.lines()[-20:]}"
        return self.lines()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it, if it still runs."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()
