"""The brokers whose queues the jobs of a warehouse work for."""

from __future__ import annotations

from mq.names import split_partition
from tables.config import Config
from tables.paths import Space
from tables.queue_refs import DELAY, REVIVE_LOG
from tables.warehouse import Warehouse

__all__ = ["brokers_of"]


def brokers_of(warehouse: Warehouse, conf: Config) -> list[str]:
    """Those of the settings, and every other that has left a log of the queue in the warehouse."""
    logs = {f"{kind}_{conf.warehouse.cluster}" for kind in (REVIVE_LOG, DELAY)}
    found = {split_partition(ref.name)[1] for ref in warehouse.refs(Space.SYS) if ref.topic in logs}
    return sorted(found | set(conf.service.brokers))
