"""Counters of this process, and their Prometheus form.

The hot path adds to plain integers on the event loop, where nothing else runs at the same time; the Prometheus
objects are made when somebody scrapes. Names follow the Prometheus conventions: base units, `_total` for counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from api.group_commit import Part

__all__ = ["Gauge", "Histogram", "Metrics", "PartitionGauges"]

#: Upper bounds in seconds, from a commit in the page cache to a slow disk.
_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Observations in fixed buckets."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """What Prometheus wants: (upper bound, observations up to it)."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


class Gauge(NamedTuple):
    """A value that is read when it is asked for."""

    name: str
    help: str
    read: Callable[[], float]


class PartitionGauges(NamedTuple):
    """One open partition's numbers at the time of a scrape."""

    topic: str
    partition: str
    end_offset: int
    min_offset: int
    version: int
    files: int
    bytes: int


class Metrics(Collector):
    """Everything that is counted; `render` is the scrape."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # (call, status)
        self.produced_messages: Counter[str] = Counter()  # by topic
        self.produced_bytes: Counter[str] = Counter()
        self.fetched_messages: Counter[str] = Counter()
        self.fetched_bytes: Counter[str] = Counter()
        self.popped_messages: Counter[tuple[str, str]] = Counter()  # by group and topic
        self.redelivered_messages: Counter[tuple[str, str]] = Counter()
        self.acked_messages: Counter[str] = Counter()  # by group
        self.nacked_messages: Counter[str] = Counter()
        self.condemned_messages: Counter[str] = Counter()
        self.duplicates = 0
        self.commits = 0
        self.commit_parts = 0
        self.commit_failures = 0
        self.produce_seconds = Histogram()
        self.fetch_seconds = Histogram()
        self.pop_seconds = Histogram()
        self.gauges: list[Gauge] = []
        #: Counters that somebody else keeps.
        self.counters: list[Gauge] = []
        self.partitions: Callable[[], Iterable[PartitionGauges]] = tuple
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def committed(self, parts: Sequence[Part]) -> None:
        """Count one group commit and the requests in it."""
        self.commits += 1
        self.commit_parts += len(parts)
        for part in parts:
            if part.appended is None:
                self.commit_failures += 1
            elif part.appended.duplicate:
                self.duplicates += 1

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        for counter in self.counters:
            yield CounterMetricFamily(counter.name, counter.help, value=counter.read())
        for gauge in self.gauges:
            yield GaugeMetricFamily(gauge.name, gauge.help, value=gauge.read())
        yield from self._partition_families()

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "deltamq_requests", "Answered requests by call and status.", labels=["call", "status"]
        )
        for (call, status), count in list(self.requests.items()):
            requests.add_metric([call, str(status)], count)
        yield requests
        for name, text, by_topic in (
            ("deltamq_produced_messages", "Messages acknowledged to producers.", self.produced_messages),
            ("deltamq_produced_bytes", "Bytes of acknowledged produce requests.", self.produced_bytes),
            ("deltamq_fetched_messages", "Messages sent to consumers.", self.fetched_messages),
            ("deltamq_fetched_bytes", "Bytes sent to consumers.", self.fetched_bytes),
        ):
            family = CounterMetricFamily(name, text, labels=["topic"])
            for topic, count in list(by_topic.items()):
                family.add_metric([topic], count)
            yield family
        yield from self._queue_counters()
        for name, text, value in (
            ("deltamq_duplicate_parts", "Replayed parts of requests that were already stored.", self.duplicates),
            ("deltamq_commits", "Group commits.", self.commits),
            ("deltamq_commit_parts", "Parts of requests in group commits.", self.commit_parts),
            ("deltamq_commit_failed_parts", "Parts of requests whose commit failed.", self.commit_failures),
        ):
            yield CounterMetricFamily(name, text, value=value)

    def _queue_counters(self) -> Iterator[Metric]:
        for name, text, by_lane in (
            ("deltamq_popped_messages", "Messages given to groups.", self.popped_messages),
            ("deltamq_redelivered_messages", "Of these, not for the first time.", self.redelivered_messages),
        ):
            family = CounterMetricFamily(name, text, labels=["group", "topic"])
            for labels, count in list(by_lane.items()):
                family.add_metric(labels, count)
            yield family
        for name, text, by_group in (
            ("deltamq_acked_messages", "Handles acknowledged.", self.acked_messages),
            ("deltamq_nacked_messages", "Handles of failed messages.", self.nacked_messages),
            ("deltamq_condemned_messages", "Handles sent to the dead letters.", self.condemned_messages),
        ):
            family = CounterMetricFamily(name, text, labels=["group"])
            for group, count in list(by_group.items()):
                family.add_metric([group], count)
            yield family

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("deltamq_produce_seconds", "From the complete request to its answer.", self.produce_seconds),
            ("deltamq_fetch_seconds", "From the request to its answer, long polls included.", self.fetch_seconds),
            ("deltamq_pop_seconds", "The same for pops.", self.pop_seconds),
        ):
            yield HistogramMetricFamily(name, text, buckets=histogram.cumulative(), sum_value=histogram.sum)

    def _partition_families(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        families = {
            "end_offset": GaugeMetricFamily(
                "deltamq_partition_end_offset", "Next offset to be written.", labels=labels
            ),
            "min_offset": GaugeMetricFamily("deltamq_partition_min_offset", "First stored offset.", labels=labels),
            "version": GaugeMetricFamily("deltamq_partition_version", "Newest Delta version.", labels=labels),
            "files": GaugeMetricFamily("deltamq_partition_files", "Live data files.", labels=labels),
            "bytes": GaugeMetricFamily("deltamq_partition_bytes", "Bytes of the live data files.", labels=labels),
        }
        for found in self.partitions():
            for field, family in families.items():
                family.add_metric([found.topic, found.partition], getattr(found, field))
        yield from families.values()
