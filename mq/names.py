"""Names of topics, groups and partitions: what is allowed, and how a name becomes a folder.

Topics follow RocketMQ's rule, groups Kafka's (SPEC MODEL-5). A partition is `NAME@BROKER` (MODEL-1). A folder name may
hold only `[A-Za-z0-9._-]`. Every other byte is written `~XX`, and so is a leading `.` or `_`, because Hadoop and Spark
ignore such folders. The encoding is one to one, so no two names share a folder and no name escapes its parent folder.
The folder of a name that is too long keeps the beginning of the name and ends in a digest. Such a folder cannot be
decoded; the table inside holds the name.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Final, NamedTuple

from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import FOLDER_LENGTH_MAX, GROUP_LENGTH_MAX, NAME_LENGTH_MAX, TOPIC_LENGTH_MAX

_TOPIC: Final = re.compile(rf"[A-Za-z0-9._%|\-]{{1,{TOPIC_LENGTH_MAX}}}")
#: A group is what Kafka's clients call it. A `/` would be two parts of a path, `@` marks a client of a group
#: (`member_name`), and `*` the patterns of access rules.
_GROUP: Final = r"[^\x00-\x1f\x7f/@*]"
#: The name of a topic, and a number behind it.
_PARTITION_LENGTH_MAX: Final = TOPIC_LENGTH_MAX + len("#1023")
_PARTITION: Final = re.compile(rf"[A-Za-z0-9._%|#\-]{{1,{_PARTITION_LENGTH_MAX}}}")
_GROUP_TEXT: Final = re.compile(rf"{_GROUP}{{0,{GROUP_LENGTH_MAX}}}")
#: A group and a client's id (`mq.wire.CLIENT_PATTERN`).
_MEMBER: Final = re.compile(rf"({_GROUP}{{1,{GROUP_LENGTH_MAX}}})@([!-.0-~]{{1,{NAME_LENGTH_MAX}}})")
_BROKER: Final = re.compile(r"[A-Za-z0-9._\-]{1,127}")
#: What no tag has (SPEC CONS-10): subscriptions are written `TagA||TagB`, or `*`, and people write `A,B` or `A && B`. A
#: tag that has one of these could be sent and never subscribed. In the syntax of RE2 and of Python.
TAG_NOT_IN: Final = r"[\x00-\x20\x7f*|&,]"
_NOT_IN_TAG: Final = re.compile(TAG_NOT_IN)
_SYSTEM_PREFIXES: Final = ("%RETRY%", "%DLQ%", "rmq_sys_", "sys/")
#: What Kafka's clients call the committed offsets of all groups (SPEC KAFKA-30), and the id of that topic, which is in
#: no metadata.
CONSUMER_OFFSETS: Final = "__consumer_offsets"
CONSUMER_OFFSETS_ID: Final = "af72274a-507a-52f1-85a9-632330fe7fe0"
#: Folders that are remembered by name: each access to a table asks for one.
_FOLDERS_KEPT: Final = 4_096
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
#: Marks a digest. It is not an escape, so the folder of a short name never contains it.
_DIGEST: Final = "~h"
_ESCAPE: Final = re.compile(r"~([0-9A-F]{2})")


def is_system(name: str) -> bool:
    """Return whether `name` is reserved for DeltaMQ: clients may neither create it nor produce to it."""
    return name.startswith(_SYSTEM_PREFIXES)


def is_tag(text: str) -> bool:
    """Whether a text can be a tag, apart from its length."""
    return bool(text) and _NOT_IN_TAG.search(text) is None


def check_tag(tag: str, field: str = "tag") -> str:
    """Return the tag, or raise `Unprocessable` if it is none; its length is checked elsewhere."""
    if not is_tag(tag):
        raise Unprocessable(
            f"{field}: a tag has no spaces and none of * | & , ({tag[:40]!r}); several are written TagA||TagB",
            code="invalid_tag",
            field=field,
        )
    return tag


def _check(name: str, *, kind: str, pattern: re.Pattern[str], limit: int) -> str:
    if pattern.fullmatch(name) is None or name in (".", ".."):
        raise Refused(
            f"{kind} must be 1 to {limit} characters of A-Z a-z 0-9 . _ % | - and not '.' or '..'",
            code=f"invalid_{kind}_name",
            field=kind,
            extra={"limit": limit},
        )
    return name


def check_topic(name: str) -> str:
    """Return `name` if it is a legal topic name, else raise `Refused` (SPEC MODEL-5)."""
    return _check(name, kind="topic", pattern=_TOPIC, limit=TOPIC_LENGTH_MAX)


def check_client_topic(name: str) -> str:
    """Return `name` if a client may create it and produce to it, else raise `Refused` (SPEC MODEL-5)."""
    if is_system(name) or name == CONSUMER_OFFSETS:
        raise Refused(
            f"names that start with %RETRY%, %DLQ%, rmq_sys_ or sys/, and {CONSUMER_OFFSETS}, belong to the system",
            code="system_name",
            field="topic",
        )
    return check_topic(name)


def check_group(name: str) -> str:
    """Return `name` if it is a legal group name, else raise `Refused` (SPEC MODEL-5)."""
    if not name or name in (".", "..") or not begins_group(name):
        raise Refused(
            f"group must be 1 to {GROUP_LENGTH_MAX} characters that can be printed, none of / @ *, and not '.' or '..'",
            code="invalid_group_name",
            field="group",
            extra={"limit": GROUP_LENGTH_MAX},
        )
    return name


def begins_group(text: str) -> bool:
    """Whether names of groups can begin with this text, which may be empty."""
    return _GROUP_TEXT.fullmatch(text) is not None and text.isprintable()


def member_name(group: str, client: str) -> str:
    """Return the name of a client of a broadcast group as a reader of its own, `GROUP@CLIENT` (SPEC CONS-7)."""
    return f"{group}@{client}"


def split_member(name: str) -> tuple[str, str] | None:
    """Return group and client of a `member_name`; None for any other name."""
    match = _MEMBER.fullmatch(name)
    return None if match is None or not match[1].isprintable() else (match[1], match[2])


def check_reader(name: str) -> str:
    """Return `name` if it is a legal name of a group, or of a client of a broadcast group, else raise `Refused`."""
    return name if split_member(name) is not None else check_group(name)


def check_broker(name: str) -> str:
    """Return `name` if it is a legal broker name, else raise `Refused`."""
    return _check(name, kind="broker", pattern=_BROKER, limit=NAME_LENGTH_MAX)


def partition_name(name: str, broker: str) -> str:
    """Return the full name of a partition, `NAME@BROKER` (SPEC MODEL-1)."""
    return f"{name}@{broker}"


class PartitionName(NamedTuple):
    """The two parts of a partition's full name (SPEC MODEL-1)."""

    name: str
    broker: str

    @classmethod
    def parse(cls, text: str) -> PartitionName:
        """Split `NAME@BROKER`.

        Raises
        ------
        Refused
            `invalid_partition_name` when the `@` is missing or a part is empty.
        """
        return cls(*_parts(text))

    def __str__(self) -> str:
        return partition_name(self.name, self.broker)


