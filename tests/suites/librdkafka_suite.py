"""The suite of librdkafka, of Debian's source; each test is a process, because a failed assertion ends its process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.suites.broker import Broker
from tests.suites.cache import Cache, run, tool
from tests.suites.outcomes import Outcome, librdkafka_outcome
from tests.suites.playing import output_of

__all__ = ["play_librdkafka"]

_VERSION: Final = "2.0.2-1"
_SUMS: Final = {
    "librdkafka_2.0.2-1.debian.tar.xz": "1a78b7ab2f5098806cfaabf12e80984a5513780c99b1ec37d7cd59535aaef421",
    "librdkafka_2.0.2.orig.tar.gz": "f321bcb1e015a34114c83cf1aa7b99ee260236aab096b85c003170c90a47ca9d",
}
_LIMIT_S: Final = 300
#: The table of tests in the runner's source, with the flags of each.
_TEST: Final = re.compile(r"^ +_TEST\((\d{4}_\w+),\s*([^,]*),", re.MULTILINE)


def play_librdkafka(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play the tests that need a broker, in the runner's quick mode."""
    source = _built(cache)
    folder = source / "tests"
    conf = cache.place("play") / "librdkafka.conf"
    conf.write_text(f"bootstrap.servers={broker.address}\nbroker.address.family=v4\ntest.timeout.multiplier=2\n")
    env = {**os.environ, "RDKAFKA_TEST_CONF": str(conf), "TEST_KAFKA_VERSION": "3.1.0"}
    env["LD_LIBRARY_PATH"] = f"{source / 'src'}:{source / 'src-cpp'}"
    for test, flags in _TEST.findall((folder / "test.c").read_text()):
        if "TEST_F_LOCAL" in flags or "TEST_F_MANUAL" in flags or not re.search(pattern, test):
            continue
        for part in _parts(folder, test) or [""]:
            # a part's name is followed by its line there
            own = {**env, "SUBTESTS": f"{part}:"} if part else env
            command = ["./test-runner", "-p1", "-Q", test]
            output = output_of(command, cwd=folder, env=own, log=log, limit_s=_LIMIT_S)
            yield f"{test}/{part}" if part else test, librdkafka_outcome(output, test)


def _parts(folder: Path, test: str) -> list[str]:
    """Return the parts of the test of admin calls; they are played one by one, since it ends with its first failure."""
    if test != "0081_admin":
        return []
    part = r"^(?:static void )?(do_test_(?:[A-Z]\w+|unclean_destroy))\("
    return re.findall(part, (folder / "0081-admin.c").read_text(), re.MULTILINE)


def _built(cache: Cache) -> Path:
    folder = cache.folder / f"librdkafka-{_VERSION}"
    if not (folder / "tests/test-runner").exists():
        for name in ("gcc", "g++", "make"):
            tool(name, f"it (Debian: apt-get install {name} zlib1g-dev libssl-dev)")
        cache.unpack(cache.debian_source("librdkafka", _VERSION, _SUMS) / next(iter(reversed(_SUMS))), folder)
        print("  librdkafka and its tests are built", flush=True)
        run(["./configure", "--disable-gssapi"], cwd=folder)
        run(["make", "libs"], cwd=folder)
        run(["make", "-C", "tests", "test-runner"], cwd=folder)
        for part in ("interceptor_test", "plugin_test"):
            run(["make", "-C", f"tests/{part}"], cwd=folder)
    return folder
