"""Print a topic for an exclusive group, in order: a message is done when its line is written.

After SIGTERM, Ctrl-C or a closed pipe, the written messages are committed and the partitions go to other clients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE
from deltamq.mq.client.cli.group_consume import GroupOptions, stopped_by_sigterm
from deltamq.mq.client.cli.message_lines import Line, write_lines
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.client.orderly.consumer import OrderlyConsumer
from deltamq.mq.order.orderly import Verdict

_LOOK_S: Final = 0.05
#: Without --follow: seconds after its partitions were read to the end until it stops ...
_SETTLED_S: Final = 0.5
#: ... and seconds that it waits for partitions that other clients have.
_ALLOCATED_S: Final = 10.0


def consume_in_order(url: str, group: str, options: GroupOptions, line: Line, access: ClientAccess) -> None:
    """Print messages until there are no more, or until told to stop."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        ends = admin.get_topic(options.topic).max_offsets()
    printing = _Printing(url, group, options, line, ends, access)
    with stopped_by_sigterm(printing):
        printing.run()


class _Printing:
    """One run of the command."""

    def __init__(
        self, url: str, group: str, options: GroupOptions, line: Line, ends: Mapping[str, int], access: ClientAccess
    ) -> None:
        self._options = options
        self._line = line
        self._ends = ends
        self._left = options.max_messages
        self._stopping = threading.Event()
        self._failure: OSError | None = None
        #: Lines of a partition and of retried messages must not mix; two partitions cannot, with a concurrency of 1.
        self._writing = threading.Lock()
        self._consumer = OrderlyConsumer(
            url,
            group,
            options.topic,
            self._print,
            concurrency=1,
            tags=options.tags,
            filter=options.filter,
            client_id=None,
            **access,
        )

    def stop(self) -> None:
        """End after the message that is being written; safe in a signal handler."""
        self._stopping.set()
        self._consumer.stop()

    def run(self) -> None:
        watch = threading.Thread(target=self._stop_at_end, daemon=True)
        if not self._options.follow:
            watch.start()
        self._consumer.run()
        self._stopping.set()
        if self._failure is not None:
            raise self._failure

    def _print(self, message: OrderedMessage) -> Verdict:
        with self._writing:
            return self._write(message)

    def _write(self, message: OrderedMessage) -> Verdict:
        if self._stopping.is_set():
            return Verdict.SUSPEND
        try:
            write_lines([message], self._line)
        except OSError as error:
            self._failure = error
            self.stop()
            return Verdict.SUSPEND
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.stop()
        return Verdict.SUCCESS

    def _stop_at_end(self) -> None:
        """Without --follow, stop when this client's partitions are read to their end offsets of the start."""
        settled: float | None = None
        give_up = time.monotonic() + _ALLOCATED_S
        while not self._stopping.wait(_LOOK_S):
            now = time.monotonic()
            places = self._consumer.positions()
            if not places or any(offset < self._ends.get(name, 0) for (_, name), offset in places.items()):
                settled = None
            elif settled is None:
                settled = now
            if (settled is not None and now - settled >= _SETTLED_S) or (not places and now >= give_up):
                self.stop()
