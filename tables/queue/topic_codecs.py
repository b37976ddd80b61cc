"""The codecs of typed topics, by the metadata (SPEC TYPE-1).

A topic's setting names a subject of the registry, whose live versions are the topic's schema. A codec is made when a
message first needs it, and made again when the subject has another version: appends that are under way keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from deltamq.mq.errors import Conflict
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.topic_settings import schema_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.schemas.registry import Entry, RegistryState, Version
from deltamq.mq.schemas.setting import SchemaSetting
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.waiting_rows import arrived
from deltamq.tables.typed.codec import Codec, codec_of
from deltamq.tables.typed_row import untyped


class _Made(NamedTuple):
    setting: SchemaSetting
    entries: Mapping[int, Entry]
    codec: Codec


class TopicCodecs:
    """The codecs of all typed topics. Safe for threads."""

    def __init__(self, meta: Callable[[], Meta], refresh: Callable[[], object] | None = None) -> None:
        """`meta` returns the present metadata; `refresh`, if it is given, reads the newest for messages that arrive."""
        self._meta = meta
        self._refresh = refresh
        self._made: dict[str, _Made] = {}

    def of(self, topic: Topic) -> Codec | None:
        """Return the topic's codec by the present metadata; None for a topic of bytes.

        Raises
        ------
        Conflict
            `schema_missing`: its subject has no version any more.
        """
        setting = schema_of(topic.settings)
        if setting is None:
            return None
        registry = self._meta().schemas
        entries = registry.subjects.get(setting.subject, {})
        made = self._made.get(topic.id)
        if made is None or made.setting != setting or made.entries is not entries:
            made = self._made[topic.id] = _Made(setting, entries, self._codec(setting, registry))
        return made.codec

    def of_partition(self, ref: PartitionRef) -> Codec | None:
        """Return the codec of a partition's topic; None for other logs, and for topics of bytes."""
        if ref.space is not Space.TOPICS:
            return None
        topic = self._meta().topics.topics.get(ref.topic)
        return None if topic is None else self.of(topic)

    def typed(self, topic: Topic, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as the topic's partitions store them, with columns if it has a schema."""
        codec = self.of(topic)
        return untyped(rows) if codec is None else codec.typed(rows)

    def arrived(self, topic: Topic, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that waited as the topic's partitions store them (SPEC TYPE-42).

        A message whose body does not fit gets `invalid`, whatever the topic's `on_invalid` is: it was accepted before.
        Its schema may have been registered after the metadata was read.
        """
        refresh = self._refresh
        if refresh is None:
            return arrived(rows, self.of(topic))

        def newest() -> Codec | None:
            refresh()
            return self.of(topic)

        return arrived(rows, self.of(topic), newest)

    def _want(self, subject: str, id_: int) -> None:
        """Return if no registry has a schema with this id; raise `Unavailable` if one is asked for it."""

    def _codec(self, setting: SchemaSetting, registry: RegistryState) -> Codec:
        every = registry.versions(setting.subject, deleted=True)
        versions = registry.versions(setting.subject) or every
        if not versions:
            raise Conflict(
                f"schema: subject {setting.subject} has no version; register one", code="schema_missing", field="schema"
            )

        def by_id(id_: int) -> Version | None:
            places = self._meta().schemas.places(id_)
            if all(one.subject != setting.subject for one in places):
                self._want(setting.subject, id_)
            return next((one for one in places if one.subject == setting.subject), next(iter(places), None))

        retired = [version.id for version in every if version not in versions]
        return codec_of(setting, versions, by_id, registry.with_references, retired=retired)
