"""What a run showed, for people and for machines: counts, anomalies with their surroundings (README.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tests.history.checker.anomalies import Anomaly
from tests.history.checker.check import Checked
from tests.history.checker.ops import FOREVER, MS, Handled, History, Op, Poll, Pop, Send, Settle

__all__ = ["in_words", "timeline", "to_json"]

_AROUND_NS: Final = 2_000 * MS
_LINES_MAX: Final = 40


def counts(history: History) -> dict[str, dict[str, int]]:
    """How many operations of each kind ended how."""
    found: dict[str, Counter[str]] = {}
    for ops in history.lists():
        for op in ops:
            found.setdefault(type(op).__name__.lower(), Counter())[str(op.outcome)] += 1
    return {kind: dict(by_outcome) for kind, by_outcome in found.items()}


def to_json(history: History, checked: Checked, **facts: object) -> dict[str, Any]:
    """`results.json`: the verdict, what it rests on, and the worst examples."""
    return {
        "verdict": str(checked.verdict),
        "missed": checked.missed,
        "ops": counts(history),
        "anomalies": {
            name: {"count": len(found), "examples": [one._asdict() for one in found[:8]]}
            for name, found in sorted(checked.findings.anomalies.items())
            if found
        },
        "allowed": dict(checked.findings.allowed),
        "faults": dict(Counter(fault.kind for fault in history.faults)),
        **facts,
    }


def in_words(history: History, checked: Checked) -> str:
    """A page for the reader who looks for the reason."""
    lines = [f"verdict: {checked.verdict}"]
    lines += [f"  not reached: {missed}" for missed in checked.missed]
    for kind, by_outcome in counts(history).items():
        lines.append(f"  {kind}: {', '.join(f'{count} {outcome}' for outcome, count in by_outcome.items())}")
    lines += [f"  allowed: {count} {name}" for name, count in sorted(checked.findings.allowed.items())]
    for name, found in checked.findings.anomalies.items():
        lines.append(f"  {len(found)} {name}")
    shown: set[str] = set()
    for anomaly in checked.findings.worst(limit=3):
        lines.append(f"{anomaly.name} {anomaly.where}: {anomaly.said}")
        if anomaly.name not in shown:
            shown.add(anomaly.name)
            lines += timeline(history, anomaly)
    return "\n".join(lines)


def timeline(history: History, anomaly: Anomaly) -> list[str]:
    """What happened to the message around that moment, and which faults there were; times in ms from there."""
    told = [(op.begun, line) for op, line in _touching(history, anomaly)]
    moment = anomaly.at or (told[0][0] if told else 0)
    faults = [(f.begun, f"fault {f.kind} {f.target}") for f in history.faults if abs(f.begun - moment) < _AROUND_NS]
    rows = sorted({*told, *faults})
    return [f"    {(begun - moment) / MS:+12.1f}  {line}" for begun, line in rows[:_LINES_MAX]]


def _touching(history: History, anomaly: Anomaly) -> Iterator[tuple[Op, str]]:
    """Operations that had to do with what the anomaly names: a message id, or a partition and offset."""
    ids, place = _subject(history, anomaly)
    receipts = {one.receipt for pop in history.pops for one in pop.deliveries if one.id in ids}
    for ops in history.lists():
        for op in ops:
            line = _line(op, ids, place, receipts)
            if line:
                ended = "never answered" if op.ended == FOREVER else f"{(op.ended - op.begun) / MS:.1f} ms"
                yield op, f"{line} [process {op.process}, {op.outcome}, {ended}]"


def _subject(history: History, anomaly: Anomaly) -> tuple[set[str], tuple[str, int] | None]:
    words = set(anomaly.where.split()) | set(anomaly.said.replace(",", " ").split())
    ids = {id_ for send in history.sends for id_ in send.ids if id_ in words}
    name, _, offset = anomaly.where.split()[0].rpartition("/") if anomaly.where else ("", "", "")
    return ids, (name, int(offset)) if offset.isdigit() else None


def _line(op: Op, ids: set[str], place: tuple[str, int] | None, receipts: set[str]) -> str:
    if isinstance(op, Send) and ids & set(op.ids):
        return f"send {sorted(ids & set(op.ids))} -> {[tuple(p) for p in op.placed[:3]]}"
    if isinstance(op, Poll):
        hits = [r for r in op.reads if r.id in ids or (op.partition, r.offset) == place]
        return f"poll {op.partition} {[(r.offset, r.id) for r in hits[:3]]}" if hits else ""
    if isinstance(op, Pop):
        given = [(one.id, one.attempt, one.partition, one.offset) for one in op.deliveries if one.id in ids]
        return f"pop {op.group} invisible {op.invisible // MS} ms {given[:3]}" if given else ""
    if isinstance(op, Settle):
        results = [op.results.get(receipt, "?") for receipt in op.receipts if receipt in receipts]
        return f"{op.kind} {op.group} {results}" if results else ""
    if isinstance(op, Handled) and op.id in ids:
        return f"handled {op.group} {op.client} {op.partition}/{op.offset} {op.id}"
    return ""
