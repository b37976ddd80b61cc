"""The metrics of a process with labels, for Prometheus (SPEC LOOK-11): groups, partitions, disk, certificate, process.

    gauges of groups (`api.service.gauges`) --the greatest N--> series of groups and topics
                                            '-- all ----------> totals, without labels

A scrape stays small however many groups there are: each gauge has `service.metrics_top` series at most, and a total.
What blocks, such as asking the disk, is done on a thread.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric

from deltamq.api.log.metrics import Histogram, Metrics, histogram_family, of_partitions
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.service.background import Background
from deltamq.api.service.gauges import Gauges, Reading, Sample, Slices
from deltamq.api.service.store_meter import StoreMeter
from deltamq.api.tls import certificate_end_s
from deltamq.mq.wire.cluster import StoreUse
from deltamq.tables.log.warehouse import Warehouse

log = logging.getLogger("deltamq.api")

K = TypeVar("K", bound=str | tuple[str, ...])

#: Seconds between two looks at the event loop's delay.
_FEEL_S: Final = 1.0


class Scrape(Background):
    """Makes the metrics of a scrape; used on the event loop."""

    def __init__(
        self,
        gauges: Gauges,
        metrics: Metrics,
        partitions: Partitions,
        *,
        top: int,
        warehouse: Warehouse,
        certificate: str,
    ) -> None:
        """`top` bounds the series of each gauge; `certificate` is a file in PEM, empty for none."""
        self._gauges = gauges
        self._metrics = metrics
        self._partitions = partitions
        self._top = top
        self._folder = warehouse.folder
        self._store = StoreMeter(warehouse.store_calls, warehouse.uri)
        self._certificate = certificate
        self._delay = Histogram()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    async def families(self, version: str, *, partitions: bool) -> list[Metric]:
        """Return all metrics of the process; `partitions` includes every open partition, not only the largest."""
        slices, families = Slices(), list[Metric]()
        for family in self._metrics.of_process():
            await slices.step()
            families.append(family)
        families += _of_groups(await self._gauges.now(), self._top)
        families += await self._sizes(slices, is_all=partitions)
        text = "How late the event loop called what was due, once a second: a pause of the process, or too much work."
        families.append(histogram_family("deltamq_loop_delay_seconds", text, [], {(): self._delay}))
        families += await self._partitions.run(partial(self._outside, version))
        return families

    def store_use(self) -> StoreUse | None:
        """Return what the process asked of its object store; None on a disk."""
        return self._store.use()

    async def of_topics(self, topics: Collection[str]) -> Iterator[Metric]:
        """Yield what all groups have before them in these topics."""
        return _of_readings(await self._gauges.now(), partial(_in_topics, topics))

    async def _sizes(self, slices: Slices, *, is_all: bool) -> list[Metric]:
        """Return the sizes of the largest partitions that are open, or of all, and the totals of all."""
        largest: list[tuple[int, int, Partition]] = []
        count = files = nbytes = 0
        for partition in self._partitions:
            await slices.step()
            opened = partition.log
            if opened is None:
                continue
            size = opened.bytes
            count, files, nbytes = count + 1, files + len(opened.files), nbytes + size
            if is_all or len(largest) < self._top:
                heapq.heappush(largest, (size, count, partition))
            elif size > largest[0][0]:
                heapq.heapreplace(largest, (size, count, partition))
        return [
            *of_partitions(gauges for _, _, partition in largest for gauges in partition.gauges()),
            _total("deltamq_stored_bytes", "Bytes of the live data files of all open partitions.", nbytes),
            _total("deltamq_data_files", "Live data files of all open partitions.", files),
        ]

    def _outside(self, version: str) -> list[Metric]:
        """Return what the system knows; blocks."""
        build = _by("deltamq_build_info", "The release, always 1.", ["version"], {version: 1})
        return [build, *self._disk(), *self._store.families(), *self._ends(), *self._process.collect()]

    def _disk(self) -> Iterator[Metric]:
        if self._folder is None:
            return
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError as error:
            log.warning("event=disk_not_read folder=%s detail=%r", self._folder, str(error))
            return
        for name, text, value in (
            ("deltamq_disk_size_bytes", "Size of the disk of the warehouse.", usage.total),
            ("deltamq_disk_used_bytes", "Bytes of it that are in use, by others, too.", usage.used),
            ("deltamq_disk_free_bytes", "Bytes of it that this process may still write.", usage.free),
        ):
            yield _by(name, text, ["path"], {str(self._folder): value})

    def _ends(self) -> Iterator[Metric]:
        if not self._certificate:
            return
        try:
            end_s = certificate_end_s(self._certificate)
        except (OSError, ValueError) as error:
            log.warning("event=certificate_not_read file=%s detail=%r", self._certificate, str(error))
            return
        text = "When the certificate in the file `service.tls_cert` ends, or one of its chain."
        yield _by("deltamq_certificate_end_timestamp_seconds", text, ["file"], {self._certificate: end_s})

    # How late the event loop calls what is due: requests wait as long.

    async def _run(self) -> None:
        while True:
            due_s = time.monotonic() + _FEEL_S
            await asyncio.sleep(_FEEL_S)
            self._delay.observe(max(0.0, time.monotonic() - due_s))


def _of_readings(
    sample: Sample, shown: Callable[[Mapping[Reading, float]], Mapping[Reading, float]]
) -> Iterator[Metric]:
    for name, text, values in (
        ("deltamq_group_lag", "Messages that a group has not committed, retries included.", sample.lag),
        ("deltamq_group_oldest_seconds", "Age of the oldest of them.", sample.oldest_s),
    ):
        yield _by(name, text, ["group", "topic"], shown(values))


def _in_topics(topics: Collection[str], values: Mapping[Reading, float]) -> Mapping[Reading, float]:
    return {reading: value for reading, value in values.items() if reading[1] in topics}


def _of_groups(sample: Sample, top: int) -> Iterator[Metric]:
    yield from _of_readings(sample, partial(_greatest, top=top))
    flights: dict[str, int] = {}
    for (group, _), count in sample.in_flight.items():
        flights[group] = flights.get(group, 0) + count
    for name, text, of_groups in (
        ("deltamq_group_in_flight_messages", "Messages of a group that are popped and not done.", flights),
        ("deltamq_group_clients", "Clients of a group that are online.", sample.clients),
        (
            "deltamq_dead_letters",
            "Dead letters of a group that are neither sent back nor deleted.",
            sample.dead_letters,
        ),
    ):
        yield _by(name, text, ["group"], _greatest(of_groups, top=top))
    for name, text, value in (
        (
            "deltamq_lag_messages",
            "Messages that groups have not committed, summed over groups.",
            sum(sample.lag.values()),
        ),
        ("deltamq_oldest_seconds", "Age of the oldest of them.", max(sample.oldest_s.values(), default=0)),
        ("deltamq_unknown_lanes", "Partitions of groups whose lag is not known yet.", sample.unknown_lanes),
        ("deltamq_clients", "Clients of groups that are online.", sum(sample.clients.values())),
        ("deltamq_dead_letter_messages", "Dead letters of all groups.", sum(sample.dead_letters.values())),
        ("deltamq_delayed_messages", "Messages that wait for their deliver time.", sample.delayed),
        ("deltamq_delayed_late_seconds", "For how long the first of them is overdue.", sample.delayed_late_s),
    ):
        yield _total(name, text, value)


def _greatest(values: Mapping[K, float], *, top: int) -> Mapping[K, float]:
    """Return the `top` greatest values."""
    if len(values) <= top:
        return values
    return dict(heapq.nlargest(top, values.items(), key=lambda item: item[1]))


def _by(name: str, text: str, labels: Sequence[str], values: Mapping[K, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def _total(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
