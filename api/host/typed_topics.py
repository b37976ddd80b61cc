"""How a topic becomes a typed one (SPEC TYPE-1); `tables.queue.topic_codecs` has the codecs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.mq.errors import DeltaMQError, Unavailable, Unprocessable
from deltamq.mq.meta.features import SCHEMAS, decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import MetaState, check_schema
from deltamq.mq.schemas.changes import resolved
from deltamq.mq.schemas.registry import Reference, Schema
from deltamq.mq.schemas.setting import Format, OnInvalid, SchemaSetting, Wire, subject_of
from deltamq.tables.queue import topic_codecs
from deltamq.tables.typed.codec import codec_of

#: How long an id that the newest metadata did not have is not looked for again.
_LOOKED_S: Final = 1.0


class WantedSchema(NamedTuple):
    """What a request says of a topic's schema."""

    setting: SchemaSetting
    #: A new version of the subject; None if the ones that are there are meant.
    schema: Schema | None


class TopicCodecs(topic_codecs.TopicCodecs):
    """The codecs of all typed topics, for messages that come; used on the event loop and on threads."""

    def __init__(self, meta: HostedMeta, alone: Callable[[], bool]) -> None:
        """`alone` says whether no other process can have registered a schema."""
        super().__init__(lambda: meta.now)
        self._hosted = meta
        self._alone = alone
        self._loop = asyncio.get_running_loop()
        self._looked_s = -math.inf
        self._looking: asyncio.Task[None] | None = None
        #: Asks a registry elsewhere for a schema that is not known; None: there is none.
        self.want: Callable[[str, int], None] | None = None

    def _want(self, subject: str, id_: int) -> None:
        """Let the newest metadata be read: the process that registered the schema may not have reached this one.

        Once a second at most, since the bodies of a batch may name many schemas that there are not.

        Raises
        ------
        Unavailable
            `schema_pending`: it is looked for, here or at the registry elsewhere; or what that raises.
        """
        if not self._alone() and self._loop.time() - self._looked_s > _LOOKED_S:
            self._loop.call_soon_threadsafe(self._look)
            raise Unavailable(f"schema {id_} of subject {subject} is looked for", code="schema_pending")
        if self.want is not None:
            self.want(subject, id_)

    def _look(self) -> None:
        if self._looking is None:
            self._looking = self._loop.create_task(self._look_once())

    async def _look_once(self) -> None:
        try:
            with suppress(DeltaMQError):  # whoever asks again hears it
                await self._hosted.refresh()
                self._looked_s = self._loop.time()
        finally:
            self._looking = None


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
    return replace(request, schema=wanted.setting), list(decide_use(meta.features, meta.brokers.features, SCHEMAS))


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
