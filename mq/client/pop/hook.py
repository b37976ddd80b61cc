"""Calls the user's hooks around handlers and listeners (SPEC CONS-6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["call_hook"]

log = logging.getLogger("deltamq.client")


def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call a hook, if there is one; its failure is logged, and changes nothing."""
    if hook is None:
        return
    try:
        hook(*arguments)
    except Exception:
        log.exception("event=hook_failed")
