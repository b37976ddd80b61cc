"""Where a pull consumer starts, and where its offsets are stored, from which it goes on later (SPEC CONS-1, 4, 7).

It starts at the first offsets, the ends, an offset, a time, or one by partition. Stores:

    shared      GroupOffsets("audit")              the group's offsets: the next consumer of the group goes on from them
    broadcast   BroadcastOffsets("prices", "web1") every client reads all messages; the service has the offsets of each
    no group    FileOffsets("audit.json")          the same, without a group: the service knows nothing of the client
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.admin.admin import AdminCalls
from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.errors import Conflict, NotFound, Refused
from deltamq.mq.names import member_name, split_member
from deltamq.mq.wire.groups import FencedOffsets
from deltamq.mq.wire.topics import TopicInfo

log = logging.getLogger("deltamq.client")

Start: TypeAlias = str | int | datetime | Mapping[str, int]


async def start_offsets(
    admin: AdminCalls, info: TopicInfo, start: Start, names: Collection[str] | None = None
) -> dict[str, int]:
    """Return the offset at which to start, for each of these partitions or logical queues, by default for all.

    Raises
    ------
    DeltaMQError
        What `TopicInfo.min_offsets` raises, if an offset is needed that is not known.
    """
    wanted = [name for name in info.named if names is None or name in names]
    if isinstance(start, datetime):
        offsets = await AdminCalls.offsets_at.core(admin, info.topic, start) if wanted else {}
        return _kept(offsets, wanted)
    if isinstance(start, Mapping):
        return {**info.min_offsets([name for name in wanted if name not in start]), **_kept(start, wanted)}
    if start == "first":
        return info.min_offsets(wanted)
    if start == "last":
        return info.max_offsets(wanted)
    if not isinstance(start, int) or start < 0:
        raise Refused("start must be 'first', 'last', an offset, a time or offsets by partition", field="start")
    return dict.fromkeys(wanted, start)


async def resume_offsets(
    admin: AdminCalls,
    info: TopicInfo,
    start: Start,
    kept: Mapping[str, int],
    names: Collection[str] | None = None,
) -> dict[str, int]:
    """Return the offset at which to go on, for each of these partitions: the stored one, else the one by `start`.

    For a consumer of the whole topic (`names` is None) with stored offsets, partitions after the last stored one were
    added by an expansion since: they are read from their first message (SPEC MODEL-4), unless `start` names them.
    """
    everything = list(info.named)
    last = max((at for at, name in enumerate(everything) if name in kept), default=None)
    named = start if isinstance(start, Mapping) else {}
    added = [] if names is not None or last is None else [name for name in everything[last + 1 :] if name not in named]
    stored = _kept(kept, everything if names is None else names)
    asked = [name for name in everything if (names is None or name in names) and name not in {*added, *stored}]
    offsets = {**await start_offsets(admin, info, start, asked), **info.min_offsets(added), **stored}
    return {name: offsets[name] for name in everything if name in offsets}


def _kept(offsets: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    return {name: offsets[name] for name in names if name in offsets}


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class OffsetStore(Protocol):
    """A store of offsets by topic and partition: the next ones to be read.

    Offsets belong to one life of a topic, which `topic_id` names: a topic that was deleted and made again has another
    (SPEC MODEL-6). Its methods are plain functions, which may block, or coroutine functions.
    """

    def load(
        self, admin: AdminCalls, topic: str, topic_id: str
    ) -> dict[str, int] | Coroutine[Any, Any, dict[str, int]]:
        """Return the saved offsets by partition; empty at first, and if the saved ones belong to another life."""

    def save(
        self, admin: AdminCalls, topic: str, topic_id: str, offsets: Mapping[str, int]
    ) -> Coroutine[Any, Any, None] | None:
        """Save these offsets durably: once this returns, they survive a crash.

        Raises
        ------
        Conflict
            `epoch_over`: the stored offsets were reset since they were loaded, or the topic was made again. Load them
            again.
        """


class GroupOffsets:
    """The offsets of a shared group, which the first commit creates.

    Partitions of an exclusive group are pulled with locks: see `OrderlyConsumer`.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        #: The group's place at the last load, by consumer and topic: each consumer notices a reset by itself.
        self._places: WeakKeyDictionary[AdminCalls, dict[str, FencedOffsets]] = WeakKeyDictionary()

    async def load(self, admin: AdminCalls, topic: str, topic_id: str) -> dict[str, int]:
        """Return the group's offsets; empty if there is no such group yet."""
        try:
            place = await AdminCalls.fenced_offsets.core(admin, self.group, topic)
        except NotFound as error:
            if error.code != "group_not_found":
                raise
            place = FencedOffsets(offsets={})
        if place.topic_id not in (None, topic_id):
            place = FencedOffsets(offsets={})  # made again between two calls: the next commit is refused
        self._places.setdefault(admin, {})[topic] = replace(place, topic_id=topic_id)
        return dict(place.offsets)

    async def save(self, admin: AdminCalls, topic: str, topic_id: str, offsets: Mapping[str, int]) -> None:
        """Commit the offsets; a commit never moves a group back (CONS-4) and never undoes a reset (POP-18)."""
        places = self._places.setdefault(admin, {})
        loaded = places.get(topic, FencedOffsets(offsets={}))
        wanted = replace(loaded, offsets=dict(offsets), topic_id=topic_id)
        now = await AdminCalls.commit_fenced.core(admin, self.group, topic, wanted)
        # A partition in which the group had not begun had no epoch at the load; it gets this answer's.
        places[topic] = replace(now, epochs=now.epochs | loaded.epochs)


