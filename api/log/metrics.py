"""Counters of this process, and their Prometheus form.

The hot path adds to plain integers on the event loop, where nothing else runs at the same time; a scrape makes the
Prometheus objects. Names follow the Prometheus conventions: base units, `_total` for counters.

A scrape stays small however many topics there are: the first few hundred have series of their own, the other counts are
added up under `(other)`, and partitions are shown only on request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from deltamq.api.log.parts import RequestPart
from deltamq.mq.statistics import Consumed

#: The label of the series that adds up all others; no topic can have this name.
OTHER: Final = "(other)"
Labels = TypeVar("Labels", bound=tuple[str, ...])

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
        """Return the buckets as Prometheus wants them: (upper bound, observations up to it)."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


#: What groups did with the messages of topics: the statistics of `api.statistics`, since the process began.
_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[Consumed], float]], ...]] = (
    ("deltamq_delivered_messages", "Messages popped, or pulled under a lock.", lambda did: did.delivered),
    ("deltamq_delivered_age_seconds", "Sum of their ages at delivery.", lambda did: did.age_ms / 1_000),
    ("deltamq_succeeded_messages", "Messages acknowledged or committed.", lambda did: did.succeeded),
    ("deltamq_failed_messages", "Messages given back as failed.", lambda did: did.failed),
    ("deltamq_rejected_messages", "Messages that clients sent to the dead letters.", lambda did: did.dead),
    ("deltamq_handling_seconds", "Sum of the times from delivery to outcome.", lambda did: did.handling_ms / 1_000),
)


class Gauge(NamedTuple):
    """A value that is read at each scrape."""

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


class QueueGauges(NamedTuple):
    """One logical queue's numbers at the time of a scrape; None where they are not known."""

    topic: str
    queue: str
    min_offset: int | None
    max_offset: int | None
    messages: int | None


class Metrics:
    """All counters of this process."""

    def __init__(self, *, series_max: int) -> None:
        """`series_max` is the number of topics or groups that have series of their own: those counted first.

        They stay the same, so no series ever decreases.
        """
        self._series_max = series_max
        self.requests: Counter[tuple[str, int]] = Counter()  # (call, status)
        self.produced_messages: Counter[str] = Counter()  # by topic
        self.produced_bytes: Counter[str] = Counter()
        self.quarantined_messages: Counter[str] = Counter()
        self.fetched_messages: Counter[str] = Counter()
        self.fetched_bytes: Counter[str] = Counter()
        self.popped_messages: Counter[tuple[str, str]] = Counter()  # by group and topic
        self.redelivered_messages: Counter[tuple[str, str]] = Counter()
        self.acked_messages: Counter[str] = Counter()  # by group
        self.nacked_messages: Counter[str] = Counter()
        self.condemned_messages: Counter[str] = Counter()
        #: What groups did with the messages of topics, since the process began.
        self.consumed: Callable[[], Mapping[tuple[str, str], Consumed]] = dict
        self.duplicates = 0
        self.commits = 0
        self.commit_parts = 0
        self.commit_failures = 0
        self.produce_seconds = Histogram()
        self.fetch_seconds = Histogram()
        self.pop_seconds = Histogram()
        self.commit_seconds = Histogram()
        self.commit_publish_seconds = Histogram()
        self.gauges: list[Gauge] = []
        #: Counters that other parts of the service keep.
        self.counters: list[Gauge] = []
        #: Metrics with labels that other parts of the service keep.
        self.labelled: list[Callable[[], Iterable[Metric]]] = []

    def committed(self, topic: str, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        """Count one group commit of a topic's partition, its seconds, those with the store, and the requests in it."""
        self.commit_seconds.observe(took_s)
        if published_s:
            self.commit_publish_seconds.observe(published_s)
        self.commits += 1
        self.commit_parts += len(parts)
        for part in parts:
            if part.appended is None:
                self.commit_failures += 1
            elif part.appended.duplicate:
                self.duplicates += 1
            elif part.misfits:
                self.quarantined_messages[topic] += part.misfits

    def of_process(self) -> Iterator[Metric]:
        """Yield the metrics of the whole process."""
        yield from self._counters()
        yield from self._histograms()
        for counter in self.counters:
            yield CounterMetricFamily(counter.name, counter.help, value=counter.read())
        for gauge in self.gauges:
            yield GaugeMetricFamily(gauge.name, gauge.help, value=gauge.read())
        for families in self.labelled:
            yield from families()

    def of_topics(self, topics: Collection[str]) -> Iterator[Metric]:
        """Yield the counters of these topics."""
        for name, text, by_topic in self._by_topic():
            yield _family(name, text, ["topic"], {(t,): by_topic[t] for t in topics if t in by_topic})
        for name, text, by_lane in self._by_lane():
            counts = {lane: count for lane, count in list(by_lane.items()) if lane[1] in topics}
            yield _family(name, text, ["group", "topic"], counts)

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "deltamq_requests", "Answered requests by call and status.", labels=["call", "status"]
        )
        for (call, status), count in list(self.requests.items()):
            requests.add_metric([call, str(status)], count)
        yield requests
        for name, text, by_topic in self._by_topic():
            counts = {(topic,): count for topic, count in by_topic.items()}
            yield _family(name, text, ["topic"], _bounded(counts, self._series_max))
        for name, text, by_lane in self._by_lane():
            yield _family(name, text, ["group", "topic"], _bounded(by_lane, self._series_max))
        for name, text, by_group in self._by_group():
            counts = {(group,): count for group, count in by_group.items()}
            yield _family(name, text, ["group"], _bounded(counts, self._series_max))
        for name, text, value in (
            ("deltamq_duplicate_parts", "Replayed parts of requests that were already stored.", self.duplicates),
            ("deltamq_commits", "Group commits.", self.commits),
            ("deltamq_commit_parts", "Parts of requests in group commits.", self.commit_parts),
            ("deltamq_commit_failed_parts", "Parts of requests whose commit failed.", self.commit_failures),
        ):
            yield CounterMetricFamily(name, text, value=value)

    def _by_topic(self) -> tuple[tuple[str, str, Counter[str]], ...]:
        return (
            ("deltamq_produced_messages", "Messages acknowledged to producers.", self.produced_messages),
            ("deltamq_produced_bytes", "Bytes of acknowledged produce requests.", self.produced_bytes),
            (
                "deltamq_quarantined_messages",
                "Messages stored that did not fit their schema: no consumer gets them.",
                self.quarantined_messages,
            ),
            ("deltamq_fetched_messages", "Messages sent to consumers.", self.fetched_messages),
            ("deltamq_fetched_bytes", "Bytes sent to consumers.", self.fetched_bytes),
        )

    def _by_lane(self) -> tuple[tuple[str, str, Mapping[tuple[str, str], float]], ...]:
        return (
            ("deltamq_popped_messages", "Messages popped by groups.", self.popped_messages),
            ("deltamq_redelivered_messages", "Popped messages that were delivered before.", self.redelivered_messages),
            *(
                (name, text, {lane: read(counts) for lane, counts in self.consumed().items()})
                for name, text, read in _OF_GROUPS
            ),
        )

    def _by_group(self) -> tuple[tuple[str, str, Counter[str]], ...]:
        return (
            ("deltamq_acked_messages", "Handles acknowledged.", self.acked_messages),
            ("deltamq_nacked_messages", "Handles given back as failed.", self.nacked_messages),
            ("deltamq_condemned_messages", "Handles sent to the dead letters.", self.condemned_messages),
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("deltamq_produce_seconds", "From the complete request to its answer.", self.produce_seconds),
            ("deltamq_fetch_seconds", "From the request to its answer, long polls included.", self.fetch_seconds),
            ("deltamq_pop_seconds", "From a pop to its answer, waiting included.", self.pop_seconds),
            ("deltamq_commit_seconds", "From the beginning of a group commit to its end.", self.commit_seconds),
            (
                "deltamq_commit_publish_seconds",
                "The part of it that is with the store: write, fsync and link, or puts.",
                self.commit_publish_seconds,
            ),
        ):
            yield histogram_family(name, text, [], {(): histogram})


