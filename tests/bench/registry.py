"""Which benchmarks there are, and which of them a filter means.

A benchmark is a generator of figures whose names begin with its own; modules register theirs on import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.bench.figure import Figure
from tests.bench.session import Session

__all__ = ["BENCHES", "Bench", "bench", "selected"]

Bench = Callable[[Session], Iterator[Figure]]

#: In the order in which they run.
BENCHES: dict[str, Bench] = {}


def bench(name: str) -> Callable[[Bench], Bench]:
    """Register a benchmark; its docstring says what it measures."""

    def register(function: Bench) -> Bench:
        assert name not in BENCHES, f"{name} is registered twice"
        BENCHES[name] = function
        return function

    return register


def selected(only: Sequence[str]) -> dict[str, Bench]:
    """The benchmarks that a filter means: all for an empty one, else those that share a prefix with any part of it.

    A part that is a whole word of names, such as `store`, does not mean names that go on, such as `stored.flights`.
    """
    if not only:
        return dict(BENCHES)
    beginnings = [f"{o}." if any(f"{n}.".startswith(f"{o}.") for n in BENCHES) else o for o in only]
    return {n: f for n, f in BENCHES.items() if any(f"{n}.".startswith(b) or b.startswith(f"{n}.") for b in beginnings)}
