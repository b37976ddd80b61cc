"""Which run of a streaming query has the query's checkpoint: the one that claimed it last (SPEC SPARK-22).

Claims are numbered, and only ever added. So which one counts is the same for all who look, whenever they look, and
needs no clock: a run that was killed keeps nobody waiting, and one that slept finds that it is no longer its turn.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

#: Claims that are kept for each checkpoint.
CLAIMS_KEPT: Final = 16
_DIGITS: Final = 20
_SUFFIX: Final = ".json"


class Claim(NamedTuple):
    """One run's claim; the larger one counts, also of two with one number."""

    number: int
    run: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.number:0{_DIGITS}d}-{self.run}{_SUFFIX}"

    @classmethod
    def of(cls, name: str) -> Claim | None:
        """Return the claim of a file's name; None for another file."""
        number, dash, run = name.removesuffix(_SUFFIX).partition("-")
        if not name.endswith(_SUFFIX) or not dash or len(number) != _DIGITS or not number.isdecimal():
            return None
        return cls(int(number), run)


def claim_that_counts(there: Collection[Claim], run: str, *, claimed: bool) -> Claim:
    """Return the claim that counts. One of `run` that is not `there` is to be made, and then looked at again.

    Parameters
    ----------
    claimed
        Whether this run has made a claim before: then it never makes a second one while there is any of another run.
    """
    newest = max(there, default=None)
    if newest is None:
        return Claim(1, run)
    if claimed or any(one.run == run for one in there):
        return newest
    return Claim(newest.number + 1, run)
