"""Exclusive clients, each a process of its own, which note when their listener has a message, and what they lost.

python -m tests.history.clients.orderlies HISTORY FIRST_PROCESS GROUP CLIENT SEED WORK_MS URL ...     until SIGTERM
"""

from __future__ import annotations

import faulthandler
import logging
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from deltamq import OrderlyConsumer, Verdict
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.listener import Suspend
from tests.consumer_process import READY, ConsumerProcess
from tests.history.checker.record import Recorder

__all__ = ["OrderlyClient", "OrderlyClients"]

_TOPIC: Final = "orders"
_SUSPEND_MS: Final = 20
#: Processes of a life's history are numbered from here, so that no two lives share one.
_LIVES_APART: Final = 10_000


class OrderlyClient(ConsumerProcess):
    """One life of a client, seen from outside."""

    def __init__(
        self, folder: Path, urls: list[str], group: str, name: str, life: int, number: int, work_ms: int
    ) -> None:
        self.client = f"{name}.{life}"
        history, first = folder / f"history-{self.client}.jsonl", (number + 1) * _LIVES_APART
        self._log = (folder / f"{self.client}.log").open("wb")
        arguments = [str(history), str(first), group, self.client, str(number), str(work_ms), *urls]
        super().__init__("tests.history.clients.orderlies", *arguments, log=self._log)

    def stop(self) -> int:
        try:
            return super().stop()
        except subprocess.TimeoutExpired:
            # It says where its threads are.
            self._process.send_signal(signal.SIGABRT)
            self._buried()
            said = Path(self._log.name).read_text(errors="replace")[-6_000:]
            raise AssertionError(f"{self.client} does not end: {said}") from None

    def _buried(self) -> int:
        status = super()._buried()
        self._log.close()
        return status


class OrderlyClients:
    """The clients of one exclusive group; a life that ended is followed by another."""

    def __init__(self, folder: Path, urls: list[str], group: str, count: int, work_ms: int) -> None:
        self._folder = folder
        self._urls = urls
        self._group = group
        self._work_ms = work_ms
        self._lives = 0
        self.clients = [self._live(at) for at in range(count)]
        for client in self.clients:
            client.wait_ready()

    def _live(self, at: int) -> OrderlyClient:
        self._lives += 1
        name, number = f"{self._group}-{at}", self._lives
        return OrderlyClient(self._folder, self._urls, self._group, name, number, number, self._work_ms)

    def replace(self, at: int) -> None:
        """Another life in the place of one that ended."""
        self.clients[at] = self._live(at)
        self.clients[at].wait_ready()

    @property
    def histories(self) -> list[Path]:
        """What all lives noted."""
        return sorted(self._folder.glob(f"history-{self._group}-*.jsonl"))

    def leave(self) -> list[int]:
        """All go, one after another; their exit statuses."""
        return [client.stop() for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            client.close()


class _LossNotes(logging.Handler):
    """Notes each partition that the client says it has lost."""

    def __init__(self, recorder: Recorder, process: int, group: str, client: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._process = process
        self._who = {"group": group, "client": client}

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("event=partition_%s") and isinstance(record.args, tuple) and record.args[0] == "lost":
            self._recorder.moment(self._process, "lost", partition=str(record.args[1]), **self._who)


class _Listener:
    """Works for a moment, and now and then wants the same message again."""

    def __init__(self, recorder: Recorder, group: str, client: str, seed: int, work_ms: int) -> None:
        self._recorder = recorder
        self._process = recorder.process()
        self._who = {"group": group, "client": client}
        self._drawn = random.Random(seed)
        self._work_s = work_ms / 1_000

    def __call__(self, message: OrderedMessage) -> Verdict | Suspend:
        with self._recorder.begin(
            self._process,
            "handled",
            partition=message.partition,
            offset=message.offset,
            id=message.message_id,
            **self._who,
        ) as op:
            time.sleep(self._drawn.uniform(0, self._work_s))
            if self._drawn.random() < 0.02:
                op.fail()
                return Suspend(_SUSPEND_MS)
            op.ok()
            return Verdict.SUCCESS


def main(path: str, first: str, group: str, client: str, seed: str, work_ms: str, *urls: str) -> None:
    """One life."""
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    recorder = Recorder(Path(path), first_process=int(first))
    notes = _LossNotes(recorder, recorder.process(), group, client)
    logging.getLogger("deltamq.client").addHandler(notes)
    consumer = OrderlyConsumer(
        list(urls), group, _TOPIC, _Listener(recorder, group, client, int(seed), int(work_ms)),
        client_id=client, commit_ms=100, suspend_ms=_SUSPEND_MS, patience=Patience(first_wait_ms=5, wait_ms_max=200),
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.start()
    print(READY, flush=True)
    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
