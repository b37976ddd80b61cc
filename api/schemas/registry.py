"""The registry of one process: reads what it knows, checks what is new, and stores it in the metadata (SPEC TYPE-20).

register:  known already? -> its id
           else read the newest metadata, check the text and its compatibility on a thread, and store both the
           schema and what the check stood on: a subject that another process changed meanwhile is checked again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import structs

from deltamq.api.auth.caller import Caller, permit_put
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.api.host.typed_topics import WantedSchema, check_wanted
from deltamq.api.schemas.outside import OutsideRegistry
from deltamq.api.schemas.texts import given_form, incompatible, rules_of, stored_form, texts_of
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.meta.features import SCHEMAS, decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topic_settings import schema_of
from deltamq.mq.meta.topics import MetaState
from deltamq.mq.schemas.changes import OWN_IDS, decide_follow, decide_register, resolved
from deltamq.mq.schemas.registry import (
    Basis,
    RegistryState,
    Schema,
    SchemaDeleted,
    SchemaEvent,
    SubjectVersion,
    Version,
    topic_of_subject,
)
from deltamq.mq.schemas.setting import SchemaSetting

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

#: Times that a registration is checked again, because another one was faster.
_CHECKS_MAX: Final = 10


class Registry:
    """Subjects and schemas; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners) -> None:
        self._meta = meta
        self._owners = owners
        #: The registry whose schemas are imported; None: this one is the only one.
        self.outside: OutsideRegistry | None = None
        # One check at a time: each may take a second of the interpreter, and memory for two large schemas.
        self._checking = asyncio.Lock()

    @property
    def state(self) -> RegistryState:
        """What this process knows."""
        return self._meta.now.schemas

    async def look(self, look: Callable[[RegistryState], T | None]) -> T | None:
        """Return what `look` sees, by the newest metadata if it sees nothing in what this process knows."""
        seen = look(self.state)
        return seen if seen else look((await self._meta.refresh()).schemas)

    async def newest(self) -> RegistryState:
        """Return the newest state."""
        return (await self._meta.refresh()).schemas

    def subject_of(self, topic: str) -> str | None:
        """Return the subject of a topic's values; None for a topic of bytes, or one that is not known."""
        known = self._meta.now.topics.topics.get(topic)
        setting = None if known is None else schema_of(known.settings)
        return None if setting is None else setting.subject

    async def change(self, decide: Callable[[Meta], Sequence[SchemaEvent]], call: Call) -> RegistryState:
        """Store what `decide` returns for the newest state, and let other processes read it; return the new state.

        Raises
        ------
        Unprocessable
            `reference_exists`: a topic has the schemas that would be deleted for good.
        DeltaMQError
            What `decide` raises.
        """

        def deciding(meta: Meta) -> Sequence[AnyEvent]:
            events = decide(meta)
            _check_unused(meta, events)
            return _with_feature(meta, events)

        meta = await self._meta.submit_any(deciding)
        log.info("event=schemas_changed call=%r by=%r", call.target.decode("ascii", "replace"), call.principal)
        await self._owners.tell(meta.brokers.brokers, call)
        return meta.schemas

    def stored(self, subject: str, schema: Schema, *, normalize: bool) -> Schema:
        """Return a schema in the form in which it would be stored as a version of a subject, or is."""
        text = stored_form(schema.schema_type, schema.schema, normalize=normalize)
        stored = structs.replace(schema, schema=text)
        if normalize:
            return stored
        # A text that came with its id, or before Avro's texts had a form, is there as it was given.
        given, state = _as_given(schema), self.state
        is_only_one = state.id_of(stored) is None and state.id_of(given) is not None
        return given if is_only_one or self._has(subject, given) else stored

    def _has(self, subject: str, schema: Schema) -> bool:
        return self.state.find(subject, schema, deleted=True) is not None

    async def register(
        self,
        subject: str,
        schema: Schema,
        *,
        id_: int | None,
        number: int | None,
        call: Call,
        normalize: bool = False,
    ) -> Version:
        """Return the version of a subject that a schema is; register it if there is none yet.

        Raises
        ------
        Conflict
            `incompatible_schema`, with the reasons; `registry_changed`: others change the subject all the time.
        DeltaMQError
            What `resolved` and `decide_register` raise, and the rules of its type about its text.
        """
        self._check_own(schema)
        # Of two ids elsewhere with texts of one form both come here: a text with its id stays as it is.
        is_import = id_ is not None and not normalize
        schema = _as_given(schema) if is_import else self.stored(subject, schema, normalize=normalize)
        if id_ is None and number is None and (known := self.state.find(subject, schema)) is not None:
            return known
        for _ in range(_CHECKS_MAX):
            meta = await self._meta.refresh()
            version = resolved(meta.schemas, subject, schema)
            whole = structs.replace(schema, references=version.references)
            basis = None
            if meta.schemas.find(subject, whole) is None:
                basis = await self._check(meta, version, whole)
            decide = partial(_registration, meta, subject, whole, basis, id_, number, self._ids_from)
            try:
                after = await self.change(decide, call)
            except Conflict as error:
                if error.code != "registry_changed":
                    raise
                continue
            registered = after.find(subject, whole)
            assert registered is not None, "it was stored, or was there"
            return registered
        raise Conflict(f"subject {subject} is changed by others all the time; try again", code="registry_changed")

    @property
    def _ids_from(self) -> int:
        return 1 if self.outside is None else OWN_IDS

    def _check_own(self, schema: Schema) -> None:
        """Refuse to register here what the registry elsewhere has; it knows no columns."""
        if self.outside is not None and schema.schema_type != "COLUMNS":
            raise Unprocessable(
                f"schemas are those of {self.outside.url}: register them there", code="operation_not_permitted"
            )

    async def follow(self, version: Version) -> None:
        """Store a version of the registry elsewhere, if the topics of its subject can have columns for it.

        Raises
        ------
        DeltaMQError
            It is no schema, a topic can have no columns for it, or its id or number are another one's here.
        """
        schema = Schema(schema_type=version.schema_type, schema=version.schema, references=version.references)
        schema = _as_given(schema)
        version = structs.replace(version, schema=schema.schema)
        meta = await self._meta.refresh()
        await self._check_topics(meta, version.subject, schema)

        def deciding(now: Meta) -> Sequence[AnyEvent]:
            return _with_feature(now, decide_follow(now.schemas, version))

        await self._meta.submit_any(deciding)
        log.info("event=schema_imported subject=%r version=%d id=%d", version.subject, version.version, version.id)

    async def reasons_against(self, subject: str, schema: Schema, number: int | None) -> list[str]:
        """Return why a schema may not be the next version of a subject, as it is stored; an empty list if it may.

        With the `number` of a version it is compared with this one. Raises `Unprocessable` for a text that is no
        schema, or from which a topic of the subject cannot have columns.
        """
        meta = await self._meta.refresh()
        state = meta.schemas
        basis = state.basis(subject)
        if number is not None:
            basis = basis._replace(versions=(SubjectVersion(subject, number),))
        reasons = list(await self.differences(state, resolved(state, subject, schema), basis))
        try:
            await self._check_topics(meta, subject, schema)
        except Conflict as error:
            reasons.append(error.detail)
        return reasons

    async def _check(self, meta: Meta, version: Version, schema: Schema) -> Basis:
        """Check a schema's text, and that its subject and the topics that have it may get it; return the basis."""
        state = meta.schemas
        basis = Basis("NONE", ()) if state.mode(version.subject) == "IMPORT" else state.basis(version.subject)
        reasons = await self.differences(state, version, basis)
        if reasons:
            raise Conflict(
                f"Schema being registered is incompatible with an earlier schema for subject {version.subject!r} "
                f"(compatibility {basis.compatibility}): {'; '.join(reasons)}",
                code="incompatible_schema",
                field="schema",
            )
        await self._check_topics(meta, version.subject, schema)
        return basis

    async def _check_topics(self, meta: Meta, subject: str, schema: Schema) -> None:
        """Return if the topics of a subject can have columns for this schema, too; raises as `check_wanted` does."""
        topics = {setting: topic for topic, setting in topics_of(meta, subject)}
        async with self._checking:
            for setting, topic in topics.items():
                await asyncio.to_thread(check_wanted, meta, topic, WantedSchema(setting, schema))

    async def check_for(
        self, topic: str, schema: Callable[[MetaState], WantedSchema], permit: Callable[[bool], None] | None = None
    ) -> WantedSchema:
        """Return what schema a topic is to have by the newest metadata, if it may; raise as `check_wanted` does.

        `permit` is called with whether the topic exists, and raises if the caller may not change it, or make it.
        """
        meta = await self._meta.refresh()
        if permit is not None:
            permit(topic in meta.topics.topics)
        wanted = schema(meta.topics)
        check_wanted(meta, topic, wanted)
        return wanted

    async def register_for(
        self, topic: str, schema: Callable[[MetaState], WantedSchema], caller: Caller, call: Call
    ) -> None:
        """Register the version that a request brings of its topic's subject, once all else about it is right.

        Raises
        ------
        Forbidden
            The caller may not change or make the topic, or the subject has the access rules of another one (TYPE-26).
        """
        if self.outside is not None:
            asked = schema((await self._meta.refresh()).topics)
            if asked.setting.schema_type != "COLUMNS":
                await self.outside.bring(asked.setting.subject)
        wanted = await self.check_for(topic, schema, permit_put(caller, topic))
        subject = wanted.setting.subject
        if topic_of_subject(subject) != topic and (wanted.schema is not None or self.subject_of(topic) != subject):
            caller.require("topic", topic_of_subject(subject), "describe" if wanted.schema is None else "alter")
        if wanted.schema is not None:
            await self.register(subject, wanted.schema, id_=None, number=None, call=call)

    async def parsed(self, version: Version) -> Any:
        """Return a registered schema as the rules of its type take it."""
        async with self._checking:
            return await asyncio.to_thread(rules_of(version.schema_type).parsed, texts_of(self.state, version))

    async def differences(self, state: RegistryState, version: Version, basis: Basis) -> Sequence[str]:
        """Return why a schema is not compatible; raise `Unprocessable` (`invalid_schema`) if its text is none."""
        async with self._checking:
            return await asyncio.to_thread(_checked, state, version, basis)