def of_partitions(partitions: Iterable[PartitionGauges]) -> Iterator[Metric]:
    """Yield the gauges of open partitions."""
    labels = ["topic", "partition"]
    families = {
        "end_offset": GaugeMetricFamily("deltamq_partition_end_offset", "Next offset to be written.", labels=labels),
        "min_offset": GaugeMetricFamily("deltamq_partition_min_offset", "First stored offset.", labels=labels),
        "version": GaugeMetricFamily("deltamq_partition_version", "Newest Delta version.", labels=labels),
        "files": GaugeMetricFamily("deltamq_partition_files", "Live data files.", labels=labels),
        "bytes": GaugeMetricFamily("deltamq_partition_bytes", "Bytes of the live data files.", labels=labels),
    }
    for partition in partitions:
        for field, family in families.items():
            family.add_metric([partition.topic, partition.partition], getattr(partition, field))
    yield from families.values()


def of_queues(queues: Iterable[QueueGauges]) -> Iterator[Metric]:
    """Yield the gauges of the logical queues of static topics, whose segments are partitions (SPEC STATIC-18)."""
    labels = ["topic", "queue"]
    families = {
        "min_offset": GaugeMetricFamily(
            "deltamq_logical_queue_min_offset", "First stored logical offset.", labels=labels
        ),
        "max_offset": GaugeMetricFamily(
            "deltamq_logical_queue_end_offset", "Next logical offset to be written.", labels=labels
        ),
        "messages": GaugeMetricFamily(
            "deltamq_logical_queue_messages", "Stored messages; holes have none.", labels=labels
        ),
    }
    for queue in queues:
        for field, family in families.items():
            value = getattr(queue, field)
            if value is not None:
                family.add_metric([queue.topic, queue.queue], value)
    yield from families.values()


def rendered(families: Sequence[Metric]) -> bytes:
    """Return the metrics in the Prometheus text format; safe on any thread."""
    return generate_latest(_Collected(families))


class _Collected:
    """Stands in for the registry that `generate_latest` reads."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def histogram_family(
    name: str, text: str, labels: Sequence[str], histograms: Mapping[tuple[str, ...], Histogram]
) -> Metric:
    """Return histograms by the values of their labels."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in histograms.items():
        family.add_metric(values, buckets=histogram.cumulative(), sum_value=histogram.sum)
    return family


def _family(name: str, text: str, labels: Sequence[str], counts: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _bounded(counts: Mapping[Labels, float], series_max: int) -> dict[tuple[str, ...], float]:
    kept: dict[tuple[str, ...], float] = dict(islice(counts.items(), series_max))
    if len(counts) > len(kept):
        labels = len(next(iter(kept)))
        kept[(OTHER,) * labels] = sum(islice(counts.values(), len(kept), None))
    return kept
