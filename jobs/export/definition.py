"""What an export is: a topic, the table it goes to, and the types of its fields; kept in the warehouse by name.

<warehouse>/jobs/export/definitions/<name>.json      what the scheduled job `export` runs
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from jobs.export.json_schema import struct_of_json_schema
from jobs.export.stored import check_name, names_in, read_stored
from mq.errors import NotFound, Refused
from mq.names import check_topic
from tables.store import Store

__all__ = ["COLUMNS", "Definition", "definition_of", "definitions", "read_definition", "remove_definition", "save"]

FOLDER: Final = "jobs/export/definitions"
#: Columns of the message that may be taken along, each under its name with `_` before it.
Extra = Literal["topic", "append_time", "born_time", "key", "tag", "headers", "message_id"]
COLUMNS: Final = get_args(Extra)
BATCH_ROWS: Final = 1_000_000


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One export. `id` names its transactions in the tables: an export that is made again under its name is another."""

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
        """Return whether `to` is a place, not the name of a table."""
        return "/" in self.to

    @property
    def quarantine(self) -> str:
        """Return where goes what does not fit."""
        return f"{self.to.rstrip('/')}_quarantine"


def definition_of(
    topic: str,
    to: str,
    *,
    schema: str | None = None,
    json_schema: Mapping[str, object] | None = None,
    name: str | None = None,
    columns: Sequence[str] = ("append_time",),
    batch_rows: int = BATCH_ROWS,
    fail_on_data_loss: bool = True,
) -> Definition:
    """Return a checked definition; its name is the topic's unless it is given.

    Raises
    ------
    Refused
        The field is named.
    """
    check_topic(topic)
    if (schema is None) == (json_schema is None):
        raise Refused("schema: give a DDL or a JSON schema, exactly one of both", field="schema")
    ddl = schema if schema is not None else struct_of_json_schema(json_schema or {})
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown:
        raise Refused(f"columns: {unknown[0]!r} is none of {', '.join(COLUMNS)}", field="columns")
    chosen = name or re.sub(r"[^A-Za-z0-9._-]", "_", topic)
    check_name(chosen)
    if not to.strip():
        raise Refused("to: must be a path or the name of a table", field="to")
    if batch_rows < 1:
        raise Refused("batch_rows: must be from 1 on", field="batch_rows")
    return Definition(
        name=chosen,
        topic=topic,
        to=to,
        schema=ddl,
        columns=tuple(dict.fromkeys(columns)),
        batch_rows=batch_rows,
        fail_on_data_loss=fail_on_data_loss,
        id=uuid.uuid4().hex,
    )


_decode: Final = msgspec.json.Decoder(Definition)


def save(store: Store, found: Definition) -> Definition:
    """Store a definition under its name, or change the one that is there; returns it with the id that stays.

    Raises
    ------
    Refused
        The name belongs to an export of another topic or to another table: its progress is not this one's.
    """
    try:
        present = read_definition(store, found.name)
    except NotFound:
        present = None
    if present is not None:
        if (present.topic, present.to) != (found.topic, found.to):
            detail = (
                f"name: export {found.name} is of topic {present.topic} to {present.to}; remove it, or take another"
            )
            raise Refused(detail, field="name")
        found = msgspec.structs.replace(found, id=present.id)
    store.replace(_key(found.name), msgspec.json.encode(found))
    return found


def read_definition(store: Store, name: str) -> Definition:
    """Return the definition of this name, or raise `NotFound`."""
    found = read_stored(store, _key(name), _decode)
    if found is None:
        raise NotFound(f"there is no export {name!r}; see deltamq jobs export list", code="export_not_found")
    return found


def definitions(store: Store) -> list[Definition]:
    """Return all of them, by name."""
    return [read_definition(store, name) for name in names_in(store, FOLDER)]


def remove_definition(store: Store, name: str) -> None:
    """Forget an export and how far it is; its tables stay."""
    found = read_definition(store, name)
    store.delete(_key(name))
    store.delete_tree(f"jobs/export/{found.id}")


def _key(name: str) -> str:
    return f"{FOLDER}/{name}.json"
