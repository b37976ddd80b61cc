"""The schema registry as a fold of events in the metadata log (SPEC TYPE-20).

    subject orders-value     version 1 -> id 7     version 2 -> id 9 (deleted)     version 3 -> id 9
    schemas                  id 7: text, references                                id 9: text, references

A schema's text is stored once, under its id: subjects and versions with the same text share it, also across deletions
that are not permanent. An id is never given to another text, because messages carry it. A version is never changed. So
a schema refers only to versions that were there before it, no circle can come to be, and a version stays while another
one refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.schemas.setting import SchemaType
from deltamq.mq.stored_json import Form, check_event, forms_of

#: How far a new version may differ from the last one, or (`_TRANSITIVE`) from all.
Compatibility: TypeAlias = Literal[
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"
]
Mode: TypeAlias = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"]

#: Names the rules for subjects that have none of their own.
ALL_SUBJECTS: Final = ""


class Reference(msgspec.Struct, frozen=True, array_like=True):
    """Another schema that a schema uses: the name by which its text does, and the version that is meant."""

    name: str
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schema's text, and what it refers to. Equal ones are the same schema."""

    schema_type: SchemaType = "AVRO"
    schema: str
    references: tuple[Reference, ...] = ()


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A schema as a version of a subject."""

    subject: str
    version: int
    id: int
    schema_type: SchemaType
    schema: str
    references: tuple[Reference, ...] = ()
    #: Deleted, but not permanently: readers of old messages still get it by its id.
    deleted: bool = False


class SubjectRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be done with a subject; unset where the rules for all subjects hold."""

    compatibility: Compatibility | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET


class Entry(NamedTuple):
    """What a version of a subject is: the id of its schema, and whether it is deleted."""

    id: int
    deleted: bool = False


class SubjectVersion(NamedTuple):
    """Where a schema is registered."""

    subject: str
    version: int


class Basis(NamedTuple):
    """What a check of compatibility stands on: it holds as long as this does."""

    compatibility: Compatibility
    versions: tuple[SubjectVersion, ...]


class SchemaRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """A subject got a version. The schema is there unless its id has it already."""

    kind: ClassVar[str] = "schema_registered"
    subject: str
    version: int
    id: int
    schema: Schema | UnsetType = UNSET

    @property
    def key(self) -> str:
        return f"schemas/{self.subject}"


class SchemaDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of a subject were deleted, or (`permanent`) deleted ones removed."""

    kind: ClassVar[str] = "schema_deleted"
    subject: str
    versions: tuple[int, ...]
    permanent: bool

    @property
    def key(self) -> str:
        return f"schemas/{self.subject}"


class SubjectRulesPut(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a subject, or of all (`ALL_SUBJECTS`), were set; empty ones are forgotten."""

    kind: ClassVar[str] = "subject_rules_put"
    subject: str
    rules: SubjectRules

    @property
    def key(self) -> str:
        return f"schemas/{self.subject}"


SchemaEvent = SchemaRegistered | SchemaDeleted | SubjectRulesPut

#: The stored form of each kind of event.
SCHEMA_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(SchemaRegistered, SchemaDeleted, SubjectRulesPut)


