"""What is recorded is read again, and what a kill cut off is an operation without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.checker.ops import FOREVER, Delivered, GroupRules, Outcome, Place, Read, TopicRules
from tests.history.checker.record import Recorder, now_ns, read_history


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def test_operations_are_read_as_they_were_told(path: Path) -> None:
    recorder = Recorder(path)
    began = now_ns()
    rules = GroupRules(group="g", topics=("orders",), max_attempts=3, order="key", durable=True)
    recorder.rules(rules)
    recorder.rules(TopicRules(topic="orders", strict=True))
    asked = {"topic": "orders", "ids": ["a", "b"], "keys": ["k", None], "crcs": [1, 2], "producer": "p"}
    with recorder.begin(1, "send", **asked) as op:
        op.ok(placed=[("orders@a", 0), ("orders@a", 1)])
    with recorder.begin(2, "poll", partition="orders@a") as op:
        op.ok(reads=[(0, "a", 1)])
    with recorder.begin(3, "pop", group="g", invisible=5) as op:
        op.ok(deliveries=[("a", 1, "handle", "orders@a", 0, "k")])
    with recorder.begin(3, "settle", kind="ack", group="g", receipts=["handle"]) as op:
        op.ok(results={"handle": "ok"})
    recorder.moment(4, "fault", kind="kill", target="service-0")
    recorder.close()
    history = read_history([path])
    (send,) = history.sends
    assert (send.ids, send.keys, send.crcs, send.producer) == (("a", "b"), ("k", None), (1, 2), "p")
    assert send.placed == (Place("orders@a", 0), Place("orders@a", 1))
    assert began <= send.begun <= send.ended <= now_ns()
    assert history.polls[0].reads == (Read(0, "a", 1),)
    assert history.pops[0].deliveries == (Delivered("a", 1, "handle", "orders@a", 0, "k"),)
    assert (history.settles[0].receipts, history.settles[0].results) == (("handle",), {"handle": "ok"})
    assert history.groups == {"g": rules}
    assert history.topics["orders"].strict
    assert (history.faults[0].kind, history.faults[0].target) == ("kill", "service-0")


def test_outcomes_are_ok_refused_or_unknown(path: Path) -> None:
    recorder = Recorder(path)
    recorder.begin(1, "end", partition="orders@a").ok(offset=3)
    recorder.begin(1, "end", partition="orders@a").fail()
    with pytest.raises(RuntimeError), recorder.begin(1, "end", partition="orders@a"):
        raise RuntimeError("the connection broke")
    recorder.begin(1, "end", partition="orders@a")
    recorder.close()
    with path.open("a") as file:
        file.write('{"n": 4, "t": 1, "p": 1, "ty')
    ends = read_history([path]).ends
    assert [end.outcome for end in ends] == [Outcome.OK, Outcome.FAIL, Outcome.INFO, Outcome.INFO]
    assert [end.ended == FOREVER for end in ends] == [False, False, False, True]


def test_histories_of_several_processes_are_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    recorders = [Recorder(path, first_process=100 * at) for at, path in enumerate(paths)]
    processes = [recorder.process() for recorder in (*recorders, *recorders)]
    assert processes == [0, 100, 1, 101]
    for process, recorder in zip(processes, (*recorders, *recorders), strict=True):
        recorder.moment(process, "assign", partition="orders@a", offset=0)
    for recorder in recorders:
        recorder.close()
    assert [assign.process for assign in read_history(paths).assigns] == processes
