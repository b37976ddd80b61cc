"""`make suites`: play the test suites of Kafka's clients against a service, and compare with what is expected to fail.

Each suite is got from its registry (pinned by version and checksum), built, and played against a `deltamq serve` of its
own on a temporary warehouse. The exit code is 0 only if exactly those tests failed that `tests/suites/expected` lists,
each with its reason; it is 2 if a suite could not be had. All that is fetched, built and logged lies in `.suites`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.certificates import Authority
from tests.suites.apicurio_suite import play_apicurio
from tests.suites.broker import Broker, running_broker, tls_too
from tests.suites.cache import Cache, CannotRun
from tests.suites.debezium_suite import play_debezium
from tests.suites.go_suites import play_kadm, play_kafka_go, play_kgo, play_sarama
from tests.suites.java_suites import play_flink
from tests.suites.librdkafka_suite import play_librdkafka
from tests.suites.node_suites import play_kafkajs, play_platformatic
from tests.suites.outcomes import Comparison, Outcome, compare, reasons
from tests.suites.python_suites import play_aiokafka, play_kafka_python

_ROOT: Final = Path(__file__).parents[2]
_EXPECTED: Final = Path(__file__).parent / "expected"

Play = Callable[[Cache, Broker, Path, str], Iterator[tuple[str, Outcome]]]


class Suite(msgspec.Struct, frozen=True):
    """One suite, and the settings of the service that its tests expect of a broker."""

    play: Play
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The port that its tests take for a broker's; 0 for any.
    port: int = 0
    #: Whether its tests want TLS, too, of the same broker.
    has_tls: bool = False
    #: A variable of the environment without which it is played only if asked for by name, and then cannot run.
    needs: str = ""


SUITES: Final = {
    "kafka-python": Suite(play_kafka_python, {"service_kafka_session_min_ms": "1000"}),
    "aiokafka": Suite(play_aiokafka, {"service_kafka_partitions": "2"}, has_tls=True, needs="AIOKAFKA"),
    "kgo": Suite(play_kgo),
    "kafka-go": Suite(play_kafka_go, port=9092),
    "sarama": Suite(play_sarama),
    "kadm": Suite(play_kadm),
    "kafkajs": Suite(play_kafkajs),
    "platformatic": Suite(play_platformatic),
    "flink": Suite(play_flink),
    "apicurio": Suite(play_apicurio),
    "debezium": Suite(play_debezium),
    "librdkafka": Suite(play_librdkafka, {"service_kafka_partitions": "4"}),
}


def expected_failures(name: str) -> dict[str, str]:
    """Return the tests of a suite that are expected to fail, each with its reason."""
    return reasons((_EXPECTED / f"{name}.txt").read_text())


def main() -> int:
    """Play suites, print what they did, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make suites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="SUITE,...", help=f"some of {', '.join(SUITES)}")
    parser.add_argument("--tests", default="", metavar="PATTERN", help="tests of these names alone, for a first look")
    parser.add_argument("--cache", type=Path, default=_ROOT / ".suites", help="the folder of what is fetched and built")
    asked = parser.parse_args()
    names = [name for name in asked.only.split(",") if name] or list(_had_everywhere())
    if unknown := sorted(set(names) - SUITES.keys()):
        parser.error(f"there is no suite {unknown[0]}; there are {', '.join(SUITES)}")
    # so that the service and the tests end with the runner
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    statuses = [_status(name, Cache(asked.cache.resolve()), asked.tests) for name in names]
    return max(statuses)


def _had_everywhere() -> Iterator[str]:
    for name, suite in SUITES.items():
        if suite.needs and not os.environ.get(suite.needs):
            print(f"{name}: left out: no registry has its tests; ONLY={name} tells how to get them", flush=True)
        else:
            yield name


def _status(name: str, cache: Cache, pattern: str) -> int:
    print(f"{name}: begins", flush=True)
    begin = time.monotonic()
    try:
        outcomes = _outcomes(name, cache, pattern)
    except CannotRun as missing:
        print(f"{name}: cannot run: {missing}", flush=True)
        return 2
    expected = expected_failures(name)
    comparison = compare(outcomes, expected, is_whole=not pattern)
    _tell(name, comparison, expected, time.monotonic() - begin)
    if not outcomes:
        print(f"{name}: no test ran; see {cache.folder / 'logs' / name}.log", flush=True)
    return 0 if outcomes and comparison.is_as_expected else 1


def _outcomes(name: str, cache: Cache, pattern: str) -> dict[str, Outcome]:
    suite, logs = SUITES[name], cache.place("logs")
    log = logs / f"{name}.log"
    log.write_text("")
    outcomes: dict[str, Outcome] = {}
    settings, tls = dict(suite.settings), cache.fresh("tls", name) if suite.has_tls else None
    if tls is not None:
        settings |= tls_too(Authority(tls))
    with running_broker(logs / f"{name}.service.log", settings, suite.port, tls) as broker:
        for test, outcome in suite.play(cache, broker, log, pattern):
            # a test that passed fails if its cleanup does
            if outcomes.get(test) is not Outcome.FAIL:
                outcomes[test] = outcome
            print(f"  {len(outcomes):>4} {outcome:<4} {test}", flush=True)
    return outcomes


def _tell(name: str, found: Comparison, expected: Mapping[str, str], seconds: float) -> None:
    for test in found.failed:
        print(f"  failed, and should pass: {test}")
    for test in found.passed_unexpectedly:
        print(f"  passed, and is expected to fail ({expected[test]}): {test}")
    for test in found.missing:
        print(f"  is expected to fail, and did not run: {test}")
    print(
        f"{name}: {found.passed} passed, {len(found.failed_as_expected)} failed as expected,"
        f" {len(found.failed)} failed, {found.skipped} skipped, {seconds:.0f} s:"
        f" {'as expected' if found.is_as_expected else 'not as expected'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
