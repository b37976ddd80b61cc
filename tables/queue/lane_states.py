"""The merged checkpoints of lanes, kept as columns after a service has started, until a call needs a lane.

Most rows of `state/pop_checkpoints` are about leases that have expired, and no call will ever name them. So a lane
keeps its rows as they were read, and creates objects only for checkpoints that may still be acknowledged; of the others
it only needs the offsets that must not be popped again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.queue.checkpoint import CheckpointKey, LaneKey
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.state.rows import states_of_rows
from deltamq.tables.state.schema import LANE_KEY

Ints = NDArray[np.int64]

_NOWHERE: Final[Ints] = np.empty(0, dtype=np.int64)
#: The columns that `LaneStates.live` needs of every row.
_NEEDED: Final = ["start_offset", "num", "diffs", "revive_time", "acked", "replaced", "done"]


class Live(NamedTuple):
    """What a lane needs of its stored checkpoints when it is opened."""

    #: Ranges of offsets `[low, high)` that stored checkpoints hold.
    covered: Sequence[tuple[int, int]]
    #: Checkpoints whose handles have not expired, even if they are void, and checkpoints that wait for revival.
    states: Sequence[CheckpointState]


class LaneStates(Sequence[CheckpointState]):
    """The remembered checkpoints of one lane, of all epochs; objects are created on access."""

    def __init__(
        self, rows: pa.Table | None = None, places: Ints = _NOWHERE, newer: Sequence[CheckpointState] = ()
    ) -> None:
        """Take the lane's checkpoints: the rows at `places` in `rows` (with `CHECKPOINT_COLUMNS`), and `newer` ones.

        `rows` are the rows of all lanes: sorting them by lane would copy a gigabyte of lists that no call needs.
        """
        self._rows = rows
        self._places = places
        self._newer = tuple(newer)

    def __len__(self) -> int:
        return len(self._places) + len(self._newer)

    @overload
    def __getitem__(self, index: int) -> CheckpointState: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CheckpointState]: ...

    def __getitem__(self, index: int | slice) -> CheckpointState | Sequence[CheckpointState]:
        return list(self)[index]

    def __iter__(self) -> Iterator[CheckpointState]:
        if self._rows is not None:
            yield from (state for _, state in states_of_rows(self._rows.take(pa.array(self._places))))
        yield from self._newer

    # Compared by content, so not usable as a key: a class that defines this has no hash.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaneStates) and list(self) == list(other)

    def live(self, epoch: int, committed: int, now_ms: int) -> Live:
        """Return what matters in `epoch` of the group, whose committed offset is `committed`."""
        newer = [state for state in self._newer if state.checkpoint is not None and state.checkpoint.pop.epoch == epoch]
        if self._rows is None:
            return Live((), newer)
        places = self._places
        places = places[self._rows.column("epoch").take(pa.array(places)).to_numpy() == epoch]
        rows = self._rows.select(_NEEDED).take(pa.array(places))
        start, high = _ints(rows, "start_offset"), _ends(rows)
        beyond = high > committed
        over = _ints(rows, "replaced") | _ints(rows, "done")
        is_open = (np.left_shift(1, _ints(rows, "num")) - 1) & ~(_ints(rows, "acked") | over) != 0
        alive = is_open | (_ints(rows, "revive_time") > now_ms * 1_000) & (over != 0)
        kept = self._rows.take(pa.array(places[alive])) if alive.any() else None
        states = [] if kept is None else [state for _, state in states_of_rows(kept)]
        return Live(_joined(start[beyond], high[beyond]), [*states, *newer])


def _ints(rows: pa.Table, name: str) -> Ints:
    """Return a column of numbers or times as integers, 0 for nulls."""
    column = rows.column(name).cast(pa.int64())
    values: Ints = pc.fill_null(column, 0).to_numpy()
    return values


def _ends(rows: pa.Table) -> Ints:
    """Return the offset behind the last message of each checkpoint."""
    ends = _ints(rows, "start_offset") + _ints(rows, "num")
    diffs = rows.column("diffs")
    if diffs.null_count < len(diffs):
        has = np.flatnonzero(diffs.is_valid().to_numpy())
        lists = diffs.drop_null().combine_chunks()
        lists = lists if isinstance(lists, pa.ListArray) else pa.concat_arrays(lists.chunks)
        last = lists.flatten().to_numpy()[np.cumsum(lists.value_lengths().to_numpy()) - 1]
        ends[has] = _ints(rows, "start_offset")[has] + last + 1
    return ends


def _joined(low: Ints, high: Ints) -> list[tuple[int, int]]:
    """Join overlapping and adjacent ranges, and return them in ascending order."""
    if not low.size:
        return []
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    first = np.flatnonzero(np.concatenate([[True], low[1:] > reach[:-1]]))
    last = np.append(first[1:], low.size) - 1
    return list(zip(low[first].tolist(), reach[last].tolist(), strict=True))


def lane_states(rows: pa.Table, newer: Mapping[CheckpointKey, CheckpointState]) -> dict[LaneKey, LaneStates]:
    """Return the states of merged `rows`, joined with `newer` ones, by lane; only states that have a checkpoint."""
    rows, joined = _joined_with(rows, newer)
    if rows.column("num").null_count:
        rows = rows.filter(rows.column("num").is_valid())
    added: dict[LaneKey, list[CheckpointState]] = {}
    for key, state in joined.items():
        if state.checkpoint is not None:
            added.setdefault(key.lane, []).append(state)
    merged = {lane: LaneStates(rows, places, added.pop(lane, ())) for lane, places in _by_lane(rows)}
    return merged | {lane: LaneStates(newer=states) for lane, states in added.items()}


def _joined_with(
    rows: pa.Table, newer: Mapping[CheckpointKey, CheckpointState]
) -> tuple[pa.Table, dict[CheckpointKey, CheckpointState]]:
    """Return the rows whose keys are not in `newer`, and `newer` joined with the states of the other rows."""
    joined = dict(newer)
    if not newer:
        return rows, joined
    starts = pa.array({key.start_offset for key in newer}, pa.int64())
    places = np.flatnonzero(pc.is_in(rows.column("start_offset"), value_set=starts).to_numpy())
    stays = np.ones(rows.num_rows, dtype=np.bool_)
    for place, (key, state) in zip(places.tolist(), states_of_rows(rows.take(pa.array(places))), strict=True):
        if key in newer:
            joined[key] = state.join(newer[key])
            stays[place] = False
    return rows.filter(pa.array(stays)), joined


def _by_lane(rows: pa.Table) -> Iterator[tuple[LaneKey, Ints]]:
    if not rows.num_rows:
        return
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in LANE_KEY:
        column = rows.column(name).combine_chunks().dictionary_encode()
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        first = int(places[0])
        yield LaneKey(*(rows.column(name)[first].as_py() for name in LANE_KEY)), places
