"""Bodies that are made of values, and the version that is the topic's when they are committed (SPEC TYPE-52)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltamq.api.log.parts import PendingRequest, RequestPart
from deltamq.api.sending.typed_bodies import typed_body
from deltamq.api.wire.rows import Decoded, Rows
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush
from deltamq.tables.typed.codec import Codec
from deltamq.tables.typed_row import VALUE
from tests.api.log.test_lane import Bench
from tests.rows import REF
from tests.typed import codec, record

FIRST = record(("id", "long"), ("count", "long"))
#: Reads bodies of the first version wrongly.
SECOND = record(("count", "long"), ("id", "long"))
SENT = {"id": 1, "count": 2}


class Commits(Bench):
    """Commits rows to a log of a topic whose codec is given."""

    def __init__(self, log: PartitionLog, codec: Codec) -> None:
        super().__init__(log)
        self._codec = codec

    def codec(self) -> Any:
        return self._codec


def _rows(codec: Codec, *bodies: bytes, **value: Any) -> Rows:
    raw = [msgspec.Raw(msgspec.json.encode(value))] if value else None
    body = Decoded(Rows(count=1, nbytes=100, body=list(bodies) or [b""]), None, values=raw)
    typed_body(codec, body)
    assert isinstance(body.rows, Rows)
    return body.rows


@pytest.mark.parametrize("on_invalid", ["quarantine", "rescue", "reject"])
def test_type_52_a_value_is_stored_as_it_was_sent_whatever_version_comes_before_its_commit(
    tmp_path: Path, on_invalid: Any
) -> None:
    old, new = (codec("avro", *texts, on_invalid=on_invalid) for texts in ((FIRST,), (FIRST, SECOND)))
    body: bytes = new.encode([SENT])[0].as_py()
    # The first goes at once; the others meanwhile, in one commit.
    sent = [_rows(new, body), _rows(old, **SENT), _rows(new, body)]
    warehouse = Warehouse.open(str(tmp_path / "w"))
    log = warehouse.create(REF)

    async def commit() -> None:
        commits = Commits(log, new)
        pending = PendingRequest(len(sent), commits.loop)
        for rows in sent:
            commits.queue.put(RequestPart(rows, pending, Flush.SYNC))
        await pending.wait()
        await commits.queue.finish()
        commits.lane.stop()

    asyncio.run(commit())
    stored = log.read(0, max_messages=3, max_bytes=1 << 20, columns=("offset", "key", "body", VALUE)).rows
    assert log.version == 2
    assert stored.column(VALUE).to_pylist() == [SENT] * 3
    warehouse.close()