class BroadcastOffsets(GroupOffsets):
    """The offsets of one client of a broadcast group, which the first load creates.

    The service shows how far each client is behind (`GroupInfo.members`). A client that is gone for good is removed by
    `Admin.delete_group("GROUP@CLIENT")`.
    """

    def __init__(self, group: str, client_id: str) -> None:
        """`client_id` is up to 127 visible characters without `/`; the client must have the same after a restart."""
        super().__init__(member_name(group, client_id))
        if split_member(self.group) is None:
            raise Refused(
                f"{group!r} or {client_id!r} is not a name of a group or of a client",
                code="invalid_client_id",
                field="client_id",
            )
        self._broadcast_group = group

    async def load(self, admin: AdminCalls, topic: str, topic_id: str) -> dict[str, int]:
        """Return the client's offsets; empty at first.

        Raises
        ------
        Conflict
            `group_not_broadcast`: the group is shared or exclusive.
        """
        try:
            info = await AdminCalls.get_group.core(admin, self._broadcast_group)
        except NotFound:
            info = await AdminCalls.create_group.core(admin, self._broadcast_group, consume_strategy="broadcast")
        strategy = info.consume_strategy
        if strategy != "broadcast":
            raise Conflict(
                f"group {self._broadcast_group} is {strategy}, not broadcast: its clients share one progress",
                code="group_not_broadcast",
                field="group",
            )
        return await super().load(admin, topic, topic_id)


class _Kept(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The offsets of one topic in a file."""

    topic_id: str
    offsets: dict[str, int]


class FileOffsets:
    """Offsets in a file that belongs to one client, by topic."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self, admin: AdminCalls, topic: str, topic_id: str) -> dict[str, int]:
        """Return the offsets in the file of this life of the topic; empty if there are none."""
        kept = self._read().get(topic)
        if kept is None:
            return {}
        if kept.topic_id != topic_id:
            log.warning("event=topic_made_again topic=%s file=%s detail='offsets of the old topic'", topic, self.path)
            return {}
        return kept.offsets

    def save(self, admin: AdminCalls, topic: str, topic_id: str, offsets: Mapping[str, int]) -> None:
        """Replace the file as a whole."""
        everything = {**self._read(), topic: _Kept(topic_id=topic_id, offsets=dict(offsets))}
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(everything))
            file.flush()
            _sync(file.fileno())
        beside.replace(self.path)
        _sync_folder(self.path.parent)

    def _read(self) -> dict[str, _Kept]:
        try:
            return decode_as(self.path.read_bytes(), dict[str, _Kept])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            raise Refused(
                f"{self.path} holds no offsets: {error}", code="offsets_unreadable", field="offsets"
            ) from error


def _sync(fd: int) -> None:
    """Write a file to the drive; on macOS, `fsync` leaves it in the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):  # some file systems do not know it
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; a power cut may undo it before. Windows has no folders to open, and needs none."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        _sync(opened)
    finally:
        os.close(opened)
