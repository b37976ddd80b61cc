"""The earlier place of `MemoryQueue`, which is in `mq.testing` now; this name goes with the next release."""

from __future__ import annotations

from mq.testing import MemoryQueue

__all__ = ["MemoryQueue"]
