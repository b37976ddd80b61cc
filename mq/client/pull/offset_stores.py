"""Where a pull consumer keeps how far it is, so that it goes on there: in a group, or by itself (SPEC CONS-1, CONS-4).

shared      GroupOffsets("audit")          the group's offsets: whoever pulls for it next goes on there
broadcast   FileOffsets("audit.json")      every client hears everything; its progress is its own affair
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from mq.client.admin import Admin, GroupPlace
from mq.client.http import decode_as
from mq.errors import NotFound, Refused

__all__ = ["FileOffsets", "GroupOffsets", "OffsetStore"]


class OffsetStore(Protocol):
    """Keeps offsets by partition of one topic: the next ones that are wanted."""

    def load(self, admin: Admin, topic: str) -> dict[str, int]:
        """What was saved; nothing at first."""

    def save(self, admin: Admin, topic: str, offsets: Mapping[str, int]) -> None:
        """Keep these; when this returns, they survive a crash.

        Raises
        ------
        Conflict
            `epoch_over`: somebody has put what is kept elsewhere since it was loaded. Load it again.
        """


class GroupOffsets:
    """The offsets of a shared group; it is made with the first commit.

    An exclusive group's partitions are pulled with locks: see `OrderlyConsumer`.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        #: By consumer and topic, where the group was when that consumer asked: each learns of a reset by itself.
        self._places: WeakKeyDictionary[Admin, dict[str, GroupPlace]] = WeakKeyDictionary()

    def load(self, admin: Admin, topic: str) -> dict[str, int]:
        """Where the group is."""
        try:
            place = admin.group_place(self.group, topic)
        except NotFound as error:
            if error.code != "group_not_found":
                raise
            place = GroupPlace(offsets={})
        self._places.setdefault(admin, {})[topic] = place
        return dict(place.offsets)

    def save(self, admin: Admin, topic: str, offsets: Mapping[str, int]) -> None:
        """Commit; a group never goes back by this (CONS-4), and one that was put elsewhere stays there (POP-18)."""
        places = self._places.setdefault(admin, {})
        loaded = places.get(topic, GroupPlace(offsets={}))
        now = admin.commit_place(self.group, topic, replace(loaded, offsets=dict(offsets)))
        # Where it had not begun, nobody could say of which epoch that was.
        places[topic] = replace(
            now,
            epochs=now.epochs | loaded.epochs,
            topic_id=now.topic_id if loaded.topic_id is None else loaded.topic_id,
        )


class FileOffsets:
    """Offsets in a file of this client alone, by topic."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self, admin: Admin, topic: str) -> dict[str, int]:
        """What the file says."""
        return self._read().get(topic, {})

    def save(self, admin: Admin, topic: str, offsets: Mapping[str, int]) -> None:
        """Replace the file as a whole."""
        everything = {**self._read(), topic: dict(offsets)}
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(everything))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def _read(self) -> dict[str, dict[str, int]]:
        try:
            return decode_as(self.path.read_bytes(), dict[str, dict[str, int]])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            raise Refused(
                f"{self.path} holds no offsets: {error}", code="offsets_unreadable", field="offsets"
            ) from error
