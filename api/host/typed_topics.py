"""The codecs of typed topics, and how a topic becomes one (SPEC TYPE-1).

A topic's setting names a subject of the registry, whose live versions are the topic's schema. A codec is made when a
message first needs it, and made again when the subject has another version: appends that are under way keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.wire.request import one_of
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.meta.features import decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topic_settings import TopicRequest, schema_of
from deltamq.mq.meta.topics import MetaState, Topic, check_schema
from deltamq.mq.schemas.changes import resolved
from deltamq.mq.schemas.registry import Entry, Reference, RegistryState, Schema, Version
from deltamq.mq.schemas.setting import Format, OnInvalid, SchemaSetting, Wire, subject_of
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.typed.codec import Codec, codec_of

FEATURE: Final = "schemas"


class WantedSchema(NamedTuple):
    """What a request says of a topic's schema."""

    setting: SchemaSetting
    #: A new version of the subject; None if the ones that are there are meant.
    schema: Schema | None


class _Made(NamedTuple):
    setting: SchemaSetting
    entries: Mapping[int, Entry]
    codec: Codec


class TopicCodecs:
    """The codecs of all typed topics; used on the event loop and on threads."""

    def __init__(self, meta: HostedMeta) -> None:
        self._meta = meta
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
        registry = self._meta.now.schemas
        entries = registry.subjects.get(setting.subject, {})
        made = self._made.get(topic.id)
        if made is None or made.setting != setting or made.entries is not entries:
            made = self._made[topic.id] = _Made(setting, entries, self._codec(setting, registry))
        return made.codec

    def asked(self, topic: Topic, parameters: dict[str, str]) -> Codec | None:
        """Return the codec of a topic whose values a query asks for (`typed=true`); None if it does not.

        Raises
        ------
        Unprocessable
            `no_schema`: the topic has none.
        """
        if one_of(parameters, "typed", ("true", "false")) != "true":
            return None
        codec = self.of(topic)
        if codec is None:
            raise Unprocessable(
                f"typed: topic {topic.name} has no schema; leave it out to get bodies", code="no_schema", field="typed"
            )
        return codec

    def of_partition(self, ref: PartitionRef) -> Codec | None:
        """Return the codec of a partition's topic; None for other logs, and for topics of bytes."""
        if ref.space is not Space.TOPICS:
            return None
        topic = self._meta.now.topics.topics.get(ref.topic)
        return None if topic is None else self.of(topic)

    def _codec(self, setting: SchemaSetting, registry: RegistryState) -> Codec:
        versions = registry.versions(setting.subject) or registry.versions(setting.subject, deleted=True)
        if not versions:
            raise Conflict(
                f"schema: subject {setting.subject} has no version; register one", code="schema_missing", field="schema"
            )

        def by_id(id_: int) -> Version | None:
            places = self._meta.now.schemas.places(id_)
            return next((one for one in places if one.subject == setting.subject), next(iter(places), None))

        return codec_of(setting, versions, by_id, registry.with_references)


def check_wanted(meta: Meta, name: str, wanted: WantedSchema) -> None:
    """Return if a topic may have this schema, whose text may not be registered yet.

    Raises
    ------
    Unprocessable
        `invalid_schema`: it is no schema of its format, its values have no columns, or there is none.
    Conflict
        `schema_fixed`: the topic has another format or subject. `schema_conflict`: a field has another type now, and
        can have no second column.
    """
    present = meta.topics.topics.get(name)
    if present is not None:
        check_schema(name, present.settings, wanted.setting)
    setting, registry = wanted.setting, meta.schemas
    versions = list(registry.versions(setting.subject))
    if wanted.schema is not None and registry.find(setting.subject, wanted.schema) is None:
        new = resolved(registry, setting.subject, wanted.schema)
        versions.append(msgspec.structs.replace(new, version=versions[-1].version + 1 if versions else 1))
    if not versions:
        raise Unprocessable(
            f"schema: subject {setting.subject} has no version; give the schema's text as `schema.schema`",
            code="invalid_schema",
            field="schema.schema",
        )
    if any(version.schema_type != setting.schema_type for version in versions):
        raise Unprocessable(
            f"schema.format: subject {setting.subject} has versions of type {versions[-1].schema_type}",
            code="invalid_schema_setting",
            field="schema.format",
        )
    codec_of(setting, versions, registry.by_id, registry.with_references)


def with_schema(
    meta: Meta, name: str, request: TopicRequest, schema: Callable[[MetaState], WantedSchema] | None
) -> tuple[TopicRequest, list[AnyEvent]]:
    """Return a topic's request with the schema that it gets, and the events that come before its own."""
    if schema is None:
        return request, []
    wanted = schema(meta.topics)
    check_wanted(meta, name, wanted._replace(schema=None))
    return replace(request, schema=wanted.setting), list(decide_use(meta.features, meta.brokers.features, FEATURE))


def wanted_schema(
    topic: str,
    present: SchemaSetting | None,
    *,
    format: Format | None,
    subject: str | None,
    schema: str | None,
    references: tuple[Reference, ...],
    message: str | None,
    wire: Wire | None,
    on_invalid: OnInvalid | None,
    unwrap: str | None,
) -> WantedSchema:
    """Return what a request asks of a topic: parts that it leaves out stay as they are, or get their defaults.

    Raises
    ------
    Unprocessable
        `invalid_schema_setting`: a part is missing, or does not fit the others.
    """
    chosen = format or (present.format if present else None)
    if chosen is None:
        raise Unprocessable(
            "schema.format: say what messages are written in: avro, json, protobuf or columns",
            code="invalid_schema_setting",
            field="schema.format",
        )
    setting = SchemaSetting(
        format=chosen,
        subject=subject or (present.subject if present else subject_of(topic)),
        message=message if message is not None else (present.message if present else ""),
        wire=wire or (present.wire if present else "none"),
        on_invalid=on_invalid or (present.on_invalid if present else "reject"),
        unwrap="debezium" if unwrap == "debezium" else (present.unwrap if present and unwrap is None else ""),
    )
    setting.check()
    text = None if schema is None else Schema(schema_type=setting.schema_type, schema=schema, references=references)
    return WantedSchema(setting, text)
