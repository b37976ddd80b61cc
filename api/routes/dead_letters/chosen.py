"""Which dead letters a request is about: by state, reason, topic, time or offsets, and page by page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.sending.letters import KEPT_STATES, LetterFailures, Letters, LettersWanted, some_letters
from deltamq.api.wire.fields import parse_time
from deltamq.mq.errors import Corrupt, Forbidden, NotFound, Refused
from deltamq.mq.limits import MIB, OFFSET_MAX
from deltamq.mq.names import broker_of
from deltamq.mq.queue.dead_letters import LetterState
from deltamq.mq.wire.stored import LetterFilter
from deltamq.tables.queue.dead_marks import LETTER_STATES

Int64s = NDArray[np.int64]

_PAGE_BYTES: Final = 16 * MIB
_OUT_OF_RANGE: Final = "offset_out_of_range"


@dataclass(slots=True)
class Chosen:
    """The dead letters of one partition that are asked for, by offset, ascending."""

    letters: Letters
    offsets: Int64s

    def in_state(self, state: LetterState) -> Int64s:
        """Return the offsets of those in one state."""
        found: Int64s = self.offsets[self.letters.states(self.offsets) == LETTER_STATES.index(state)]
        return found


class Page(NamedTuple):
    """The rows of a page, how many dead letters it covers, and where the next one begins: partition and offset."""

    rows: list[tuple[Letters, pa.Table]]
    taken: int
    next: tuple[str, int] | None


def letters_wanted(
    states: Collection[LetterState],
    *,
    reason: str | None,
    topic: str | None,
    from_time: str | None,
    may_read: Callable[[str], bool] | None = None,
) -> LettersWanted:
    """Return what a request asks for; refuses a time that is none."""
    from_us = None if from_time is None else parse_time(from_time, "from_time")
    return LettersWanted(states=states, reason=reason, topic=topic, from_us=from_us, may_read=may_read)


def named(letters: Mapping[str, Letters | None], partition: str, field: str) -> Letters | None:
    """Return the dead letters of a partition that a request names in `field`; None if there are none yet."""
    if partition not in letters:
        raise NotFound(
            f"{field}: there are no dead letters in {partition!r}, but in {', '.join(letters)}",
            code="partition_not_found",
            field=field,
        )
    return letters[partition]


# Pages ----------------------------------------------------------------------------------------------------------------


def begin_at(chosen: Mapping[str, Chosen], place: str) -> None:
    """Drop what comes before a place, as `cursor_to` writes it."""
    broker, _, text = place.rpartition(":")
    if not broker or not text.isascii() or not text.isdigit() or int(text) > OFFSET_MAX:
        raise Refused("cursor: send the cursor of the page before as it is", field="cursor")
    for name, one in chosen.items():
        if broker_of(name) < broker:
            one.offsets = one.offsets[:0]
        elif broker_of(name) == broker:
            one.offsets = one.offsets[np.searchsorted(one.offsets, int(text)) :]


def cursor_to(partition: str, offset: int) -> str:
    """Return the cursor of a page that begins there; it holds whatever is sent back or deleted meanwhile."""
    return f"{broker_of(partition)}:{offset}"


def skip(chosen: Mapping[str, Chosen], count: int) -> None:
    """Drop the first `count`."""
    for one in chosen.values():
        here = min(count, len(one.offsets))
        one.offsets = one.offsets[here:]
        count -= here


def page_of(chosen: Mapping[str, Chosen], limit: int) -> Page:
    """Return at most `limit` rows; what retention took meanwhile is left out. Blocks."""
    found: list[tuple[Letters, pa.Table]] = []
    room, taken = _PAGE_BYTES, 0
    for name, one in chosen.items():
        left = one.offsets
        while len(left):
            if taken >= limit or (room <= 0 and found):
                return Page(found, taken, (name, int(left[0])))
            picked, count = some_letters(one.letters.log, left[: limit - taken], max(1, room))
            for offset, error in picked.unreadable.items():
                raise Corrupt(f"offset {offset} of {name} cannot be read: {error}", code="dead_letter_corrupt")
            found.append((one.letters, pa.Table.from_batches([picked.rows])))
            left = left[count:]
            taken += count
            room -= picked.rows.nbytes
    return Page(found, taken, None)


# Requests that name offsets, or a filter ------------------------------------------------------------------------------


def chosen_by(
    letters: Mapping[str, Letters | None],
    asked: LetterFilter,
    failures: LetterFailures,
    may_read: Callable[[str], bool] | None = None,
) -> list[Chosen]:
    """Return the dead letters that a request is about; those that it names and that are not there are `failures`.

    Without a state these are all that it names, or else all that are not deleted. Those that the caller `may_read` not
    are left out, or `failures` if they are named. Blocks.

    Raises
    ------
    NotFound
        A partition is named in which there are no dead letters.
    """
    states: Collection[LetterState] = KEPT_STATES if asked.offsets is None else LETTER_STATES
    wanted = letters_wanted(
        states if asked.state is None else (asked.state,),
        reason=asked.reason,
        topic=asked.topic,
        from_time=asked.from_time,
        may_read=may_read,
    )
    if asked.offsets is None:
        return [Chosen(one, one.offsets(wanted)) for one in letters.values() if one is not None]
    places = {name: named(letters, name, f"offsets.{name}") for name in asked.offsets}
    found = []
    for partition, one in places.items():
        offsets = np.unique(np.array(asked.offsets[partition], dtype=np.int64))
        here = np.zeros(len(offsets), dtype=bool) if one is None else one.here(offsets)
        failures.add(partition, offsets[~here], _OUT_OF_RANGE)
        if one is None:
            continue
        offsets = offsets[here]
        if may_read is not None:
            readable = np.isin(offsets, one.offsets(LettersWanted(states=LETTER_STATES, may_read=may_read)))
            failures.add(partition, offsets[~readable], Forbidden.code)
        found.append(Chosen(one, offsets[np.isin(offsets, one.offsets(wanted))]))
    return found
