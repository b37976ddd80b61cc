"""What users import: installed as `deltamq/__init__.py`; in a checkout, `.path/deltamq/__init__.py` is a link to here.

    from deltamq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer

The clients are loaded on first use, so importing the core loads neither Arrow nor HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltamq.mq.client import (
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

if __name__ != "deltamq":
    raise ImportError("import deltamq: this file is its __init__")

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
    return getattr(import_module("deltamq.mq.client"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
