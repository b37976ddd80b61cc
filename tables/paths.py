"""The folders of partitions' tables below the warehouse.

topics/<topic>/<name>@<broker>/     retry/...  dlq/...  sys/...     the same table format in each space
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from deltamq.mq.names import PartitionName, decode_path, encode_path

LOG_FOLDER = "_delta_log"
#: Prefix of the generation in a folder's name; no encoded name can contain it.
_GENERATION: Final = "~g"


class Space(enum.Enum):
    """The kinds of message tables."""

    TOPICS = "topics"  #: what users create
    RETRY = "retry"  #: a group's messages to be delivered again
    DLQ = "dlq"  #: a group's dead letters
    SYS = "sys"  #: DeltaMQ's own logs


class PartitionRef(msgspec.Struct, frozen=True):
    """One physical partition: `name` is written `NAME@BROKER` (SPEC MODEL-1).

    `generation` counts the earlier lives of the topic's name: a topic that is deleted and created again gets new
    folders, so a process that still knows the old ones finds them gone instead of writing into the new ones.
    """

    space: Space
    topic: str
    name: str
    generation: int = 0

    @property
    def topic_folder(self) -> str:
        """The folder of all partitions of the topic, relative to the warehouse."""
        return topic_folder(self.space, self.topic)

    @property
    def folder(self) -> str:
        """The table's folder, relative to the warehouse."""
        name, broker = PartitionName.parse(self.name)
        life = f"{_GENERATION}{self.generation}" if self.generation else ""
        return f"{self.topic_folder}/{encode_path(name)}@{encode_path(broker)}{life}"


def topic_folder(space: Space, topic: str) -> str:
    """Return the folder of all partitions of a topic, relative to the warehouse."""
    return f"{space.value}/{encode_path(topic)}"


def generation_of(partition_folder: str) -> int:
    """Return the generation of the topic that a partition's folder belongs to."""
    _, mark, generation = partition_folder.rpartition(_GENERATION)
    return int(generation) if mark else 0


def parse_ref(space: Space, topic_folder: str, partition_folder: str) -> PartitionRef | None:
    """Return the partition for two folder names that `PartitionRef.folder` made.

    None if a name was too long for its folder: the table's configuration has it (`mq.topic`, `mq.partition`).
    """
    generation = generation_of(partition_folder)
    name, _, broker = partition_folder.removesuffix(f"{_GENERATION}{generation}").partition("@")
    topic, name_, broker_ = decode_path(topic_folder), decode_path(name), decode_path(broker)
    if topic is None or name_ is None or broker_ is None:
        return None
    return PartitionRef(space, topic, f"{name_}@{broker_}", generation)


def data_file_name(start: int, batch_id: str) -> str:
    """Return a data file's name: its first offset (for people and for repair), then the batch id."""
    return f"{start:020d}-{batch_id}.parquet"


def start_of_data_file(name: str) -> int:
    """Return the first offset of a data file, from its name."""
    return int(name[:20])
