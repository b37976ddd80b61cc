"""One partition as a log (append, read, roll-up, fences), and the warehouse that holds all partitions."""

from __future__ import annotations

from deltamq.tables.log.batch import Appended, Batch, MessageIds
from deltamq.tables.log.dead_files import DeadFiles
from deltamq.tables.log.fences import ANY_EPOCH, BROKER_FENCE, RESET_FENCE, ROUTE_FENCE
from deltamq.tables.log.fetch import Fetched, FetchStatus, cut_to_bytes, one_record_batch, weight_of, weights_of
from deltamq.tables.log.follow import LogFollower
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import NotStored, pages
from deltamq.tables.log.point_reads import Picked, TooMuch, pick
from deltamq.tables.log.reader import Born, offset_at
from deltamq.tables.log.rewrite import Removed, delete_before
from deltamq.tables.log.stored_requests import REMEMBERED_MS, StoredRequests
from deltamq.tables.log.warehouse import Warehouse, open_store, refs

__all__ = [
    "ANY_EPOCH",
    "BROKER_FENCE",
    "REMEMBERED_MS",
    "RESET_FENCE",
    "ROUTE_FENCE",
    "Appended",
    "Batch",
    "Born",
    "DeadFiles",
    "FetchStatus",
    "Fetched",
    "LogFollower",
    "MessageIds",
    "NotStored",
    "PartitionLog",
    "Picked",
    "Removed",
    "StoredRequests",
    "TooMuch",
    "Warehouse",
    "cut_to_bytes",
    "delete_before",
    "offset_at",
    "one_record_batch",
    "open_store",
    "pages",
    "pick",
    "refs",
    "weight_of",
    "weights_of",
]