class RegistryState(msgspec.Struct, frozen=True):
    """All subjects and schemas. Immutable: `apply_all` returns the next one. False if nothing was ever stored."""

    #: The versions of each subject by number, ascending; never modified.
    subjects: Mapping[str, Mapping[int, Entry]] = msgspec.field(default_factory=dict)
    #: By id; never modified.
    schemas: Mapping[int, Schema] = msgspec.field(default_factory=dict)
    #: By subject; never modified.
    rules: Mapping[str, SubjectRules] = msgspec.field(default_factory=dict)
    #: The highest id that was ever given.
    last_id: int = 0
    # The id of each schema, and where each id is registered, ascending; never modified. They follow from the above.
    _ids: Mapping[Schema, int] = msgspec.field(default_factory=dict)
    _places: Mapping[int, tuple[SubjectVersion, ...]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Made from a snapshot, the two derived maps are missing: build them here.
        if self.schemas and not self._ids:
            msgspec.structs.force_setattr(self, "_ids", {schema: id_ for id_, schema in self.schemas.items()})
            places: dict[int, tuple[SubjectVersion, ...]] = {}
            for subject, entries in sorted(self.subjects.items()):
                for number, entry in entries.items():
                    places[entry.id] = (*places.get(entry.id, ()), SubjectVersion(subject, number))
            msgspec.structs.force_setattr(self, "_places", places)

    def __bool__(self) -> bool:
        return bool(self.last_id or self.rules)

    def versions(self, subject: str, *, deleted: bool = False) -> Sequence[Version]:
        """Return the versions of a subject, ascending, with the `deleted` ones if asked; none if it is not known."""
        entries = self.subjects.get(subject, {})
        return [self._version(SubjectVersion(subject, n), e) for n, e in entries.items() if deleted or not e.deleted]

    def version(self, subject: str, number: int) -> Version | None:
        """Return a version, deleted or not."""
        entry = self.subjects.get(subject, {}).get(number)
        return None if entry is None else self._version(SubjectVersion(subject, number), entry)

    def by_id(self, id_: int) -> Version | None:
        """Return a version with the schema of this id, deleted or not; None if no schema has it."""
        places = self._places.get(id_)
        return self.version(*places[0]) if places else None

    def places(self, id_: int) -> Sequence[Version]:
        """Return all versions with the schema of this id, deleted ones too, by subject and version."""
        return [self._version(place, self._entry(place)) for place in self._places.get(id_, ())]

    def id_of(self, schema: Schema) -> int | None:
        """Return the id that a schema has."""
        return self._ids.get(schema)

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> Version | None:
        """Return the newest version of a subject that is this schema."""
        id_ = self._ids.get(schema)
        same = [one for one in self.versions(subject, deleted=deleted) if one.id == id_]
        return same[-1] if same else None

    def compatibility(self, subject: str) -> Compatibility:
        """Return how far a new version of a subject may differ from the ones before it."""
        for name in (subject, ALL_SUBJECTS):
            rules = self.rules.get(name)
            if rules is not None and rules.compatibility is not UNSET:
                return rules.compatibility
        return "BACKWARD"

    def mode(self, subject: str) -> Mode:
        """Return what may be changed of a subject; READONLY_OVERRIDE for all goes before a subject's own mode."""
        all_subjects = self.rules.get(ALL_SUBJECTS, SubjectRules()).mode
        if all_subjects == "READONLY_OVERRIDE":
            return "READONLY_OVERRIDE"
        return self.rules.get(subject, SubjectRules()).mode or all_subjects or "READWRITE"

    def basis(self, subject: str) -> Basis:
        """Return what a new version of a subject has to be compatible with now."""
        level = self.compatibility(subject)
        live = [
            SubjectVersion(subject, number) for number, e in self.subjects.get(subject, {}).items() if not e.deleted
        ]
        return Basis(level, tuple(live if level.endswith("_TRANSITIVE") else live[-1:]))

    def referring(self, subject: str, number: int) -> Sequence[Version]:
        """Return the versions that refer to a version, deleted ones too."""
        ids = [
            id_
            for id_, schema in self.schemas.items()
            if any((used.subject, used.version) == (subject, number) for used in schema.references)
        ]
        return [one for id_ in ids for one in self.places(id_)]

    def with_references(self, version: Version) -> Sequence[Version]:
        """Return all versions that a version refers to, directly or not, and the version itself as the last one.

        Each is there once, behind all that it refers to. The given version need not be registered; what it refers to
        must be.
        """
        return list(self._behind(version, set()))

    def _behind(self, version: Version, seen: set[tuple[str, int]]) -> Iterator[Version]:
        for used in version.references:
            if (used.subject, used.version) not in seen:
                seen.add((used.subject, used.version))
                place = SubjectVersion(used.subject, used.version)
                yield from self._behind(self._version(place, self._entry(place)), seen)
        yield version

    def _entry(self, place: SubjectVersion) -> Entry:
        return self.subjects[place.subject][place.version]

    def _version(self, place: SubjectVersion, entry: Entry) -> Version:
        schema = self.schemas[entry.id]
        return Version(
            subject=place.subject,
            version=place.version,
            id=entry.id,
            schema_type=schema.schema_type,
            schema=schema.schema,
            references=schema.references,
            deleted=entry.deleted,
        )

    def apply_all(self, events: Iterable[SchemaEvent]) -> RegistryState:
        """Return the state after `events`; raise `Corrupt` for one that contradicts what was there before it."""
        changing = _Changing(self)
        for event in events:
            changing.apply(event)
        return RegistryState(
            changing.subjects, changing.schemas, changing.rules, changing.last_id, changing.ids, changing.places
        )


class _Changing:
    """A state that is being changed: its mappings are copied once, when the changes begin."""

    def __init__(self, state: RegistryState) -> None:
        self.subjects = dict(state.subjects)
        self.schemas = dict(state.schemas)
        self.rules = dict(state.rules)
        self.last_id = state.last_id
        self.ids = dict(state._ids)
        self.places = dict(state._places)

    def apply(self, event: SchemaEvent) -> None:
        match event:
            case SchemaRegistered():
                self._register(event)
            case SchemaDeleted():
                self._delete(event)
            case SubjectRulesPut():
                self.rules.pop(event.subject, None)
                if event.rules != SubjectRules():
                    self.rules[event.subject] = event.rules

    def _register(self, event: SchemaRegistered) -> None:
        entries = dict(self.subjects.get(event.subject, {}))
        is_new = event.schema is not UNSET and event.id not in self.schemas and event.schema not in self.ids
        is_known = event.schema is UNSET and event.id in self.schemas
        check_event(event.version not in entries and (is_new or is_known), "a schema of subject", event.subject)
        if event.schema is not UNSET:
            self.schemas[event.id] = event.schema
            self.ids[event.schema] = event.id
        entries[event.version] = Entry(event.id)
        # An import may bring versions in any order.
        self.subjects[event.subject] = dict(sorted(entries.items()))
        place = SubjectVersion(event.subject, event.version)
        self.places[event.id] = tuple(sorted((*self.places.get(event.id, ()), place)))
        self.last_id = max(self.last_id, event.id)

    def _delete(self, event: SchemaDeleted) -> None:
        entries = dict(self.subjects.get(event.subject, {}))
        for number in event.versions:
            check_event(number in entries, "a deletion in subject", event.subject)
            if event.permanent:
                self._forget(SubjectVersion(event.subject, number), entries.pop(number).id)
            else:
                entries[number] = entries[number]._replace(deleted=True)
        self.subjects[event.subject] = entries
        if not entries:
            del self.subjects[event.subject]

    def _forget(self, place: SubjectVersion, id_: int) -> None:
        remaining = tuple(other for other in self.places[id_] if other != place)
        if remaining:
            self.places[id_] = remaining
        else:
            del self.places[id_]
            del self.ids[self.schemas.pop(id_)]


def topic_of_subject(subject: str) -> str:
    """Return the topic whose access rules a subject has: `orders` for `orders-key` and `orders-value`."""
    return subject.removesuffix("-key") if subject.endswith("-key") else subject.removesuffix("-value")
