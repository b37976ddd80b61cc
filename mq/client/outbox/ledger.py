"""The relay's book in the database: which request of each lane is under way, and what became of it (SPEC SEND-7).

    claim                    send                     settle
    lane: [4, 5, 9]  ──►  request (id, seq)  ──►  rows 4, 5, 9 deleted, claim closed, seq + 1      one commit each
         committed             │
                               └── a crash here: the claim is still open, and the next relay of the lane sends the same
                                   rows under the same id and seq, so the service stores them once

A lane has one request under way, so its rows are stored in the order of their numbers. A claim lists numbers of rows:
rows of a transaction that commits later, even with lower numbers, are in a later claim. Nothing is ever skipped.

A lease names the relay that has a lane, and until when. It only keeps relays from doing the same work twice: when a
lease ends too early (a process slept), two relays send the same request, and only the one that still has the lane may
settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from deltamq.mq.client.http.retries import certainly_not_applied
from deltamq.mq.client.messages.message import Message, check_message
from deltamq.mq.client.outbox.outbox import Row, message_of, topic_of
from deltamq.mq.client.outbox.session import Session
from deltamq.mq.client.outbox.statements import Tables
from deltamq.mq.errors import DeltaMQError, Refused, Unknown

#: The request may be stored, and a repeated one would not be recognised.
OUTCOME_UNKNOWN: Final = "outbox_outcome_unknown"
#: Maximum number of lanes that a pass looks at, in one transaction, and of held-back lanes among them. Only a person
#: ends that state, so these lanes need not be in every pass, and a look at one reads all its messages.
LOOKS_MAX: Final = 1_024
HELD_BACK_LOOKS_MAX: Final = 64
#: Longest detail of an error that is stored, in characters.
_DETAIL_MAX = 1_000


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A lane's request under way: its rows in order, and its name.

    `listed` is the stored list of its rows' numbers. `first_attempt_ms` is the time before which certainly
    nothing of it was stored. `inherited`: an attempt may have been applied already. `missing` rows were deleted or
    changed by hand: it cannot be repeated.
    """

    lane: str
    producer_id: str
    producer_seq: int
    rows: tuple[Row, ...]
    listed: str
    first_attempt_ms: int
    inherited: bool
    failures: int
    missing: int = 0

    @property
    def topic(self) -> str:
        """The topic of all its rows."""
        return topic_of(self.lane)

    @property
    def ids(self) -> list[int]:
        """The numbers of its rows."""
        return [row.id for row in self.rows]

    @property
    def messages(self) -> list[Message]:
        """The messages of its rows."""
        return [row.message for row in self.rows]


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic that were set aside for the same reason, by the numbers of their rows."""

    topic: str
    ids: tuple[int, ...]
    code: str
    detail: str


class LaneLost(Exception):  # an outcome and no failure: another relay goes on with the lane
    """Another relay has taken the lane over: this one settles nothing of it."""


class ClaimLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest request, and what one pass may claim."""

    messages_max: int
    bytes_max: int
    lanes_max: int


class _Lane(msgspec.Struct, frozen=True):
    lane: str
    producer_id: str
    producer_seq: int
    claim: str | None
    claimed_ms: int
    failures: int
    holder: str


