"""The commands of static topics: what people and machines see, and exit statuses."""

from __future__ import annotations

import json
import threading

import pytest

from tests.unit.client.cli.cli_run import Run
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_static import StubStatic

A, B = "broker-a", "broker-b"
FIRST = "0@__logical_queue_broker__"


@pytest.fixture
def static(stub: StubService) -> StubStatic:
    static = stub.create_static(2)
    static.append(FIRST, [{"body": b"1"}, {"body": b"2"}])
    return static


def test_static_07_a_static_topic_is_created_and_grows(run: Run, stub: StubService) -> None:
    created = run("topic", "create", "orders", "--static", "--queues", "2", "--order-strategy", "strict")
    assert created.out == "created orders: 2 logical queues on broker-a, broker-b\n"
    assert stub.topics["orders"].strict
    grown = run("topic", "create", "orders", "--static", "--queues", "3", "--broker", B, "--json").json
    assert (grown["created"], grown["topic"]["total_queues"]) == (False, 3)
    assert grown["topic"]["logical_queues"][2]["segments"][0]["broker"] == B
    fewer = run("topic", "create", "orders", "--static", "--queues", "1")
    assert fewer.status == 1
    assert fewer.err.startswith("error: queues_cannot_shrink: ")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--static"],
        ["--queues", "2"],
        ["--broker", A],
        ["--static", "--queues", "2", "--partitions", "2"],
        ["--static", "--queues", "0"],
        ["--static", "--queues", "2", "--global"],
        ["--static", "--queues", "2", "--cluster", "east"],
        ["--global", "--cluster", "east"],
    ],
)
def test_wrong_usage_of_static_topics_is_status_2(run: Run, stub: StubService, wrong: list[str]) -> None:
    assert run("topic", "create", "orders", *wrong).status == 2
    assert stub.topics == {}


def test_static_07_a_plain_topic_does_not_become_static(run: Run, stub: StubService) -> None:
    stub.create("orders")
    done = run("topic", "create", "orders", "--static", "--queues", "2")
    assert done.status == 1
    assert done.err.startswith("error: topic_not_static: ")


def test_static_18_logical_and_physical_queues_are_shown_side_by_side(run: Run, static: StubStatic) -> None:
    run("topic", "remap", "orders", "--broker", B, "--mode", "available")
    lines = run("topic", "show", "orders").out.splitlines()
    assert lines[0].startswith("orders: 2 messages, 2 logical queues in 3 partitions, best_tried, ")
    assert lines[2].split() == [FIRST, "[0,512)", "0", "10,000", "2", "9,998", "2", B, "serving"]
    physical = [line.split()[:4] for line in lines[5:]]
    assert physical == [
        ["0", "0", "[0,2)", f"orders@{A}"],
        ["0", "1", "[10000,...)", f"orders#2@{B}"],
        ["1", "0", "[0,...)", f"orders#1@{B}"],
    ]
    shown = run("topic", "show", "orders", "--json").json
    assert [len(one["segments"]) for one in shown["logical_queues"]] == [2, 1]


def test_static_10_an_undecided_leader_is_shown(run: Run, static: StubStatic) -> None:
    static.seals = False
    static.remap({"brokers": [B], "mode": "available"})
    assert "undecided" in run("topic", "show", "orders").out


def test_static_22_a_queue_that_cannot_be_had_is_shown(run: Run, static: StubStatic) -> None:
    static.lose_mapping(A)
    lines = run("topic", "show", "orders").out.splitlines()
    assert lines[2].split() == [FIRST, "[0,512)", *"----", "0", "-", "queue_unserved"]
    assert lines[-1].split()[:4] == ["-", "-", "-", f"orders@{A}"], "the queue of its partition is not known"


def test_static_08_a_remapping_is_shown_before_it_is_made(run: Run, static: StubStatic) -> None:
    done = run("topic", "remap", "orders", "--broker", B)
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == "orders: 1 logical queue to move (strict: a short stop, no hole in the offsets)"
    assert lines[2].split() == ["0", A, B, f"orders@{A}"]
    assert lines[3] == "moved 1 logical queue; sends to one waited for 2 ms at most"
    assert lines[5].split() == ["0", f"orders@{A}", "2", f"orders#2@{B}", "2"]
    assert [one.get("plan", False) for one in static.remaps] == [True, False]
    again = run("topic", "remap", "orders", "--broker", B)
    assert (again.status, again.out) == (0, "orders: every queue is where it belongs, nothing moves\n")


def test_static_23_a_plan_moves_nothing(run: Run, static: StubStatic) -> None:
    before = static.world.meta
    done = run("topic", "remap", "orders", "--broker", B, "--mode", "available", "--queue", "0", "--plan")
    assert done.out.startswith("orders: 1 logical queue to move (available: no stop, a hole in the offsets)")
    assert static.remaps == [{"brokers": [B], "mode": "available", "queues": [0], "plan": True}]
    assert static.world.meta is before
    planned = run("topic", "remap", "orders", "--broker", B, "--plan", "--json").json
    assert (planned["plan"], planned["moved"][0]["from"], planned["moved"][0]["to"]) == (True, A, B)


