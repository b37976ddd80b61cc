"""The verdict on a history: `python -m tests.history.checker.check FILE ...` re-checks without the system (README.md).

Exit status 0: valid; 1: anomalies; 2: unknown, since the run did not reach what it was meant to reach.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.history.checker.anomalies import Findings
from tests.history.checker.log_rules import Log, check_log
from tests.history.checker.ops import History, Outcome
from tests.history.checker.order_rules import check_order
from tests.history.checker.queue_rules import check_queue

__all__ = ["Checked", "Reach", "Verdict", "check"]


class Verdict(enum.StrEnum):
    """What a run showed."""

    VALID = "valid"  #: No anomaly, and it reached what it was meant to.
    INVALID = "invalid"  #: Anomalies.
    UNKNOWN = "unknown"  #: No anomaly, but nor did it reach what it was meant to.


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What a run must have had so that "no anomaly" means something."""

    sends: int = 0
    deliveries: int = 0
    handled: int = 0
    faults: int = 0
    redeliveries: int = 0
    #: Sends without an answer that proved stored, and absent.
    unknown_stored: int = 0
    unknown_absent: int = 0


class Checked(msgspec.Struct):
    """The verdict, and why."""

    findings: Findings
    #: What was not reached, as sentences.
    missed: list[str] = msgspec.field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if self.findings.count:
            return Verdict.INVALID
        return Verdict.UNKNOWN if self.missed else Verdict.VALID


def check(history: History, reach: Reach | None = None) -> Checked:
    """Play all rules."""
    history.sort()
    log, findings = Log.of(history), Findings()
    check_log(history, log, findings)
    check_queue(history, log, findings)
    check_order(history, findings)
    return Checked(findings, _missed(history, findings, reach or Reach()))


def _missed(history: History, findings: Findings, reach: Reach) -> list[str]:
    allowed = findings.allowed
    had = {
        "sends": sum(send.outcome is Outcome.OK for send in history.sends),
        "deliveries": sum(len(pop.deliveries) for pop in history.pops),
        "handled": len(history.handled),
        "faults": len(history.faults),
        "redeliveries": allowed["redelivered-after-expiry"] + allowed["redelivered-after-crash"],
        "unknown_stored": allowed["unknown-stored"],
        "unknown_absent": allowed["unknown-absent"],
    }
    return [
        f"{name.replace('_', ' ')}: {had[name]}, at least {least} were meant"
        for name in had
        if had[name] < (least := getattr(reach, name))
    ]


def main(paths: Sequence[str]) -> int:
    """Check the histories of these files together."""
    from tests.history.checker.record import read_history
    from tests.history.checker.report import in_words

    history = read_history([Path(path) for path in paths])
    checked = check(history)
    print(in_words(history, checked))
    return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}[checked.verdict]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
