"""The claims on the checkpoints of streaming queries: one checkpoint has one application at a time (SPEC SPARK-22).

    jobs/streams/<stream>/00000000000000000007-<run>.json   {"claimant": {"application": ..., ...}, "position": ...}

The run that claimed last goes on; an earlier one ends at its next look, with an error that names the later one. This
needs no clock and no lease: a query that is started again after a kill runs at once. A look is one listing.

Spark has a rule of its own: the first run that plans a batch goes on, and a second one fails. So a run that
has planned a batch since the position from which the later one began goes on, and the later one fails at that batch.

On a local disk a run also locks its claim, so that others see whether it has ended, however it ended. A batch that an
earlier run may still process is not begun beside it there. An object store has no locks, so the earlier run ends
after that batch.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
import uuid
import weakref
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self

import msgspec

from deltamq.jobs.tasks.warehouse_files import delete_unchanged
from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, Refused, Unavailable
from deltamq.mq.names import encode_path
from deltamq.mq.streams import CLAIMS_KEPT, Claim, claim_that_counts
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import FileMissing, Store

log = logging.getLogger("deltamq.jobs.stream")

FOLDER: Final = "jobs/streams"
#: Milliseconds between two looks of a query that has nothing to read, and where each look is a request.
_IDLE_LOOK_MS: Final = 1_000
_REMOTE_IDLE_LOOK_MS: Final = 5_000
#: Seconds for which a batch waits for the end of an earlier run that may process the same batch.
_EARLIER_S: Final = 600.0
_WAIT_S: Final = 0.05
#: Time after which the claims of a stream are removed if none was made since; a run that goes on claims again.
_FORGOTTEN_MS: Final = 30 * 86_400_000


class CheckpointTaken(Conflict):
    """Another application goes on from this query's checkpoint."""

    code = "checkpoint_taken"


class Position(Protocol):
    """The point in its checkpoint from which a query goes on: the offsets of a source, or the number of a batch."""

    @property
    def stream(self) -> str:
        """The same name for all runs from one checkpoint; empty if unknown."""

    def is_before(self, other: Self) -> bool:
        """Return whether a run at this position may reach `other` later."""

    def to_json(self) -> dict[str, object]:
        """Return the stored form."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the stored form."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The application that runs a query, and since when; enough for people to find it."""

    #: Spark's id of the application, or of the session of Spark Connect.
    application: str = ""
    host: str = ""
    pid: int = 0
    since_ms: int = 0

    @classmethod
    def this(cls, application: str = "") -> Claimant:
        """Return the claimant for this process."""
        return cls(application=application, host=socket.gethostname(), pid=os.getpid())

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        process = f"host {self.host}, process {self.pid}, since {since}"
        return f"application {self.application} ({process})" if self.application else f"an application ({process})"


class _Made(msgspec.Struct, frozen=True):
    claimant: Claimant
    #: The position of the run when it made the claim.
    position: dict[str, Any]

    def is_before(self, at: Position) -> bool:
        try:
            return type(at).from_json(self.position).is_before(at)
        except (Corrupt, Refused):
            return False


_made: Final = msgspec.json.Decoder(_Made)
_UNKNOWN: Final = _Made(Claimant(host="unknown"), {})