def test_a_remapping_for_machines_is_one_document(run: Run, static: StubStatic) -> None:
    done = run("topic", "remap", "orders", "--broker", B, "--mode", "available", "--json").json
    assert (done["topic"], done["plan"], done["mode"]) == ("orders", False, "available")
    assert done["moved"] == [
        {
            "queue": 0,
            "from": A,
            "to": B,
            "old_partition": f"orders@{A}",
            "new_partition": f"orders#2@{B}",
            "end_offset": 2,
            "logic_offset": 10_000,
        }
    ]


def test_static_11_a_remapping_waits_until_other_processes_have_sealed(run: Run, stub: StubService) -> None:
    static = stub.create_static(2)
    static.seals = False

    def seal() -> None:
        # Two plans and remappings are asked for only by this command; it looks at the topic after them.
        stub.wait_for(lambda: len(static.remaps) == 2)
        with stub.changed:
            static.world.seal()

    other = threading.Thread(target=seal)
    other.start()
    done = run("topic", "remap", "orders", "--broker", B, "--json")
    other.join()
    assert done.status == 0
    assert (done.json["moved"][0]["end_offset"], done.json["moved"][0]["logic_offset"]) == (0, 0)


def test_static_11_what_is_not_sealed_in_time_is_told(run: Run, static: StubStatic) -> None:
    static.seals = False
    done = run("topic", "remap", "orders", "--broker", B, "--wait", "0")
    assert done.status == 1
    assert done.err.startswith("error: not_sealed: the old partitions of 1 logical queue are not sealed yet")


def test_static_23_errors_tell_what_to_do(run: Run, static: StubStatic) -> None:
    unknown = run("topic", "remap", "orders", "--broker", "broker-x")
    assert unknown.status == 1
    assert unknown.err.startswith("error: unknown_broker: ")
    assert "deltamq cluster" in unknown.err
    static.lose_mapping(A)
    torn = json.loads(run("topic", "remap", "orders", "--broker", B, "--json").err)["error"]
    assert torn["code"] == "mapping_incomplete"
    assert "deltamq topic check" in torn["remedy"]
    assert run("topic", "remap", "orders").status == 2, "brokers are needed"
    assert run("topic", "remap", "orders", "--broker", B, "--mode", "slow").status == 2


def test_static_05_a_check_fails_if_something_is_missing(run: Run, static: StubStatic) -> None:
    run("topic", "remap", "orders", "--broker", B)
    whole = run("topic", "check", "orders")
    assert whole.status == 0
    lines = whole.out.splitlines()
    assert lines[0].startswith("orders: complete: 2 logical queues, epoch ")
    assert [line.split()[0] for line in lines[2:]] == [A, B]
    static.lose_mapping(A)
    torn = run("topic", "check", "orders")
    assert torn.status == 1
    assert torn.out.startswith("orders: not complete, 1 faults: ")
    assert f"broker {A} has no mapping" in torn.out
    document = run("topic", "check", "orders", "--json")
    assert document.status == 1
    assert (document.json["complete"], document.json["faults"][0]["kind"]) == (False, "missing")


def test_static_11_a_repair_is_shown_before_it_is_made(run: Run, static: StubStatic) -> None:
    assert run("topic", "repair", "orders").out == "orders: nothing to repair\n"
    run("topic", "remap", "orders", "--broker", B)
    static.lose_mapping(A)
    planned = run("topic", "repair", "orders", "--plan").out
    assert f"broker {A} has no mapping" in planned
    assert planned.endswith(f"would write the mappings of {A}, {B}\n")
    assert run("topic", "check", "orders").status == 1, "a plan writes nothing"
    done = run("topic", "repair", "orders")
    assert f"broker {A} has no mapping" in done.out
    assert done.out.endswith(f"wrote the mappings of {A}, {B}\n")
    assert run("topic", "check", "orders").status == 0


def test_a_repair_for_machines_is_one_document(run: Run, static: StubStatic) -> None:
    assert run("topic", "repair", "orders", "--json").json == {
        "topic": "orders",
        "plan": False,
        "faults": [],
        "repaired": [],
    }
    run("topic", "remap", "orders", "--broker", B)
    static.lose_mapping(A)
    done = run("topic", "repair", "orders", "--json").json
    assert (done["plan"], done["repaired"], done["faults"][0]["broker"]) == (False, [A, B], A)


def test_static_10_messages_without_decided_offsets_are_told(run: Run, stub: StubService, static: StubStatic) -> None:
    static.seals = False
    static.remap({"brokers": [B], "mode": "available"})
    line = json.dumps({"body": "x", "partition": FIRST}).encode()
    done = run("produce", "orders", stdin=line)
    assert (done.status, done.out) == (
        0,
        f"sent 1 messages to orders\n  {FIRST}: 1 (1 with offsets that are not decided yet)\n",
    )
    machine = run("produce", "orders", "--json", stdin=line).json
    assert machine["partitions"] == {FIRST: {"count": 1, "undecided": 1}}


def test_static_13_consume_goes_on_over_holes_to_the_end(run: Run, static: StubStatic) -> None:
    for broker in (B, A):
        run("topic", "remap", "orders", "--broker", broker, "--mode", "available", "--queue", "0")
        static.append(FIRST, [{"body": broker.encode()}])
    lines = run("consume", "orders", "--partition", FIRST, "--json").lines
    assert [(one["offset"], one["body"]) for one in lines] == [(0, "1"), (1, "2"), (10_000, B), (20_000, A)]
