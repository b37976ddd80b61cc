"""One result: the median of some repeats with its least and greatest, and the bound it is held to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["Figure", "Target", "at_least", "at_most"]

Extra = Mapping[str, float | int | str | None]


class Target(msgspec.Struct, frozen=True):
    """A bound on a figure's median, and where it comes from."""

    bound: float
    least: bool
    why: str

    def met(self, value: float) -> bool:
        """Whether `value` is on the right side of the bound."""
        return value >= self.bound if self.least else value <= self.bound


def at_least(bound: float, why: str) -> Target:
    """The more, the better."""
    return Target(bound, True, why)


def at_most(bound: float, why: str) -> Target:
    """The less, the better."""
    return Target(bound, False, why)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; `samples` holds one value for each repeat, in `unit`."""

    name: str
    what: str
    unit: str
    samples: Sequence[float]
    target: Target | None = None
    extra: Extra = msgspec.field(default_factory=dict)

    @property
    def median(self) -> float:
        """The value to quote."""
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.met(self.median)

    def to_json(self) -> dict[str, object]:
        """Everything, for later comparison."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
            "target": None if self.target is None else self.target.bound,
            "target_why": None if self.target is None else self.target.why,
            "met": self.met,
            **{f"x_{key}": value for key, value in self.extra.items()},
        }
