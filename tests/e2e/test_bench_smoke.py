"""The benchmarks still run: a few of them in their quick form, and the arithmetic around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.bench.__main__ import main
from tests.bench.against import compared
from tests.bench.figure import Figure, at_least, at_most
from tests.bench.kafka.format import log_bytes
from tests.bench.peers import PAIRS, ratios
from tests.bench.registry import BENCHES, selected
from tests.bench.targets import TARGETS


@pytest.mark.long
def test_bench_quick_run_measures_and_writes_json(tmp_path: Path) -> None:
    only = "append.100.sync,rest.arrow.100B,filter.log"
    result = CliRunner().invoke(main, ["--quick", "--only", only, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (written,) = tmp_path.glob("bench-*.json")
    found = json.loads(written.read_text())
    names = {f["name"] for f in found["figures"]}
    assert {
        "append.100.sync.p50",
        "rest.arrow.100B.mb",
        "filter.log.ratio",
    } <= names
    assert all(f["median"] > 0 and f["what"] for f in found["figures"])
    assert [p.name for p in tmp_path.iterdir()] == [written.name], "data must be gone at the end"


def test_bench_filter_selects_by_prefix_in_both_directions() -> None:
    assert set(selected(["rest.arrow.100B.rate"])) == {"rest.arrow.100B"}
    assert set(selected(["disk", "memory"])) == {"disk", "memory"}
    assert set(selected([])) == set(BENCHES)
    assert "store.one_client" in selected(["store"]) and "stored.flights" not in selected(["store"])
    assert not selected(["nonsense"])


def test_bench_targets_and_pairs_name_benchmarks_that_exist() -> None:
    for name in [*TARGETS, *(pair.ours for pair in PAIRS)]:
        assert any(name.startswith(f"{bench}.") for bench in BENCHES), name


@pytest.mark.parametrize(("target", "value", "met"), [(at_least(2, ""), 2, True), (at_most(2, ""), 2.1, False)])
def test_bench_target_is_compared_with_the_median(target: Any, value: float, met: bool) -> None:
    figure = Figure(name="f", what="", unit="", samples=[0, value, 99], target=target)
    assert figure.median == value and figure.met is met


def test_bench_ratio_divides_medians_and_knows_the_wanted_one() -> None:
    ours = Figure(name="rest.json100.100B.rate", what="", unit="msg/s", samples=[300.0])
    run = {"peer": "rocketmq", "measure": "a batch 4x100", "size": 100, "msgs_s": 200.0}
    (ratio,) = ratios([ours], [run, {**run, "size": 1024}])
    assert ratio.value == 1.5 and ratio.met is True


def test_bench_of_two_trees_compares_what_all_windows_have_and_calls_slower_what_every_pair_does() -> None:
    units = {"rate": "msg/s", "p50": "ms", "noisy": "ms", "new": "ms"}
    windows = [
        ({"rate": 100.0, "p50": 2.0, "noisy": 1.0}, {"rate": 90.0, "p50": 1.0, "noisy": 2.0, "new": 1.0}),
        ({"rate": 50.0, "p50": 4.0, "noisy": 1.0}, {"rate": 40.0, "p50": 2.0, "noisy": 1.0, "new": 1.0}),
    ]
    found = {one.name: one for one in compared(windows, units)}
    assert found.keys() == {"rate", "p50", "noisy"}
    assert found["rate"].ratios == [0.9, 0.8] and found["p50"].ratios == [0.5, 0.5]
    assert [name for name, one in found.items() if one.is_slower] == ["rate"]


def test_bench_kafka_size_of_one_record() -> None:
    # length 1 + attributes 1 + time 1 + offset 1 + key length 1 + key 2 + value length 1 + value 10 + headers 1
    assert log_bytes(pa.array([b"ab"]), pa.array([b"0123456789"])) == 61 + 19
    assert log_bytes(pa.array([None], pa.binary()), pa.array([b"0123456789"])) == 61 + 17
