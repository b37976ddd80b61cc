"""The search: inputs made of a pool, and what counts as found.

found     an error that is not one of ours, a decoder that takes longer than SLOW_S, a process that dies
kept      an input whose outcome (the error's kind, code and field) is new, so that the pool grows towards what decoders
          tell apart
"""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from deltamq.mq.errors import DeltaMQError
from tests.fuzz.decoders import DECODERS
from tests.fuzz.mutation import mutated
from tests.fuzz.seeds import SEEDS

__all__ = ["CORPUS", "Found", "Search", "TooSlow", "corpus_of", "name_of", "pool_of"]

CORPUS: Final = Path(__file__).parent / "corpus"
#: No input of 64 KiB is worth as much: what takes longer does something again and again.
SLOW_S: Final = 10
_POOL_MAX: Final = 2_000
_NUMBER: Final = re.compile(r"\d+")


class TooSlow(Exception):
    """A decoder took longer than SLOW_S."""


class Found(NamedTuple):
    """An input on which a decoder failed, and how."""

    data: bytes
    error: BaseException


def corpus_of(decoder: str) -> list[Path]:
    """Return the files of a decoder's corpus: inputs on which it failed once."""
    return sorted((CORPUS / decoder).glob("*"))


def pool_of(decoder: str) -> list[bytes]:
    """Return what the search for a decoder begins with."""
    return [*SEEDS[decoder], *(one.read_bytes() for one in corpus_of(decoder))]


def name_of(data: bytes) -> str:
    """Return the name of a file of the corpus."""
    return hashlib.sha256(data).hexdigest()[:16]


class Search:
    """A search for inputs on which one decoder fails, reproducible by its seed."""

    def __init__(self, decoder: str, seed: int, pool: Sequence[bytes] = ()) -> None:
        self.decode = DECODERS[decoder]
        self._random = Random(f"{decoder} {seed}")
        self._pool = [*(pool or pool_of(decoder))]
        self._outcomes: set[str] = set()
        self.taken = 0

    def inputs(self) -> Iterator[bytes]:
        """Yield the pool, and then inputs made of it, without end."""
        yield from list(self._pool)
        while True:
            yield mutated(self._random, self._pool)

    def try_one(self, data: bytes) -> Found | None:
        """Return how the decoder fails on this input; None if it takes or refuses it."""
        try:
            with _limited(SLOW_S):
                self.decode(data)
            self.taken += 1
            outcome = "taken"
        except DeltaMQError as error:
            outcome = f"{type(error).__name__} {error.code} {_NUMBER.sub('0', error.field or '')[:40]}"
        except Exception as error:
            return Found(data, error)
        if outcome not in self._outcomes and len(self._pool) < _POOL_MAX:
            self._outcomes.add(outcome)
            self._pool.append(data)
        return None


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after some seconds; in the main thread of a process, which has the signals."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TooSlow(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
