"""The jars that Spark does not ship, fetched once into a folder of their own and checked by sha256.

Spark's Ivy resolves them, with two precautions. Ivy looks into `~/.m2` first and fails if a pom is there without its
jar, so the JVM that resolves gets an empty home folder. And everything that Spark itself ships is excluded, so that
nothing else is fetched: Delta needs only delta-spark and delta-storage.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from deltamq.jobs.setup.java import find_java

PROJECT_FOLDER = Path(__file__).resolve().parents[2]
FETCH_TIMEOUT_S = 900
LOG_LINES_SHOWN = 15
SIGNS_OF_FAILURE = ("Server access error", "NOT FOUND", "UNRESOLVED")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class JarsUnusable(Exception):
    """The jars are missing, damaged, or could not be fetched; the message names the problem and the remedy."""


class JarSet(msgspec.Struct, frozen=True, kw_only=True):
    """Jars that are fetched and checked together."""

    #: The file with the sha256 and the name of each jar.
    pins: Path
    #: The coordinates that Ivy fetches ...
    coordinates: tuple[str, ...]
    #: ... and the ones that it leaves out: shipped with Spark, or not needed.
    excluded: tuple[str, ...]


DELTA = JarSet(
    pins=Path(__file__).with_name("jars.sha256"),
    coordinates=("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0"),
    excluded=(
        "org.*:*",
        "com.*:*",
        "javax.*:*",
        "commons-*:*",
        "io.airlift:*",
        "io.unitycatalog:*",
        "io.delta:delta-kernel*",
    ),
)
#: For `from_avro`, which Spark documents as built in, and does not ship. Sessions without these jars lack only that.
AVRO = JarSet(
    pins=Path(__file__).with_name("avro.sha256"),
    coordinates=("org.apache.spark:spark-avro_2.13:4.2.0",),
    excluded=("org.apache.avro:*", "org.scala-lang*:*", "org.slf4j:*", "org.tukaani:*", "com.*:*"),
)
#: Hadoop's file system for S3. Its declared dependency is one jar of 686 MB with the whole SDK; these parts of the same
#: version, 13 MB, are enough.
S3A = JarSet(
    pins=Path(__file__).with_name("s3a.sha256"),
    coordinates=(
        "org.apache.hadoop:hadoop-aws:3.5.0",
        "software.amazon.awssdk:s3:2.35.4",
        "software.amazon.awssdk:s3-transfer-manager:2.35.4",
        "software.amazon.awssdk:sts:2.35.4",
    ),
    excluded=(
        "software.amazon.awssdk:bundle",
        "org.slf4j:*",
        "io.netty:*",
        "commons-*:*",
        "org.apache.httpcomponents:*",
        "org.wildfly.openssl:*",
    ),
)


def jars_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the jars: DELTAMQ_JARS, else `.jars` of a checkout, else a folder in the user's cache."""
    if named := environ.get("DELTAMQ_JARS"):
        return Path(named)
    if (PROJECT_FOLDER / "pyproject.toml").is_file():
        return PROJECT_FOLDER / ".jars"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltamq" / "jars"


def pinned_jars(jars: JarSet = DELTA) -> dict[str, str]:
    """Return the sha256 of every required jar by file name."""
    lines = jars.pins.read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def wrong_jars(folder: Path, jars: JarSet = DELTA) -> dict[str, str]:
    """Return the problem of each required jar that is missing or differs, by file name."""
    wrong = {}
    for name, pinned in pinned_jars(jars).items():
        path = folder / name
        if not path.is_file():
            wrong[name] = "is missing"
        elif (digest := _sha256(path)) != pinned:
            wrong[name] = f"has sha256 {digest}, pinned is {pinned}"
    return wrong


def fetch_jars(folder: Path, jars: JarSet = DELTA, *, say: Callable[[str], None] = _to_stderr) -> list[Path]:
    """Return the paths of the required jars; pyspark's Ivy fetches missing and wrong ones.

    Parameters
    ----------
    say
        Gets a line before jars are fetched, which needs the network and takes seconds.

    Raises
    ------
    JarsUnusable
        The jars cannot be fetched, or do not match their pins.
    JavaMissing
        Ivy needs Java, and there is none.
    """
    wrong = wrong_jars(folder, jars)
    if wrong:
        name, what = next(iter(wrong.items()))
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        say(f"{name} {what}{others}: fetching into {folder}")
        java = find_java().path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as work:
                _install(_resolve(Path(work), jars, java), folder, jars)
        except OSError as error:
            raise JarsUnusable(f"{folder} cannot be written ({error}): set DELTAMQ_JARS to another folder") from error
    return [folder / name for name in pinned_jars(jars)]


def _resolve(work: Path, jars: JarSet, java: Path) -> Path:
    """Run Spark's Ivy with its cache and its home inside `work`; return the folder of the retrieved jars."""
    home, ivy, script = work / "home", work / "ivy", work / "nothing.py"
    home.mkdir()
    script.write_text("", encoding="ascii")
    spark_home = _spark_home()
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--master", "local[1]"),
        *("--packages", ",".join(jars.coordinates)),
        *("--exclude-packages", ",".join(jars.excluded)),
        *("--conf", f"spark.jars.ivy={ivy}"),
        *("--driver-java-options", f'"-Duser.home={home}"'),
        str(script),
    ]
    try:
        done = subprocess.run(
            command,
            env=_environment(java, spark_home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsUnusable(f"Spark's Ivy did not finish: {error}") from error
    if done.returncode != 0:
        raise JarsUnusable(_why(done.stdout, jars))
    return ivy / "jars"


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise JarsUnusable(f"{sys.executable} has no pyspark: pip install 'deltamq[spark]'")
    return Path(spec.submodule_search_locations[0])


def _environment(java: Path, spark_home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **kept,
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": _java_home(java),
    }


def _java_home(java: Path) -> str:
    return str(java.resolve().parent.parent)


def _why(log: str, jars: JarSet) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    failures = [line for line in lines if any(sign in line for sign in SIGNS_OF_FAILURE)]
    reported = list(dict.fromkeys(line.strip() for line in failures or lines))
    shown = "\n    ".join(reported[-LOG_LINES_SHOWN:])
    return (
        f"Spark's Ivy could not fetch {', '.join(jars.coordinates)}:\n    {shown}\n"
        "  Check the network. Behind a proxy: "
        "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...'. "
        "With a mirror: DEFAULT_ARTIFACT_REPOSITORY=<its address>. "
        f"Without a network: put the files of {jars.pins} into {jars_folder()}, or set DELTAMQ_JARS to their folder."
    )


def _install(fetched: Path, folder: Path, jars: JarSet) -> None:
    """Check the required jars in Ivy's folder, where names start with the organisation, and move them."""
    for name, pinned in pinned_jars(jars).items():
        fetched_jars = sorted(fetched.glob(f"*_{name}"))
        if not fetched_jars:
            raise JarsUnusable(f"Spark's Ivy retrieved no {name}")
        digest = _sha256(fetched_jars[0])
        if digest != pinned:
            raise JarsUnusable(f"{name} was fetched with sha256 {digest}, pinned is {pinned}: not installed")
        os.replace(fetched_jars[0], folder / name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