def _as_given(schema: Schema) -> Schema:
    """Return a schema with its text as it was given, but for spaces."""
    return structs.replace(schema, schema=given_form(schema.schema_type, schema.schema))


def topics_of(meta: Meta, subject: str) -> list[tuple[str, SchemaSetting]]:
    """Return the typed topics whose values are written with a subject's schemas, and their settings."""
    settings = ((topic.name, schema_of(topic.settings)) for topic in meta.topics.topics.values())
    return [(name, setting) for name, setting in settings if setting is not None and setting.subject == subject]


def subjects_without_ids(meta: Meta) -> set[str]:
    """Return the subjects of the typed topics whose bodies do not say which version wrote them."""
    settings = (schema_of(topic.settings) for topic in meta.topics.topics.values())
    return {each.subject for each in settings if each is not None and each.wire == "none" and each.format != "columns"}


def _registration(
    checked: Meta,
    subject: str,
    schema: Schema,
    basis: Basis | None,
    id_: int | None,
    number: int | None,
    ids_from: int,
    meta: Meta,
) -> Sequence[SchemaEvent]:
    """Return what registers a schema that was checked in `checked`, also for the topics that its subject has now."""
    events = decide_register(meta.schemas, subject, schema, basis=basis, id_=id_, number=number, ids_from=ids_from)
    if events and topics_of(meta, subject) != topics_of(checked, subject):
        raise Conflict(f"subject {subject} got another topic meanwhile; try again", code="registry_changed")
    return events


def _with_feature(meta: Meta, events: Sequence[SchemaEvent]) -> Sequence[AnyEvent]:
    return (*decide_use(meta.features, meta.brokers.features, SCHEMAS), *events) if events else ()


def _check_unused(meta: Meta, events: Sequence[SchemaEvent]) -> None:
    """Refuse to delete for good what messages of a topic were written with."""
    for event in events:
        if isinstance(event, SchemaDeleted) and event.permanent and (used := topics_of(meta, event.subject)):
            raise Unprocessable(
                f"the messages of topic {used[0][0]} were written with the schemas of subject {event.subject}",
                code="reference_exists",
                field="subject",
            )


def _checked(state: RegistryState, version: Version, basis: Basis) -> list[str]:
    rules_of(version.schema_type).parsed(texts_of(state, version))
    return incompatible(state, version, basis)
