"""The suites of clients in Go: each test is a process of its own, since one that panics ends all in its process."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.suites.broker import Broker, guarded_broker
from tests.suites.cache import Cache, run
from tests.suites.outcomes import Outcome, go_outcomes
from tests.suites.playing import change, output_of

__all__ = ["play_kadm", "play_kafka_go", "play_kgo", "play_sarama"]

_PROGRAMS: Final = Path(__file__).parent / "programs"

_KGO: Final = ("github.com/twmb/franz-go", "v1.22.3", "h1:RHe35s34pKefMLyL+ZYJ6mQVtfFZz4zHDHVkTyACur0=")
_KAFKA_GO: Final = ("github.com/segmentio/kafka-go", "v0.4.51", "h1:JgDPPG75tC1rWIS2Me6MwcvXJ6f49UQ4HjAOef71Hno=")
_KADM: Final = ("github.com/twmb/franz-go/pkg/kadm", "v1.20.0", "h1:Gx9q6UwA1QP0SXHutlT3iNpGC3dfm5DY5XDdUYrC9M8=")
_SARAMA: Final = ("github.com/IBM/sarama", "v1.61.1", "h1:I59MWPHQUWqJNdRpsDUcbeCriog8SxjQaPfHNWxidEg=")
_GUARDED: Final = 9093
#: These tests of kafka-go call a function that its tests never set, so that they end the process of those beside them.
_KAFKA_GO_BROKEN: Final = "^TestReaderConsumerGroup$/^(verify_offset_committed.*|consumer_group_commits_on_close)$"


def play_kgo(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play the tests of franz-go's client, with a tenth of their records."""
    folder = cache.go_module(*_KGO) / "pkg/kgo"
    settings = {"KGO_SEEDS": broker.address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000", "KGO_LOG_LEVEL": "none"}
    yield from _played(cache, folder, settings, log, pattern, limit_s=180)


def play_kafka_go(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play the tests of kafka-go's main package, whose sources are told the number of the broker, and a key.

    They take 1 for the number, 9092 for the port, and 9093 for another one where clients say who they are.
    """
    folder = cache.copy(cache.go_module(*_KAFKA_GO), "kafka-go")
    number = {r"(\bID: |\bID != |\[\]int(?:32)?\{)1(?=\}| \{)": rf"\g<1>{broker.node_id()}"}
    for name in ("conn", "createpartitions", "createtopics", "dialer"):
        change(folder / f"{name}_test.go", number)
    with guarded_broker(log.with_suffix(".guarded.log"), _GUARDED) as guarded:
        changes = {
            '"adminplain"': '"admin"',
            '"admin-secret"': f'"{guarded.key}"',
            # it would look for the topic behind the other port
            r"(func testWriterSasl.*\n.*\n)\tdefer deleteTopic.*\n": r"\1",
        }
        change(folder / "writer_test.go", changes)
        # the newest version for which its tests take branches of their own
        settings = {"KAFKA_VERSION": "3.7.0"}
        yield from _played(cache, folder, settings, log, pattern, limit_s=300, skipped=_KAFKA_GO_BROKEN)


def play_sarama(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our tests with sarama, whose own start brokers in containers."""
    yield from _ours(cache, cache.go_module(*_SARAMA), "sarama", broker, log, pattern)


def play_kadm(cache: Cache, broker: Broker, log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play our tests with the library of franz-go for programs that watch brokers."""
    yield from _ours(cache, cache.go_module(*_KADM), "kadm", broker, log, pattern)


def _ours(
    cache: Cache, module: Path, name: str, broker: Broker, log: Path, pattern: str
) -> Iterator[tuple[str, Outcome]]:
    """Play a program of ours within a copy of a module, whose go.sum pins what both need."""
    folder = cache.copy(module, name)
    for source in folder.glob("*_test.go"):
        source.unlink()
    shutil.copy(_PROGRAMS / f"{name}_test.go", folder)
    yield from _played(cache, folder, {"SUITE_BROKER": broker.address}, log, pattern, limit_s=300)


def _played(
    cache: Cache,
    folder: Path,
    settings: Mapping[str, str],
    log: Path,
    pattern: str,
    *,
    limit_s: float,
    skipped: str = "",
) -> Iterator[tuple[str, Outcome]]:
    go, env = cache.go(), {**cache.go_env(), **settings}
    program = cache.folder / "play" / f"{folder.name}.test"
    program.parent.mkdir(exist_ok=True)
    print("  the tests are built", flush=True)
    run([go, "test", "-c", "-o", str(program), "."], cwd=folder, env=env)
    for test in run([str(program), "-test.list", "^Test"], cwd=folder, env=env).split():
        if not re.search(pattern, test):
            continue
        # the program shows each test's lines as soon as they come; Go's own tool makes events of them
        command = [go, "tool", "test2json", "-t", str(program), "-test.v=test2json", f"-test.run=^{test}$"]
        command += [f"-test.timeout={limit_s:.0f}s", f"-test.skip={skipped}"]
        lines = output_of(command, cwd=folder, env=env, log=log, limit_s=limit_s + 30).splitlines()
        yield from (go_outcomes(lines) or {test: Outcome.FAIL}).items()
