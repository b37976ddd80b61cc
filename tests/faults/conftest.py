"""Fixtures of the fault tests: a zygote, and a judge of the files that killed writers left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.zygote import Ack, Zygote, acks_of, bodies_of, zygote
from tests.rows import REF
from tests.witness import Testimony, testify

#: Checks the files against the writers' notes; returns what the files hold.
Judge = Callable[[Sequence[Path]], Testimony]


@pytest.fixture(scope="session")
def writers() -> Iterator[Zygote]:
    with zygote() as found:
        yield found


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """The judge of the warehouse in `tmp_path`."""
    return judged(tmp_path)


def judged(folder: Path) -> Judge:
    """Return a check that no message is lost, stored twice, or invented (with pyarrow alone)."""

    def check(notes: Sequence[Path]) -> Testimony:
        found = testify(folder / REF.folder)
        acks = [ack for path in notes for ack in acks_of(path)]
        bodies = found.bodies
        for ack in acks:
            stored = [bodies.get(ack.base_offset + i) for i in range(ack.messages)]
            assert stored == bodies_of(ack.producer, ack.seq, ack.messages), f"{ack} is lost: {stored}"
        values = list(bodies.values())
        assert len(set(values)) == len(values), f"stored twice: {sorted(v for v in values if values.count(v) > 1)[:5]}"
        _check_order(acks)
        _check_phantoms(values, acks)
        return found

    return check


def _check_order(acks: list[Ack]) -> None:
    """Check that the requests of each producer, which waits for each answer, are in order."""
    for producer in {ack.producer for ack in acks}:
        offsets = [ack.base_offset for ack in acks if ack.producer == producer]
        assert offsets == sorted(offsets), f"{producer} is out of order"


def _check_phantoms(bodies: list[bytes], acks: list[Ack]) -> None:
    """Check that each message was acknowledged, or is of its producer's one request that was under way."""
    done: dict[str, int] = {}
    for ack in acks:
        done[ack.producer] = max(done.get(ack.producer, -1), ack.seq)
    for body in bodies:
        producer, seq, _ = body.decode().split("/")
        assert int(seq) <= done.get(producer, -1) + 1, f"{body!r} was never sent"
