"""Looks up the group's `order` setting, for consumers that set none."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import msgspec

from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.errors import DeltaMQError, NotFound, Unknown
from deltamq.mq.meta.settings import Ordering

log = logging.getLogger("deltamq.client")


class _Group(msgspec.Struct):
    order: bool | str = False


class GroupOrder:
    """Asks the service for a group's order, again and again while the service is away."""

    def __init__(self, client: PopClient, stop: threading.Event) -> None:
        self._client = client
        self._stop = stop

    def ask(self, fail: Callable[[DeltaMQError], None]) -> Ordering | None:
        """Return the group's order; None if stopped before, or if refused (then `fail` is called with the error)."""
        failures = 0
        while not self._stop.is_set():
            try:
                return self._once()
            except NotFound:
                # The first pop makes the group, with the defaults.
                return False
            except DeltaMQError as error:
                if not is_worth_retrying(error):
                    fail(error)
                    return None
                failures += 1
                wait_s = self._client.patience.wait_s(failures, random.random(), error)
                log.warning("event=group_unknown group=%s code=%s again_s=%.3f", self._client.group, error.code, wait_s)
                self._stop.wait(wait_s)
        return None

    def _once(self) -> Ordering:
        path = path_of("groups", self._client.group)
        answer = self._client.hosts.call("GET", path, timeout_s=self._client.patience.request_timeout_s)
        try:
            order = decode_as(answer.body, _Group).order
        except msgspec.MsgspecError as error:
            raise Unknown(f"the service's answer is unreadable: {error}", code="answer_unreadable") from error
        return "key" if order == "key" else bool(order)
