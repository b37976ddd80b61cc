"""One partition as a log (append, read, roll-up, fences), and the warehouse that holds all partitions."""

from __future__ import annotations

from tables.log.batch import Appended, Batch, MessageIds
from tables.log.dead_files import DeadFiles
from tables.log.fences import ANY_EPOCH, BROKER_FENCE, RESET_FENCE, ROUTE_FENCE
from tables.log.fetch import Fetched, FetchStatus, cut_to_bytes, one_record_batch, weight_of, weights_of
from tables.log.follow import LogFollower
from tables.log.log import PartitionLog
from tables.log.paging import NotStored, pages
from tables.log.point_reads import Picked, TooMuch, pick
from tables.log.reader import Born, offset_at
from tables.log.rewrite import Removed, delete_before
from tables.log.stored_requests import REMEMBERED_MS, StoredRequests
from tables.log.warehouse import Warehouse, open_store, refs

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
