"""Where a partition's table lives below the warehouse.

topics/<topic>/<name>@<broker>/     retry/...  dlq/...  sys/...     the same table format in each space
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mq.names import decode_path, encode_path, split_partition

__all__ = ["LOG_FOLDER", "PartitionRef", "Space", "data_file_name", "parse_ref", "start_of_data_file"]

LOG_FOLDER = "_delta_log"


class Space(enum.Enum):
    """The kinds of message tables."""

    TOPICS = "topics"  #: what users create
    RETRY = "retry"  #: a group's messages to be delivered again
    DLQ = "dlq"  #: a group's dead letters
    SYS = "sys"  #: DeltaMQ's own logs


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """One physical partition: `name` is written `NAME@BROKER` (SPEC MODEL-1)."""

    space: Space
    topic: str
    name: str

    @property
    def topic_folder(self) -> str:
        return f"{self.space.value}/{encode_path(self.topic)}"

    @property
    def folder(self) -> str:
        """The table's folder, relative to the warehouse."""
        name, broker = split_partition(self.name)
        return f"{self.topic_folder}/{encode_path(name)}@{encode_path(broker)}"


def parse_ref(space: Space, topic_folder: str, partition_folder: str) -> PartitionRef:
    """The partition of two folder names, as `PartitionRef.folder` made them."""
    name, _, broker = partition_folder.partition("@")
    return PartitionRef(space, decode_path(topic_folder), f"{decode_path(name)}@{decode_path(broker)}")


def data_file_name(start: int, batch_id: str) -> str:
    """A data file's name: its first offset, for people and for repair, then the id of the batch."""
    return f"{start:020d}-{batch_id}.parquet"


def start_of_data_file(name: str) -> int:
    """The first offset that a data file's name promises."""
    return int(name[:20])
