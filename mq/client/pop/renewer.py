"""Renews the invisible time of messages whose handlers run long, when half of it is over (POP-9).

popped           half            expires
  |────────────────|────────────────|
                   └─► renewed: a new handle, valid for a whole invisible time from here
"""

from __future__ import annotations

import logging
import random
import time
from typing import Final

from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pop.lease import Lease, Leases
from deltamq.mq.client.pop.wire import HANDLE_EXPIRED
from deltamq.mq.errors import DeltaMQError, Unknown

log = logging.getLogger("deltamq.client")

_CALL_S_MIN: Final = 0.05


class Renewer:
    """Renews the leases of one consumer, in a thread that runs `run` until `leases` is closed."""

    def __init__(self, client: PopClient, leases: Leases) -> None:
        self._client = client
        self._leases = leases
        self._failures = 0
        self.renewed = 0

    def run(self) -> None:
        """Renew leases when they are due."""
        while due := self._leases.wait_due():
            for lease in due:
                if self._leases.begin(lease):
                    self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        asked_at = time.monotonic()
        remaining_s = lease.expires_at - asked_at
        timeout_s = max(_CALL_S_MIN, min(self._client.patience.request_timeout_s, remaining_s / 2))
        try:
            handle = self._client.change_once(lease.handle, lease.invisible_ms, timeout_s, lease.broker)
        except DeltaMQError as error:
            self._not_renewed(lease, error)
            return
        self._failures = 0
        self.renewed += 1
        lease.renewal_lost = False
        # Counted from before the call: the service's count began later.
        self._leases.renewed(lease, handle, asked_at)

    def _not_renewed(self, lease: Lease, error: DeltaMQError) -> None:
        if not is_worth_retrying(error):
            if lease.renewal_lost and error.code == HANDLE_EXPIRED:
                log.warning("event=new_handle_lost message=%s it is delivered again", lease.place)
            else:
                log.warning("event=message_lost message=%s code=%s it is delivered again", lease.place, error.code)
            self._leases.lose(lease)
            return
        lease.renewal_lost = lease.renewal_lost or isinstance(error, Unknown)
        self._failures += 1
        wait_s = self._client.patience.wait_s(self._failures, random.random(), error)
        log.warning("event=renewal_failed message=%s code=%s again_s=%.3f", lease.place, error.code, wait_s)
        self._leases.not_renewed(lease, time.monotonic() + wait_s)
