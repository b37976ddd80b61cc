"""DeltaMQ's protocol and clients. The core is pure: state in, events in, decisions out; time is passed in.

    from mq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer

The clients are loaded on first use, so importing the core loads neither Arrow nor HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq.client import (
        Admin,
        Message,
        OrderlyConsumer,
        Outbox,
        OutboxRelay,
        PopConsumer,
        Producer,
        PullConsumer,
        Result,
        Suspend,
        Verdict,
    )

__all__ = [
    "Admin",
    "Message",
    "OrderlyConsumer",
    "Outbox",
    "OutboxRelay",
    "PopConsumer",
    "Producer",
    "PullConsumer",
    "Result",
    "Suspend",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("mq.client"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
