"""The load that a lease reports."""

from __future__ import annotations

from deltamq.api.log.metrics import Metrics
from deltamq.api.service.health import RequestRate


def test_the_rate_counts_requests_since_the_last_call() -> None:
    metrics = Metrics(series_max=1)
    rate = RequestRate(metrics)
    assert rate() == 0
    metrics.requests["produce", 200] += 1_000_000
    metrics.requests["pop", 503] += 1_000_000
    assert rate() > 0
    assert rate() == 0, "these were counted"
