"""What `kafka-verifiable-producer` says becomes operations of the history, and the checker judges them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.history.checker.check import check
from tests.history.checker.ops import FOREVER, History, Outcome, Place, Read, Scan
from tests.history.checker.record import Recorder, now_ns, read_history
from tests.history.clients.kafka_java import Sayings

_PARTITIONS = ("orders@a", "orders@b")


class Program:
    """The lines of a program, and the history that they make."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recorder = Recorder(path, first_process=7)
        self.sayings = Sayings(self._recorder, "orders", _PARTITIONS)

    def says(self, name: str, **facts: object) -> None:
        self.sayings.take(json.dumps({"timestamp": 1_700_000_000_000, "name": name, **facts}) + "\n")

    def stored(self, value: str, offset: int, *, partition: int = 0, key: str | None = None) -> None:
        self.says("producer_send_success", key=key, value=value, topic="orders", partition=partition, offset=offset)

    def failed(self, value: str, kind: str, message: str) -> None:
        exception = f"class {kind}"
        self.says("producer_send_error", key=None, value=value, topic="orders", exception=exception, message=message)

    def ended(self, sent: int) -> None:
        self.says("tool_data", sent=sent, acked=sent, target_throughput=150, avg_throughput=149.5)
        self.sayings.end()

    def close(self) -> None:
        self._recorder.close()

    def history(self, *bodies: str) -> History:
        """Return the history, with a scan in which the first partition has these bodies."""
        self.close()
        reads = tuple(Read(offset, body, zlib.crc32(body.encode())) for offset, body in enumerate(bodies))
        scan = Scan(process=9, begun=now_ns(), ended=now_ns(), witness="files", partition=_PARTITIONS[0], reads=reads)
        return read_history([self._path]).add(scan)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    began = Program(tmp_path / "history.jsonl")
    began.sayings.take("Option --producer.config has been deprecated.\n")
    began.says("startup_complete")
    yield began
    began.close()


def test_values_that_were_stored_are_sends_that_began_with_the_program(program) -> None:
    program.stored("7.0", 0, key="0")
    between = now_ns()
    program.stored("7.1", 4, partition=1)
    program.ended(2)
    first, second = program.history().sends
    assert (first.ids, first.keys, first.crcs) == (("7.0",), ("0",), (zlib.crc32(b"7.0"),))
    assert (first.process, first.producer, first.number, second.number) == (7, "7", 0, 1)
    assert (first.placed, second.placed) == ((Place("orders@a", 0),), (Place("orders@b", 4),))
    assert first.begun == second.begun <= first.ended <= between <= second.ended
    assert program.sayings.answered == 2


def test_what_became_of_other_values_is_unknown_unless_they_were_never_sent(program) -> None:
    program.failed("7.0", "org.apache.kafka.common.errors.TimeoutException", "Expiring 3 record(s) for orders-0")
    program.failed("7.1", "java.lang.IllegalStateException", "Cannot perform operation after producer has been closed")
    program.failed("7.2", "org.apache.kafka.common.KafkaException", "Producer closed while send in progress")
    program.ended(4)
    sends = {send.ids[0]: send for send in program.history().sends}
    assert {id_: send.outcome for id_, send in sends.items()} == {
        "7.0": Outcome.INFO,
        "7.1": Outcome.FAIL,
        "7.2": Outcome.FAIL,
        "7.3": Outcome.INFO,
    }
    assert all(send.ended < FOREVER for send in sends.values())


def test_a_program_that_did_not_come_to_its_end_is_no_proof(program) -> None:
    program.stored("7.0", 0)
    with pytest.raises(AssertionError, match="did not come to its end"):
        program.sayings.end()


@pytest.mark.parametrize(
    ("told", "stored", "found"),
    [
        ("012", "012", set()),
        ("012", "01212", {"duplicate"}),
        ("021", "021", {"out-of-sequence"}),
        ("012", "021", {"inconsistent-offset", "duplicate"}),
        ("012", "01", {"unseen"}),
        ("012", "013", {"inconsistent-offset", "lost-write", "phantom"}),
    ],
)
def test_the_checker_judges_what_the_program_said(program, told, stored, found) -> None:
    for offset, number in enumerate(told):
        program.stored(f"7.{number}", offset)
    program.ended(3)
    assert check(program.history(*(f"7.{number}" for number in stored))).findings.names == found
