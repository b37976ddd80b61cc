"""What a warehouse has of its exports: what the job `export` writes, and the service shows (SPEC SPARK-9, LOOK-18).

<warehouse>/jobs/export/definitions/<name>.json      an export of the scheduled job `export`
<warehouse>/jobs/export/removed/<id>.json            a removed export, whose progress stays with its tables
<warehouse>/jobs/export/<id>/state.json              the last batch that is in both tables, and its ends
<warehouse>/jobs/export/<id>/failure.json            why the last run failed; absent if it did not
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.mq.errors import NotFound
from deltamq.tables.ops.stored_json import names_in, read_stored
from deltamq.tables.store.store import Store

_FOLDER: Final = "jobs/export/definitions"
_REMOVED: Final = "jobs/export/removed"
BATCH_ROWS: Final = 1_000_000


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One export. Its transactions in the tables carry `id`, which stays when it is removed and created again."""

    name: str
    topic: str
    #: A path, or the name of a table.
    to: str
    #: DDL of the fields of a body, such as `id BIGINT NOT NULL, amount DOUBLE`.
    schema: str
    columns: tuple[str, ...] = ("append_time",)
    batch_rows: int = BATCH_ROWS
    fail_on_data_loss: bool = True
    id: str

    @property
    def is_path(self) -> bool:
        """Whether `to` is a path, not the name of a table."""
        return "/" in self.to

    @property
    def quarantine(self) -> str:
        """The path or name of the table for messages that do not fit the schema."""
        return f"{self.to.rstrip('/')}_quarantine"


class ExportState(msgspec.Struct, frozen=True, kw_only=True):
    """An export's progress; `ends` are the next offsets, by a partition's name, a colon, and its generation."""

    batch: int = -1
    ends: dict[str, int] = {}
    rows: int = 0
    quarantined: int = 0


class ExportFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last run of an export failed."""

    at_ms: int
    detail: str


_definition: Final = msgspec.json.Decoder(Definition)
_state: Final = msgspec.json.Decoder(ExportState)
_failure: Final = msgspec.json.Decoder(ExportFailure)


def definition_key(name: str) -> str:
    """Return where the definition of this name is stored."""
    return f"{_FOLDER}/{name}.json"


def definition_names(store: Store) -> list[str]:
    """Return the names of all exports, in order."""
    return names_in(store, _FOLDER)


def read_definition(store: Store, name: str) -> Definition:
    """Return the definition of this name, or raise `NotFound`."""
    definition = read_stored(store, definition_key(name), _definition)
    if definition is None:
        raise NotFound(f"there is no export {name!r}; see deltamq jobs export list", code="export_not_found")
    return definition


def definitions(store: Store) -> list[Definition]:
    """Return all definitions, by name."""
    return [read_definition(store, name) for name in definition_names(store)]


def removed_key(export_id: str) -> str:
    """Return where the definition of a removed export is stored."""
    return f"{_REMOVED}/{export_id}.json"


def removed_definitions(store: Store) -> list[Definition]:
    """Return the definitions that were removed; an export that was added again is among them, too."""
    removed = [read_stored(store, f"{_REMOVED}/{name}.json", _definition) for name in names_in(store, _REMOVED)]
    return [definition for definition in removed if definition is not None]


def export_folder(export_id: str) -> str:
    """Return the folder of an export's progress."""
    return f"jobs/export/{export_id}"


def state_key(export_id: str) -> str:
    """Return where an export's progress is stored."""
    return f"{export_folder(export_id)}/state.json"


def plan_key(export_id: str, batch: int) -> str:
    """Return where the plan of a batch is stored, until both tables have the batch."""
    return f"{export_folder(export_id)}/{batch:020d}.plan"


def begun_batch(store: Store, export_id: str) -> int:
    """Return the last batch that may have read messages: the one that is planned, or else the one that is done."""
    batch = read_export_state(store, export_id).batch
    return batch + 1 if store.exists(plan_key(export_id, batch + 1)) else batch


def failure_key(export_id: str) -> str:
    """Return where the failure of an export's last run is stored."""
    return f"{export_folder(export_id)}/failure.json"


def read_export_state(store: Store, export_id: str) -> ExportState:
    """Return an export's progress."""
    return read_stored(store, state_key(export_id), _state) or ExportState()


def read_failure(store: Store, export_id: str) -> ExportFailure | None:
    """Return why the last run of an export failed; None if it did not."""
    return read_stored(store, failure_key(export_id), _failure)
