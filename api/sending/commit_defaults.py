"""How the messages of a request are committed, as the request, its topic and the process say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from deltamq.api.log.partition import Partitions
from deltamq.api.wire.request import Admission
from deltamq.mq.meta.topic_settings import TopicSettings, window_of
from deltamq.tables.config import Config
from deltamq.tables.settings import Flush

_FLUSHES: Final = {"sync": Flush.SYNC, "async": Flush.ASYNC}


class CommitDefaults(NamedTuple):
    """What the process says for topics without a setting of their own."""

    flush: Flush
    window_ms: int
    #: Whether nothing may wait for what may come: the service stops, or half of its room for requests is taken.
    is_urgent: Callable[[], bool]

    @classmethod
    def of(cls, config: Config, partitions: Partitions, admission: Admission) -> CommitDefaults:
        """Return those of these settings; `admission` is that of requests that append."""
        window_ms = config.service.commit_window_ms
        return cls(config.log.flush, window_ms, lambda: partitions.stopping or admission.is_half_full)

    def flush_of(self, settings: TopicSettings, asked: str | None = None) -> Flush:
        """Return what the acknowledgement waits for; `asked` is of the request and counts first."""
        return _FLUSHES.get(asked or settings.flush or "", self.flush)

    def window_of(self, settings: TopicSettings, asked_ms: int | None = None) -> int:
        """Return how many milliseconds messages wait for others that share their commit (SPEC SEND-14).

        `asked_ms` is of the request, and counts if it is shorter.
        """
        if self.is_urgent():
            return 0
        own_ms = window_of(settings)
        window_ms = self.window_ms if own_ms is None else own_ms
        return window_ms if asked_ms is None else min(asked_ms, window_ms)