class Ledger:
    """The book of one relay, which is called `holder`."""

    def __init__(
        self,
        session: Session,
        tables: Tables,
        *,
        holder: str,
        bounds: ClaimLimits,
        strict: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._session = session
        self._tables = tables
        self._holder = holder
        self._bounds = bounds
        self._strict = strict
        self._new_id = new_id
        #: Rows that were set aside in this transaction, or are committed and not reported yet.
        self._aside: list[SetAside] = []
        #: Lanes whose producer id this relay made or has seen in use. A database that was restored from a copy has
        #: sequences that the service knows for other messages: so a new relay begins new numbers.
        self._numbered: set[str] = set()
        #: The latest request of a lane that this relay claimed, while no attempt may have stored it.
        self._certain: dict[str, tuple[str, int]] = {}
        #: Largest number of messages in the next request of a lane of which a larger one was refused.
        self._narrowed: dict[str, int] = {}
        #: When each lane was looked at last, in passes: those that waited longest come first.
        self._turns: dict[str, int] = {}
        self._passes = 0
        #: Lanes whose messages all waited behind others that are set aside, when they were looked at last (`strict`).
        self._held_back: set[str] = set()
        #: Number of lanes that the latest pass left to the next one, without held-back ones.
        self.lanes_left = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one transaction; what it sets aside is reported only if its commit succeeds."""
        try:
            with self._session.transaction():
                yield
        except BaseException:
            # A failed commit may have happened: leaving it out is better than reporting what never happened.
            self._aside.clear()
            raise

    # Claiming ---------------------------------------------------------------------------------------------------

    def claims(self, now_ms: int, lease_until_ms: int) -> list[Claim]:
        """Claim the next request of lanes that have messages, in one transaction; open claims are repeated."""
        wanted = self._due(now_ms)
        self._held_back &= wanted
        self.lanes_left = 0
        if not wanted:
            return []
        claims: list[Claim] = []
        looked = 0
        with self.transaction():
            dialect = self._session.dialect
            lanes = [_Lane(*row) for row in self._read_lanes(now_ms, dialect.lock)]
            in_turn = self._in_turn([lane for lane in lanes if lane.lane in wanted])
            for lane in in_turn[:LOOKS_MAX]:
                if len(claims) == self._bounds.lanes_max:
                    break
                looked += 1
                claim = self._open(lane) if lane.claim is not None else self._new(lane, now_ms)
                if claim is not None:
                    self._note(claim, lease_until_ms)
                    claims.append(claim)
        self._passes += 1
        # Also lanes without a claim: they would come first for ever, and the others never.
        self._turns.update((lane.lane, self._passes) for lane in in_turn[:looked])
        self.lanes_left = sum(not self._is_held_back(lane) for lane in in_turn[looked:])
        for claim in claims:
            if not claim.inherited:
                self._numbered.add(claim.lane)
                self._certain[claim.lane] = (claim.producer_id, claim.producer_seq)
        return claims

    def _due(self, now_ms: int) -> set[str]:
        """Return the lanes with messages that this relay may take; an idle relay only reads, and locks nothing."""
        with self._session.transaction(reads_only=True):
            waiting = {str(lane) for (lane,) in self._session.rows(self._tables.lanes_with_messages)}
            if not waiting:
                return waiting
            known = {str(lane) for (lane,) in self._session.rows(self._tables.known_lanes)}
            free = {str(row[0]) for row in self._read_lanes(now_ms)}
        if not waiting <= known:
            with self._session.transaction():
                for lane in sorted(waiting - known):
                    self._session.change(self._tables.add_lane, lane, self._new_id())
        return waiting - known | waiting & free

    def _read_lanes(self, now_ms: int, lock: str = "") -> list[tuple[Any, ...]]:
        return self._session.rows(self._tables.read_lanes(lock), now_ms, now_ms, self._holder)

    def _in_turn(self, lanes: Collection[_Lane]) -> list[_Lane]:
        """Return the lanes in the order of a pass: the longest ignored first, and not too many held-back ones."""
        ordered = sorted(lanes, key=lambda lane: (self._turns.get(lane.lane, 0), lane.lane))
        held_back = [lane for lane in ordered if self._is_held_back(lane)]
        later = {lane.lane for lane in held_back[HELD_BACK_LOOKS_MAX:]}
        return [lane for lane in ordered if lane.lane not in later]

    def _is_held_back(self, lane: _Lane) -> bool:
        return lane.claim is None and lane.lane in self._held_back

    def look_again(self) -> None:
        """Let the next passes look at all lanes, also at many that were held back."""
        self._held_back.clear()

    def _open(self, lane: _Lane) -> Claim:
        """Return the request that is under way already, with the rows that it listed."""
        ids = msgspec.json.decode(lane.claim or "[]", type=list[int])
        rows = []
        for number, *columns in self._read(ids):
            with suppress(Refused):
                rows.append(Row(int(number), message_of(columns)))
        return Claim(
            lane=lane.lane,
            producer_id=lane.producer_id,
            producer_seq=lane.producer_seq,
            rows=tuple(rows),
            listed=lane.claim or "[]",
            first_attempt_ms=lane.claimed_ms,
            inherited=self._certain.get(lane.lane) != (lane.producer_id, lane.producer_seq),
            failures=lane.failures,
            missing=len(ids) - len(rows),
        )

    def _new(self, lane: _Lane, now_ms: int) -> Claim | None:
        """Return a request of the lane's first messages; None if there are none, or none that can be sent."""
        limit = min(self._narrowed.get(lane.lane, self._bounds.messages_max), self._bounds.messages_max)
        first = self._session.rows(self._tables.next_messages(strict=self._strict), lane.lane, limit)
        if first:
            self._held_back.discard(lane.lane)
        else:
            self._held_back.add(lane.lane)
        rows = self._readable(lane.lane, fitting(first, self._bounds.bytes_max), now_ms)
        if not rows:
            return None
        numbered = lane.lane in self._numbered
        return Claim(
            lane=lane.lane,
            producer_id=lane.producer_id if numbered else self._new_id(),
            producer_seq=lane.producer_seq if numbered else 0,
            rows=tuple(rows),
            listed=msgspec.json.encode([row.id for row in rows]).decode(),
            first_attempt_ms=now_ms,
            inherited=False,
            failures=0,
        )

    def _readable(self, lane: str, ids: Sequence[int], now_ms: int) -> list[Row]:
        """Read these rows; those that hold no message, because another program wrote them, are set aside.

        With `strict`, later rows of such a row's key are left out: the query of the next claim lets them wait.
        """
        rows = []
        held_back: set[tuple[object, object]] = set()
        for number, *columns in self._read(ids):
            topic, key = columns[:2]
            if (topic, key) in held_back:
                continue
            try:
                message = message_of(columns)
                check_message(message)
            except Refused as error:
                self._set_aside(lane, [int(number)], error, now_ms)
                if self._strict and key is not None:
                    held_back.add((topic, key))
            else:
                rows.append(Row(int(number), message))
        return rows

    def _read(self, ids: Sequence[int]) -> list[tuple[Any, ...]]:
        return self._session.rows(self._tables.read(ids)) if ids else []

    def _note(self, claim: Claim, lease_until_ms: int) -> None:
        self._session.change(
            self._tables.claim,
            claim.producer_id,
            claim.producer_seq,
            claim.listed,
            claim.first_attempt_ms,
            self._holder,
            lease_until_ms,
            claim.lane,
        )

    # Settling ---------------------------------------------------------------------------------------------------

    def stored(self, claim: Claim) -> None:
        """Delete the rows of a claim whose request is stored; raises `LaneLost`."""
        self._close(claim)
        self._session.change(self._tables.delete(claim.ids))
        self._grow(claim)

    def divided(self, claim: Claim) -> None:
        """Close a refused claim; the lane's next one takes half as many rows. Raises `LaneLost`."""
        assert len(claim.rows) > 1, "one message cannot be divided"
        self._close(claim)
        self._narrowed[claim.lane] = len(claim.rows) // 2

    def set_aside(self, claim: Claim, error: DeltaMQError, now_ms: int) -> None:
        """Set the rows of a claim aside, with the error, and let the lane go on; raises `LaneLost`."""
        self._close(claim)
        if claim.rows:
            self._set_aside(claim.lane, claim.ids, error, now_ms)
        self._grow(claim)

    def repeat(self, claim: Claim, error: DeltaMQError, *, now_ms: int, wait_ms: int) -> None:
        """Keep a claim, whose request is sent again after `wait_ms`; raises `LaneLost`."""
        certain = not claim.inherited and certainly_not_applied(error)
        if not certain:
            # An attempt may have been applied: the outcome of another proves nothing about it.
            self._certain.pop(claim.lane, None)
        first_attempt_ms = now_ms if certain else claim.first_attempt_ms
        detail = error.detail[:_DETAIL_MAX]
        self._settle(self._tables.keep_claim, claim, now_ms + wait_ms, error.code, detail, first_attempt_ms)

    def take_set_aside(self) -> list[SetAside]:
        """Return what was set aside since the last call; called after the commit, so that nothing is reported twice."""
        taken, self._aside = self._aside, []
        return taken

    def release(self) -> None:
        """Give up all leases, in a transaction of its own: other relays need not wait for their end."""
        with self._session.transaction():
            self._session.change(self._tables.release, self._holder)

    def waiting(self) -> bool:
        """Return whether any message is not sent and not set aside."""
        with self._session.transaction(reads_only=True):
            return bool(self._session.rows(self._tables.lanes_with_messages))

    def _close(self, claim: Claim) -> None:
        self._settle(self._tables.close_claim, claim)
        self._certain.pop(claim.lane, None)

    def _settle(self, statement: str, claim: Claim, *values: object) -> None:
        name = (claim.lane, self._holder, claim.producer_id, claim.producer_seq)
        if self._session.change(statement, *values, *name) != 1:
            raise LaneLost(claim.lane)

    def _grow(self, claim: Claim) -> None:
        """After a settled request of a narrowed lane, let the next one have twice as many messages."""
        if claim.lane in self._narrowed:
            self._narrowed[claim.lane] = max(2, len(claim.rows) * 2)
            if self._narrowed[claim.lane] >= self._bounds.messages_max:
                del self._narrowed[claim.lane]

    def _set_aside(self, lane: str, ids: Sequence[int], error: DeltaMQError, now_ms: int) -> None:
        self._session.change(self._tables.set_aside(ids), error.code, error.detail[:_DETAIL_MAX], now_ms)
        self._aside.append(SetAside(topic=topic_of(lane), ids=tuple(ids), code=error.code, detail=error.detail))


def fitting(first: Iterable[Sequence[Any]], bytes_max: int) -> list[int]:
    """Return the first rows that may share a request: of one named partition or none, and not too large together.

    `first` are (id, partition, bytes) in order; the first row is always taken.
    """
    ids: list[int] = []
    named: object = None
    left = bytes_max
    for number, partition, size in first:
        left -= int(size)
        if ids and (partition != named or left < 0):
            break
        named = partition
        ids.append(int(number))
    return ids


def not_repeatable(claim: Claim) -> Unknown | None:
    """Return the error of a claim that lacks rows: without them the service would not recognise its request."""
    if not claim.missing:
        return None
    return Unknown(
        f"{claim.missing} messages of the request under way were deleted by hand: it may be stored, and cannot be "
        "repeated without them",
        code=OUTCOME_UNKNOWN,
    )
