"""Processes that a command starts, hands signals to, and ends with."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final

#: How a command starts another one.
DELTAMQ: Final = (sys.executable, "-m", "deltamq.mq.client.cli")
#: Linux' number of the setting: which signal a process gets when its parent ends.
_PR_SET_PDEATHSIG: Final = 1


def started(command: Sequence[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command, with `more` variables, that ends with this process (on Linux)."""
    # a group of its own: Ctrl-C reaches only this process, which hands it on once
    ending = _end_with_parent if sys.platform == "linux" else None
    return subprocess.Popen(command, process_group=0, preexec_fn=ending, env={**os.environ, **(more or {})})


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def asked_to_stop() -> list[int]:
    """Return a list that grows with each SIGTERM and Ctrl-C from now on."""
    asked: list[int] = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked.append(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return asked