def broker_of(partition: str) -> str:
    """Return the broker of a partition `NAME@BROKER`; raises the same errors as `PartitionName.parse`."""
    return _parts(partition)[1]


def check_partition(name: str) -> str:
    """Return `name` if it is a legal name of a partition, else raise `Refused` (SPEC MODEL-1, ROUTE-8).

    Such a name is `NAME@BROKER`; NAME may have a `#`, and need not be the topic's.

    Raises
    ------
    Refused
        `invalid_partition_name`, `invalid_broker_name`, `system_name`.
    """
    parts = PartitionName.parse(name)
    if is_system(parts.name):
        raise Refused(f"{name} belongs to the system", code="system_name", field="partition")
    _check(parts.name, kind="partition", pattern=_PARTITION, limit=_PARTITION_LENGTH_MAX)
    check_broker(parts.broker)
    return name


def _parts(partition: str) -> tuple[str, str]:
    name, at, broker = partition.rpartition("@")
    if not at or not name or not broker:
        raise Refused(
            "partition must be written NAME@BROKER, for example orders@broker-a",
            code="invalid_partition_name",
            field="partition",
        )
    return name, broker


@functools.lru_cache(maxsize=_FOLDERS_KEPT)
def encode_path(name: str) -> str:
    """Return the folder of `name`: unique, only `[A-Za-z0-9._~-]`, not hidden, not `.` or `..`, at most 120 long."""
    raw = name.encode()
    out = [chr(b) if b in _SAFE else f"~{b:02X}" for b in raw]
    if raw[:1] in (b".", b"_"):
        out[0] = f"~{raw[0]:02X}"
    folder = "".join(out)
    if len(folder) <= FOLDER_LENGTH_MAX:
        return folder
    digest = hashlib.sha256(raw).hexdigest()[:32]
    return f"{folder[: FOLDER_LENGTH_MAX - len(digest) - 2]}{_DIGEST}{digest}"


def decode_path(folder: str) -> str | None:
    """Return the name that `encode_path` turned into `folder`; None when it ends in a digest, or holds no name."""
    if _DIGEST in folder:
        return None
    raw = bytearray()
    at = 0
    for match in _ESCAPE.finditer(folder):
        raw += folder[at : match.start()].encode()
        raw.append(int(match[1], 16))
        at = match.end()
    try:
        return (raw + folder[at:].encode()).decode()
    except UnicodeError:
        return None
