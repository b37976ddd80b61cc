"""Reading all messages of a partition from an offset on, page by page: internal logs are folded this way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from deltamq.mq.errors import NotFound
from deltamq.mq.limits import MIB
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.log.log import PartitionLog

_PAGE_BYTES: Final = 16 * MIB


class NotStored(NotFound):
    """The offset is before the first one that the partition still holds, or behind its end."""

    code = "offset_out_of_range"


def pages(log: PartitionLog, offset: int, columns: Sequence[str] | None = None) -> Iterator[Fetched]:
    """Yield all messages from `offset` to the end that `log` knows now; `log.refresh()` before includes other writers'.

    With `columns`, rows have only these.

    Raises
    ------
    NotStored
        The partition no longer holds `offset`, or ends before it.
    """
    while True:
        page = log.read(offset, max_messages=log.bounds.page_messages, max_bytes=_PAGE_BYTES, columns=columns)
        if page.status is FetchStatus.NO_NEW_MESSAGE:
            return
        if page.status is not FetchStatus.FOUND:
            raise NotStored(
                f"{log.ref.name} holds offsets {page.min_offset} to {page.max_offset}, not {offset}", field="offset"
            )
        yield page
        offset = page.next_offset
