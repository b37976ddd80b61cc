"""The contents of a batch in a few bytes: a repeat of its identity must have the same (SPEC SPARK-17).

A batch that runs again has its rows in another order, in other tasks and perhaps in other partitions. So its contents
are a sum over the rows of each topic: their number, and 64 bits of their keys, tags and bodies, which REST
compares, too (SEND-10). The sum shows accidents, such as a checkpoint that was put back; it is no signature.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.errors import Conflict, Unavailable

_COMPARED: Final = ("key", "tag", "body")
_NULL: Final = 1 << 32
_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SUM_MASK: Final = (1 << 64) - 1
_REMEDY: Final = (
    "If a checkpoint was put back, begin a new one; if a batch's rows differ each time (uuid(), rand()), option"
    " repeats=ignore keeps the first rows"
)


class Content(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a batch for one topic, whose id is `life`."""

    life: str
    rows: int
    total: int


Contents = dict[str, Content]


def content_sum(rows: pa.RecordBatch) -> int:
    """Return the sum over rows of 64 bits of their key, tag and body: the order of rows does not matter."""
    mixed = np.zeros(rows.num_rows, np.uint64)
    for factor, name in zip(_FACTORS, _COMPARED, strict=True):
        if rows.schema.get_field_index(name) >= 0:
            mixed += (_checksums(rows.column(name)) + np.uint64(1)) * factor
    for shift, mix in zip((np.uint64(30), np.uint64(27)), _MIX, strict=True):
        mixed = (mixed ^ (mixed >> shift)) * mix
    return int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))


def _checksums(column: pa.Array) -> NDArray[np.uint64]:
    values = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    checksums = np.fromiter(map(zlib.crc32, pc.fill_null(values, b"").to_pylist()), np.uint64, len(values))
    if values.null_count:
        checksums[np.asarray(values.is_null())] = _NULL
    return checksums


def joined(parts: Iterable[tuple[str, Content]]) -> Contents:
    """Return the contents of a batch, from its parts.

    Raises
    ------
    Unavailable
        A topic was deleted and made again between two parts: the batch may run again.
    """
    contents: Contents = {}
    for topic, part in parts:
        known = contents.get(topic)
        if known is not None and known.life != part.life:
            raise _made_again(topic)
        rows, total = (0, 0) if known is None else (known.rows, known.total)
        contents[topic] = Content(part.life, rows + part.rows, (total + part.total) & _SUM_MASK)
    return contents


def check_same(what: str, first: Mapping[str, Content], now: Mapping[str, Content]) -> None:
    """Raise unless a repeat has the contents of the first run; a topic may have been made again since.

    Raises
    ------
    Conflict
        `producer_sequence_reused`, as for a producer's number that is used for other messages; the error names the
        topic.
    """
    for topic in sorted(first.keys() | now.keys()):
        before, after = first.get(topic), now.get(topic)
        if before is None or after is None or (before.rows, before.total) != (after.rows, after.total):
            first_rows, rows = (0 if content is None else content.rows for content in (before, after))
            counts = f"{rows} rows instead of {first_rows}" if rows != first_rows else "other keys, tags or bodies"
            detail = f"{what} was written before, and now brings {counts} for topic {topic}: nothing of it is stored"
            raise Conflict(f"{detail}. {_REMEDY}", code="producer_sequence_reused", field="batchId")


def check_done(what: str, last: int, first: Contents | None, now: Contents) -> None:
    """Raise `Conflict` unless a batch up to the last done one has the contents of its first run, and they are known."""
    if first is not None:
        check_same(what, first, now)
    elif now:
        detail = f"{what} comes after batch {last}, and its first contents are not known: nothing of it is stored"
        raise Conflict(f"{detail}. {_REMEDY}", code="producer_sequence_reused", field="batchId")


def check_lives(contents: Contents, ids: Mapping[str, str]) -> None:
    """Raise unless each topic still has the id by which its rows were staged; a topic that is gone is made again.

    Raises
    ------
    Unavailable
        `topic_made_again`: a repeat would find its identity unused in the topic's new life, and store the rows twice.
    """
    for topic, content in contents.items():
        if ids.get(topic, content.life) != content.life:
            raise _made_again(topic)


def in_lives_of(first: Contents, now: Contents) -> Contents:
    """Return the first run's contents with the topics' present lives: an unfinished batch is appended to these."""
    lives = {topic: content.life for topic, content in now.items()}
    return {
        topic: Content(lives.get(topic, content.life), content.rows, content.total) for topic, content in first.items()
    }


def _made_again(topic: str) -> Unavailable:
    detail = f"topic {topic} was deleted and made again while this batch was staged: run it again"
    return Unavailable(detail, code="topic_made_again")


def topics_made_again(first: Mapping[str, Content], now: Mapping[str, Content]) -> set[str]:
    """Return the topics that were deleted and made again since the first run: their new lives do not have its rows."""
    return {topic for topic, content in now.items() if topic in first and first[topic].life != content.life}
