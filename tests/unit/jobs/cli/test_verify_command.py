"""`deltamq verify` and the doctor's look at the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltamq.jobs.cli.doctor_checks import table_checks
from deltamq.jobs.cli.verify_command import verify_command
from deltamq.mq.client.cli.doctor import CheckOutcome, Subject
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush
from deltamq.tables.store.native import native_library
from tests.rows import REF, all_bodies, batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A warehouse with three commits, the last two not synced."""
    warehouse = Warehouse.open(str(tmp_path))
    log: PartitionLog = warehouse.create(REF)
    log.append([batch(b"a")])
    for body in (b"b", b"c"):
        log.append([batch(body)], flush=Flush.ASYNC)
    warehouse.close()
    return tmp_path


def commit(folder: Path, version: int) -> Path:
    return folder / REF.folder / "_delta_log" / f"{version:020d}.json"


def run(folder: Path, *arguments: str, answer: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(verify_command, ["--warehouse", str(folder), *arguments], answer, standalone_mode=False)
    assert result.exception is None or answer == "n\n", result.output
    return int(result.return_value), result.output


def test_a_sound_warehouse_exits_0(folder: Path) -> None:
    assert run(folder) == (0, "1 partitions checked, 0 damages found\n")


def test_damage_is_named_and_exits_1(folder: Path) -> None:
    commit(folder, 2).write_bytes(b"")
    code, output = run(folder)
    assert code == 1
    assert f"{2:020d}.json" in output and "deltamq verify --repair" in output


def test_machines_get_json(folder: Path) -> None:
    commit(folder, 2).write_bytes(b"")
    code, output = run(folder, "--json")
    (found,) = [f for f in json.loads(output)["findings"] if f["gravity"] == "damage"]
    assert (code, found["topic"], found["partition"]) == (1, "orders", "orders@broker-a")
    assert found["file"].endswith("00002.json") and found["problem"] and found["remedy"]


def test_only_one_topic_is_checked_when_asked(folder: Path) -> None:
    commit(folder, 2).write_bytes(b"")
    assert run(folder, "--topic", "another") == (0, "0 partitions checked, 0 damages found\n")


def lose(folder: Path) -> None:
    """A power cut took a commit and the data file that it named."""
    named = next(json.loads(line)["add"] for line in commit(folder, 2).read_text().splitlines() if '"add"' in line[:8])
    (folder / REF.folder / named["path"]).unlink()
    commit(folder, 2).write_bytes(b"")


def test_nothing_is_given_up_without_a_yes(folder: Path) -> None:
    lose(folder)
    code, output = run(folder, "--repair", answer="n\n")
    assert code == 1
    assert "offsets 1 to 2 are lost" in output
    assert commit(folder, 3).exists()


def test_a_yes_cuts_and_says_where_the_rest_is_kept(folder: Path) -> None:
    lose(folder)
    code, output = run(folder, "--repair", answer="y\n")
    assert code == 0
    assert "_cut-" in output
    warehouse = Warehouse.open(str(folder))
    assert all_bodies(warehouse.open_partition(REF)) == [b"a"]
    warehouse.close()


def test_rely_09_what_the_data_files_tell_is_put_together_without_a_question(folder: Path) -> None:
    commit(folder, 2).unlink()
    code, output = run(folder, "--repair")
    assert code == 0 and "put the log together again from its data files" in output
    warehouse = Warehouse.open(str(folder))
    assert all_bodies(warehouse.open_partition(REF)) == [b"a", b"b", b"c"]
    warehouse.close()


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)])
def test_table_04_what_another_engine_did_is_taken_back_only_with_a_yes(folder: Path, answer: str, code: int) -> None:
    info = {"engineInfo": "Another/1.0", "operation": "DELETE", "timestamp": 0}
    lines = ({"commitInfo": info}, {"remove": {"path": "x", "dataChange": True}})
    commit(folder, 4).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, output = run(folder, "--repair", answer=answer)
    assert found == code and "version 4: DELETE of Another/1.0 at 1970-01-01T00:00:00Z removes 1 files" in output
    assert commit(folder, 4).exists() is (code == 1)


def test_what_costs_nothing_is_mended_without_a_question(folder: Path) -> None:
    (folder / REF.folder / "_delta_log" / "_last_checkpoint").write_bytes(b"garbage")
    assert run(folder, "--repair")[0] == 0
    assert not (folder / REF.folder / "_delta_log" / "_last_checkpoint").exists()


def test_a_warehouse_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(verify_command, ["--warehouse", str(tmp_path / "no")])
    assert result.exit_code == 1
    assert "there is no warehouse" in result.output
    assert not (tmp_path / "no").exists()


# The doctor.


def checks(folder: Path) -> list[tuple[CheckOutcome, str]]:
    subject = Subject(url="http://127.0.0.1:1", warehouse=str(folder))
    how, *found = [(check.health, check.detail) for check in table_checks(subject)]
    assert how[0] is CheckOutcome.OK and how[1].startswith("commits to local disks")
    assert ("native" in how[1]) == (native_library() is not None)
    return found


def test_the_doctor_finds_a_sound_warehouse_sound(folder: Path) -> None:
    ((health, detail),) = checks(folder)
    assert health is CheckOutcome.OK and "1 partitions" in detail


def test_the_doctor_names_a_damaged_file(folder: Path) -> None:
    commit(folder, 2).write_bytes(b"")
    ((health, detail),) = checks(folder)
    assert health is CheckOutcome.FAILED and f"{2:020d}.json" in detail


def test_the_doctor_makes_no_warehouse(tmp_path: Path) -> None:
    ((health, _),) = checks(tmp_path / "no")
    assert health is CheckOutcome.OK
    assert not (tmp_path / "no").exists()


def test_the_doctor_shows_a_bounded_number_of_findings(tmp_path: Path) -> None:
    from deltamq.tables.paths import PartitionRef, Space

    warehouse = Warehouse.open(str(tmp_path))
    for i in range(30):
        ref = PartitionRef(Space.TOPICS, "orders", f"orders#{i}@broker-a")
        warehouse.create(ref).append([batch(b"a")])
        (tmp_path / ref.folder / "_delta_log" / f"{1:020d}.json").write_bytes(b"")
    warehouse.close()
    found = checks(tmp_path)
    assert len(found) == 21
    assert found[-1][1] == "10 more findings"
