"""The queue in memory, for your own tests; DeltaMQ's tests use it as a model.

from deltamq import MemoryQueue

queue = MemoryQueue()
queue.create_topic("orders")
queue.send("orders", b"...", key="customer-7")
popped = queue.pop("billing", "orders")
"""

from __future__ import annotations
