"""An ordered consumer in a process of its own, which notes each message in a journal file; tests kill and stop it.

python -m tests.e2e.orderly_process URL GROUP TOPIC CLIENT_ID JOURNAL WORK_MS DEADLY KEYS COMMIT_EACH

The message whose number is DEADLY ends the process that receives it. KEYS are heard in parallel. With COMMIT_EACH above
0, the listener commits by hand, after so many messages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from deltamq import OrderlyConsumer, Verdict
from deltamq.mq.client.messages.received import OrderedMessage
from tests.consumer_process import READY, ConsumerProcess

__all__ = ["Heard", "OrderlyProcess", "heard_in", "journal_to"]


class Heard(NamedTuple):
    """One message in a listener, with begin and end (0: never ended) by the machine's monotonic clock."""

    client: str
    partition: str
    offset: int
    key: str
    number: int
    began_ns: int
    ended_ns: int


def journal_to(
    path: Path, client: str, work_ms: float = 0.0, deadly: int = -1, commit_each: int = 0
) -> Callable[[OrderedMessage], Verdict]:
    """Return a listener that notes each message before and after its work; bodies are numbers, and `deadly` kills."""

    def note(line: str) -> None:
        with path.open("a", encoding="utf-8") as journal:
            journal.write(line)

    def listen(message: OrderedMessage) -> Verdict:
        place = f"{client} {message.partition} {message.offset} {message.key} {message.text}"
        note(f"begin {time.monotonic_ns()} {place}\n")
        if message.text == str(deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        if work_ms:
            time.sleep(work_ms / 1000)
        note(f"end {time.monotonic_ns()} {place}\n")
        is_commit = commit_each and (int(message.text) + 1) % commit_each == 0
        return Verdict.COMMIT if is_commit else Verdict.SUCCESS

    return listen


def heard_in(*paths: Path) -> list[Heard]:
    """Return all noted messages, in the order of their begin; a line that a kill cut off is left out."""
    found: list[Heard] = []
    for path in paths:
        open_ones: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else ():
            words = line.split()
            if not line.endswith("\n") or len(words) != 7:
                continue
            kind, at_ns, place = words[0], int(words[1]), " ".join(words[2:])
            client, partition, offset, key, number = words[2:]
            if kind == "begin":
                open_ones[place] = len(found)
                found.append(Heard(client, partition, int(offset), key, int(number), at_ns, 0))
            else:
                at = open_ones.pop(place)
                found[at] = found[at]._replace(ended_ns=at_ns)
    return sorted(found, key=lambda one: one.began_ns)


class OrderlyProcess(ConsumerProcess):
    """The process and its journal."""

    def __init__(
        self,
        url: str,
        group: str,
        topic: str,
        client: str,
        journal: Path,
        *,
        work_ms: int = 1,
        deadly: int = -1,
        keys_in_parallel: int = 1,
        commit_each: int = 0,
    ) -> None:
        self.journal = journal
        settings = (str(journal), *map(str, (work_ms, deadly, keys_in_parallel, commit_each)))
        super().__init__("tests.e2e.orderly_process", url, group, topic, client, *settings)
        self.wait_ready()

    def heard(self) -> list[Heard]:
        return heard_in(self.journal)


def _main(
    url: str, group: str, topic: str, client: str, journal: str, work_ms: str, deadly: str, keys: str, each: str
) -> int:
    listen = journal_to(Path(journal), client, float(work_ms), int(deadly), int(each))
    consumer = OrderlyConsumer(
        url, group, topic, listen, client_id=client, keys_in_parallel=int(keys), autocommit=int(each) == 0
    )

    def stop(number: int, frame: FrameType | None) -> None:
        consumer.stop()

    signal.signal(signal.SIGTERM, stop)
    print(READY, flush=True)
    consumer.run()
    # 0 if everything was handed over.
    return 0 if consumer.close() else 1


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
