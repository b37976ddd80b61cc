"""Acts and refusals, read from `sys/audit` page by page (SPEC SEC-42); blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from deltamq.mq.audit import ActBegun, ActEnded, AuditRecord, RefusalCount
from deltamq.mq.limits import ENDS_LOOKED_MAX
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.records import audit_records_of

_ROWS: Final = 1_000
_BYTES: Final = 4 << 20


class ActView(NamedTuple):
    """An act, and its end if it has one."""

    begun: ActBegun
    ended: ActEnded | None


def read_acts(
    log: PartitionLog, start: int, *, wanted: Callable[[ActBegun], bool], limit: int
) -> tuple[list[ActView], int | None]:
    """Return up to `limit` acts from an offset on, each once, and where the next page begins; None behind the last.

    The end of an act lies behind its begin; it is looked for in `ENDS_LOOKED_MAX` rows beyond the page.
    """
    begun: dict[str, ActBegun] = {}
    ended: dict[str, ActEnded] = {}
    following: int | None = None
    beyond = 0
    for offset, record in _records(log, start):
        if following is not None:
            beyond += 1
            if beyond > ENDS_LOOKED_MAX or begun.keys() <= ended.keys():
                break
        if isinstance(record, ActBegun) and wanted(record) and record.id not in begun:
            if len(begun) < limit:
                begun[record.id] = record
            elif following is None:
                following = offset
        elif isinstance(record, ActEnded) and record.id in begun:
            known = ended.get(record.id)
            if known is None or known.status < record.status:  # its own process knows better than one that settled it
                ended[record.id] = record
    return [ActView(one, ended.get(id_)) for id_, one in begun.items()], following


def read_refusals(
    log: PartitionLog, start: int, *, wanted: Callable[[RefusalCount], bool], limit: int
) -> tuple[list[RefusalCount], int | None]:
    """Return up to `limit` rows of refusals from an offset on, and where the next page begins; None behind the last."""
    found: dict[str, RefusalCount] = {}
    for offset, record in _records(log, start):
        if isinstance(record, RefusalCount) and wanted(record):
            if len(found) == limit:
                return list(found.values()), offset
            found[record.id] = record
    return list(found.values()), None


def _records(log: PartitionLog, start: int) -> Iterator[tuple[int, AuditRecord]]:
    at = max(start, log.min_offset)
    while at < log.end_offset:
        page = log.read(at, max_messages=_ROWS, max_bytes=_BYTES)
        if page.status is not FetchStatus.FOUND:  # retention took it meanwhile
            at = max(at + 1, page.min_offset)
            continue
        yield from zip(page.rows.column("offset").to_pylist(), audit_records_of(page.rows), strict=True)
        at = page.next_offset
