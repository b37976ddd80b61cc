"""The brokers whose queues the jobs of a warehouse process."""

from __future__ import annotations

from jobs.tasks import warehouse_of
from mq.names import broker_of
from tables.config import Config
from tables.log import Warehouse
from tables.paths import Space
from tables.queue import DELAY, REVIVE_LOG

__all__ = ["broker_shards", "brokers_of"]


def broker_shards(conf: Config) -> list[str]:
    """Return the shards of `revive` and `delay`, each with a lock of its own: the brokers.

    The queues of a broker append to the same retry partitions: drivers that shared a broker would race all the time.
    """
    return brokers_of(warehouse_of(conf), conf)


def brokers_of(warehouse: Warehouse, conf: Config) -> list[str]:
    """Return the brokers of the settings, and every other one with a log of the queue in the warehouse."""
    logs = {f"{kind}_{conf.warehouse.cluster}" for kind in (REVIVE_LOG, DELAY)}
    found = {broker_of(ref.name) for ref in warehouse.refs(Space.SYS) if ref.topic in logs}
    return sorted(found | set(conf.service.brokers))
