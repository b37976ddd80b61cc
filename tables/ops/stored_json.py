"""Small JSON files in the warehouse: definitions by users, and their progress."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from deltamq.mq.errors import Corrupt, Refused
from deltamq.tables.store.store import FileMissing, Store

Stored = TypeVar("Stored")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_JSON: Final = ".json"


def check_name(name: str) -> None:
    """Raise `Refused` unless a name can be a file name."""
    if not _NAME.fullmatch(name):
        raise Refused("name: 1 to 100 characters of A-Z a-z 0-9 . _ -", field="name")


def names_in(store: Store, folder: str) -> list[str]:
    """Return the names of the definitions in a folder, in order."""
    return sorted(name.removesuffix(_JSON) for name in store.names(folder) if name.endswith(_JSON))


def read_stored(store: Store, key: str, decoder: msgspec.json.Decoder[Stored]) -> Stored | None:
    """Return the content of a file; None if it does not exist.

    Raises
    ------
    Corrupt
        The file is damaged.
    """
    try:
        return decoder.decode(bytes(store.read(key)))
    except FileMissing:
        return None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{key} is damaged: {error}") from error
