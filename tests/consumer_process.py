"""A consumer in a process of its own, which reports when it is ready; tests kill, pause or stop it."""

from __future__ import annotations

import signal
from typing import IO, Final

from tests.forked import Forked, pause

__all__ = ["READY", "ConsumerProcess"]

#: The line that the process prints once it can be stopped.
READY: Final = "ready"
_END_S: Final = 60


class ConsumerProcess:
    """A process `python -m MODULE ARGUMENTS`, which prints `READY`; its log goes to `log`."""

    def __init__(self, module: str, *arguments: str, log: IO[bytes] | None = None) -> None:
        self._process = Forked(module, *arguments, log=log)

    def wait_ready(self) -> None:
        """Wait until the process can be stopped."""
        assert self._process.stdout.readline() == f"{READY}\n"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self._process.kill()
        self._buried()

    def pause(self) -> None:
        pause(self._process)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop the process as an operator would: it finishes, commits and hands over. Returns the exit status."""
        self._process.terminate()
        return self._buried()

    def close(self) -> None:
        """End the process, whatever the test did."""
        if self._process.poll() is None:
            self.resume()
            self._process.kill()
        self._buried()

    def _buried(self) -> int:
        status = self._process.wait(_END_S)
        self._process.stdout.close()
        return status
