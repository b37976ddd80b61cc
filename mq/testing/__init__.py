"""The queue in memory, for your own tests; DeltaMQ's tests use it as a model.

from deltamq.mq.testing import MemoryQueue

queue = MemoryQueue()
queue.create_topic("orders")
queue.send("orders", b"...", key="customer-7")
popped = queue.pop("billing", "orders")
"""

from __future__ import annotations

from deltamq.mq.testing.queue import AckAnswer, MemoryQueue, Popped

__all__ = ["AckAnswer", "MemoryQueue", "Popped"]
