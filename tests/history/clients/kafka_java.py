"""`kafka-verifiable-producer` in a run: a program of Kafka's own, of each generation; what it says is recorded.

It sends the values 0, 1, 2, ... behind a prefix of its own, so a value is the id of its message. It says what became of
a value, and not when it sent it: its sends begin with the program, and their order is that of their numbers.
"""

from __future__ import annotations

import json
import subprocess
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.history.checker.ops import Outcome
from tests.history.checker.record import Recorder, now_ns
from tests.history.clients.kafka import PartitionNames
from tests.java import GENERATIONS, Java

__all__ = ["Sayings", "VerifiableSender"]

_PROGRAM: Final = "org.apache.kafka.tools.VerifiableProducer"
#: How the program is told of the servers and of a file of settings, where not as in 4.3.
_FLAGS: Final = {"2.8": ("--broker-list", "--producer.config"), "3.9": ("--bootstrap-server", "--producer.config")}
_NEWEST_FLAGS: Final = ("--bootstrap-server", "--command-config")
#: The tool itself sets `retries=0`, with which Kafka's clients are not idempotent. Small batches: many are under way.
_SETTINGS: Final = {
    "enable.idempotence": "true",
    "retries": "2147483647",
    "delivery.timeout.ms": "120000",
    "max.block.ms": "120000",
    "request.timeout.ms": "3000",
    "retry.backoff.ms": "50",
    "reconnect.backoff.max.ms": "500",
    "metadata.max.age.ms": "1000",
    "linger.ms": "2",
    "batch.size": "512",
}
#: What the shutdown of a program on SIGTERM ends with in Java.
_TERMINATED: Final = 143
_KEYS: Final = 8


class Sayings:
    """Makes operations of the lines that one program writes."""

    def __init__(self, recorder: Recorder, topic: str, partitions: PartitionNames | Sequence[str]) -> None:
        """`partitions` are the names of the topic's partitions in their order."""
        self._recorder = recorder
        self._topic = topic
        self._partitions = partitions
        self._since = now_ns()
        self._numbers: set[int] = set()
        #: The program's number in the history, and the prefix of its values.
        self.process: Final = recorder.process()
        #: Values that were acknowledged.
        self.answered = 0
        #: How many values it sent, which it says at its end; None before that.
        self.sent: int | None = None

    def take(self, line: str) -> None:
        """Take one line; what is no event is a remark for people."""
        if not line.startswith("{"):
            return
        event = json.loads(line)
        match event["name"]:
            case "producer_send_success":
                placed = (self._partitions[event["partition"]], event["offset"])
                self._tell(event["value"], event["key"], Outcome.OK, placed=[placed])
                self.answered += 1
            case "producer_send_error":
                error = f"{event['exception']}: {event['message']}"
                self._tell(event["value"], event["key"], _outcome_of(error), error=error)
            case "tool_data":
                self.sent = event["sent"]

    def end(self) -> None:
        """Of a value that the program sent and said nothing of, nobody knows what became."""
        assert self.sent is not None, "the program did not come to its end"
        for number in sorted(set(range(self.sent)) - self._numbers):
            self._tell(f"{self.process}.{number}", None, Outcome.INFO)

    def _tell(self, value: str, key: str | None, outcome: Outcome, **said: object) -> None:
        number = int(value.rpartition(".")[2])
        self._numbers.add(number)
        self._recorder.told(
            self.process,
            "send",
            outcome,
            since=self._since,
            topic=self._topic,
            ids=[value],
            keys=[key],
            crcs=[zlib.crc32(value.encode())],
            producer=str(self.process),
            number=number,
            **said,
        )


def _outcome_of(error: str) -> Outcome:
    """A producer that is closed sends nothing more; of other errors it is not known what they came after."""
    is_closed = "Producer closed while" in error or "after producer has been closed" in error
    return Outcome.FAIL if is_closed else Outcome.INFO


class VerifiableSender(threading.Thread):
    """One program, until it is told to stop; then it waits for all answers."""

    def __init__(
        self,
        generation: str,
        folder: Path,
        servers: str,
        sayings: Sayings,
        topic: str,
        stop: threading.Event,
        *,
        keyed: bool,
        per_second: int,
    ) -> None:
        """`folder` gets its settings and its errors; a `keyed` one takes some keys in turn."""
        super().__init__(name=f"verifiable-{generation}", daemon=True)
        self._command = _command(generation, folder, servers, topic, sayings.process, per_second, keyed=keyed)
        self._errors = folder / f"{self.name}.log"
        self._sayings = sayings
        self._stopping = stop
        self._process: subprocess.Popen[str] | None = None
        self.failure: BaseException | None = None

    @property
    def answered(self) -> int:
        """Number of values that were acknowledged."""
        return self._sayings.answered

    def run(self) -> None:
        try:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
            threading.Thread(target=self._terminate, args=(self._process,), daemon=True).start()
            assert self._process.stdout is not None
            with self._process.stdout as lines:
                for line in lines:
                    self._sayings.take(line)
            status = self._process.wait()
            assert self._stopping.is_set() and status == _TERMINATED, f"{self.name} ended by itself with {status}"
            self._sayings.end()
        except BaseException as error:
            self.failure = error

    def _terminate(self, process: subprocess.Popen[str]) -> None:
        self._stopping.wait()
        process.terminate()

    def close(self) -> None:
        """End the program, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _command(
    generation: str, folder: Path, servers: str, topic: str, prefix: int, per_second: int, *, keyed: bool
) -> list[str]:
    settings = folder / f"verifiable-{generation}.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in _SETTINGS.items()))
    to, by = _FLAGS.get(generation, _NEWEST_FLAGS)
    keys: list[Any] = ["--repeating-keys", _KEYS] if keyed else []
    flags = [to, servers, by, settings, "--topic", topic, "--value-prefix", prefix, "--throughput", per_second, *keys]
    return Java(GENERATIONS[generation]).command(_PROGRAM, *map(str, flags))