class CheckpointClaims:
    """The claims of one run on the checkpoints that it goes on from; for one thread."""

    def __init__(self, store: Store, claimant: Claimant, *, clock: Clock = SYSTEM_CLOCK, run: str = "") -> None:
        self._store = store
        self._claimant = claimant
        self._clock = clock
        self._run = run or uuid.uuid4().hex
        self._idle_look_ms = _IDLE_LOOK_MS if store.cheap_look else _REMOTE_IDLE_LOOK_MS
        self._looked_ms: dict[str, int] = {}
        self._claimed: set[str] = set()
        #: Open files, whose locks end with the process at the latest.
        self._locks: dict[str, int] = {}
        self._end = weakref.finalize(self, _close, self._locks)

    def check(self, at: Position, *, idle: bool = False) -> None:
        """Make the claim, or check that it still counts.

        Parameters
        ----------
        at
            The position from which the run goes on.
        idle
            The query has nothing to read: a look once a second is enough, every five seconds where it is a request.

        Raises
        ------
        CheckpointTaken
            Another run has claimed the checkpoint since.
        """
        stream, now_ms = at.stream, self._clock.boot_ms()
        if not stream or (idle and now_ms - self._looked_ms.get(stream, -self._idle_look_ms) < self._idle_look_ms):
            return
        self._looked_ms[stream] = now_ms
        claims = self._claims(stream)
        if any(claim.run == self._run for claim in claims):
            self._claimed.add(stream)
        counts = claim_that_counts(claims, self._run, claimed=stream in self._claimed)
        if counts.run != self._run:
            made = self._read(stream, counts)
            if stream not in self._claimed or not made.is_before(at):
                raise _taken(made.claimant)
            counts = Claim(counts.number + 1, self._run)
        if counts in claims or not self._make(at, counts):
            return
        claims = self._claims(stream)
        if claims and claims[-1].run != self._run:
            raise _taken(self._read(stream, claims[-1]).claimant)
        for old in claims[:-CLAIMS_KEPT]:
            self._store.delete(_key(stream, old))

    def begin(self, at: Position) -> None:
        """Let a batch that ends at `at` begin. A batch before this run's first look is a repetition.

        An earlier run may still process it, and its end is awaited where locks show it.

        Raises
        ------
        CheckpointTaken
            Another run has claimed the checkpoint since.
        Unavailable
            `checkpoint_busy`: an earlier run goes on for too long.
        """
        if at.stream in self._claimed:
            return  # the look at the plan of the batch was a moment ago
        self.check(at)
        if not self._locks:
            return
        until_s = time.monotonic() + _EARLIER_S
        for claim in self._claims(at.stream):
            while claim.run != self._run and self._lives(at.stream, claim):
                self.check(at, idle=True)
                if time.monotonic() >= until_s:
                    raise Unavailable(
                        f"{self._read(at.stream, claim).claimant} still runs the batch that this query would repeat; "
                        "it stops after that batch: start this query again then, or kill the other application",
                        code="checkpoint_busy",
                        field="checkpointLocation",
                    )
                time.sleep(_WAIT_S)

    def close(self) -> None:
        """Let others see that this run has ended; its claims stay."""
        self._end()

    def _claims(self, stream: str) -> list[Claim]:
        names = self._store.names(_folder(stream))
        return sorted(claim for name in names if (claim := Claim.of(name)) is not None)

    def _make(self, at: Position, claim: Claim) -> bool:
        """False: nothing can be stored here. A query may have the right to read only."""
        since = msgspec.structs.replace(self._claimant, since_ms=self._clock.wall_us() // 1_000)
        stream, key = at.stream, _key(at.stream, claim)
        try:
            self._store.put_if_absent(key, msgspec.json.encode(_Made(since, at.to_json())), durable=False)
        except (DeltaMQError, OSError) as error:
            if claim not in self._claims(stream):
                log.warning("event=checkpoint_not_guarded stream=%s detail=%r", stream, str(error))
                return False
        self._claimed.add(stream)
        if isinstance(self._store, LocalStore):
            with contextlib.suppress(OSError):  # a file system without locks is like an object store
                self._locks[key] = _locked(self._store.uri(key), fcntl.LOCK_EX)
        return True

    def _lives(self, stream: str, claim: Claim) -> bool:
        try:
            os.close(_locked(self._store.uri(_key(stream, claim)), fcntl.LOCK_SH))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _read(self, stream: str, claim: Claim) -> _Made:
        try:
            return _made.decode(bytes(self._store.read(_key(stream, claim))))
        except (FileMissing, msgspec.DecodeError):
            return _UNKNOWN


def forget_claims(store: Store, now_ms: int) -> None:
    """Remove the claims of streams without a new run for a month."""
    delete_unchanged(store, FOLDER, now_ms - _FORGOTTEN_MS)


def _taken(claimant: Claimant) -> CheckpointTaken:
    return CheckpointTaken(
        f"this query's checkpoint was taken over by {claimant}; one checkpoint has one application at a time, and the "
        "later one goes on. To go on here instead, stop that one and start this again; a second query needs a "
        "checkpointLocation of its own",
        field="checkpointLocation",
    )


def _key(stream: str, claim: Claim) -> str:
    return f"{_folder(stream)}/{claim.name}"


def _folder(stream: str) -> str:
    return f"{FOLDER}/{encode_path(stream)}"


def _locked(path: str, kind: int) -> int:
    """Raise `BlockingIOError` if another process has locked the file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _close(locks: dict[str, int]) -> None:
    while locks:
        os.close(locks.popitem()[1])
