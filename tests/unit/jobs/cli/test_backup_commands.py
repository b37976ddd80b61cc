"""`deltamq backup`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deltamq.jobs.cli.backup_commands import backup_group
from tests.queue_tables import QueueTables


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A warehouse with a topic of three messages."""
    tables = QueueTables(tmp_path / "w")
    tables.send(tables.topic(), "a", "b", "c")
    tables.close()
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(backup_group, [str(argument) for argument in arguments], standalone_mode=False)


def created(folder: Path) -> dict[str, object]:
    result = run("create", folder / "kept", "--warehouse", folder / "w", "--json")
    assert result.return_value == 0
    shown = json.loads(result.stdout)
    assert isinstance(shown, dict)
    return shown


def test_a_backup_is_described_listed_verified_and_restored(folder: Path) -> None:
    shown = created(folder)
    assert (shown["messages"], shown["damaged"], shown["exports"]) == (3, {}, [])
    listed = run("list", folder / "kept")
    assert str(shown["name"]) in listed.output and "2 tables" in listed.output
    assert json.loads(run("list", folder / "kept", "--json").output) == [shown]
    verified = run("verify", folder / "kept", "--backup", shown["name"])
    assert (verified.return_value, verified.output) == (0, "1 backups checked, 0 damages found\n")
    restored = run("restore", folder / "kept", "--to", folder / "again")
    assert restored.exception is None and str(shown["name"]) in restored.output
    assert (folder / "again" / "topics" / "orders").is_dir()


def test_looking_makes_nothing_and_leaves_nothing_beside_the_backups(folder: Path) -> None:
    created(folder)
    before = set(folder.rglob("*"))
    assert "no backups in" in run("list", folder / "nowhere").output
    run("list", folder / "kept")
    run("verify", folder / "kept")
    assert set(folder.rglob("*")) == before
    assert not [path for path in (folder / "kept").iterdir() if path.name.startswith(".")]


def test_damage_exits_1_and_is_named(folder: Path) -> None:
    created(folder)
    (damaged, *_) = (folder / "kept" / "files" / "topics").rglob("*.parquet")
    damaged.write_bytes(b"")
    verified = run("verify", folder / "kept")
    assert verified.return_value == 1 and damaged.name in verified.output


def test_old_backups_are_removed(folder: Path) -> None:
    created(folder)
    newest = created(folder)["name"]
    assert "1 backups removed" in run("remove", folder / "kept", "--keep", "1").output
    assert [one["name"] for one in json.loads(run("list", folder / "kept", "--json").output)] == [newest]


def test_a_time_chooses_the_newest_backup_that_had_ended(folder: Path) -> None:
    created(folder)
    refused = run("restore", folder / "kept", "--to", folder / "again", "--at", "2020-01-01T00:00:00Z")
    assert "there is no backup that had ended by then" in str(refused.exception)
    run("restore", folder / "kept", "--to", folder / "again", "--at", "2100-01-01T00:00:00Z")
    assert (folder / "again" / "topics").is_dir()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("create", "kept", "--warehouse", "nowhere"), "there is no warehouse"),
        (("create", "w/kept", "--warehouse", "w"), "in the warehouse itself"),
        (("restore", "kept", "--to", "again"), "there is no backup"),
        (("restore", "kept", "--to", "again", "--backup", "x"), "`deltamq backup list`"),
        (("restore", "kept", "--to", "again", "--at", "noon"), "give a time with its zone"),
        (("restore", "kept", "--to", "again", "--at", "2100-01-01T00:00:00Z", "--backup", "x"), "give one of them"),
        (("create", "ftp://kept", "--warehouse", "w"), "ftp:// is not supported"),
    ],
    ids=["no warehouse", "inside", "none", "unknown name", "no time", "both", "no store"],
)
def test_what_cannot_be_is_said_in_a_sentence(
    folder: Path, arguments: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert error in str(run(*arguments).exception)
    assert not (folder / "again" / "topics").exists() and not (folder / "nowhere").exists()
