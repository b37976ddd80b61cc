"""Decisions about the schema registry: each returns events for a state, or refuses (SPEC TYPE-20 to TYPE-25)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.errors import Conflict, NotFound, Unprocessable
from deltamq.mq.schemas.limits import REGISTRY_BYTES_MAX, SCHEMA_BYTES_MAX, SCHEMA_REFERENCES_MAX, SCHEMA_VERSIONS_MAX
from deltamq.mq.schemas.registry import (
    ALL_SUBJECTS,
    Basis,
    Compatibility,
    Mode,
    Reference,
    RegistryState,
    Schema,
    SchemaDeleted,
    SchemaEvent,
    SchemaRegistered,
    SubjectRules,
    SubjectRulesPut,
    Version,
)
from deltamq.mq.schemas.setting import check_subject

#: Registries before this one gave ids of 32 bits: messages carry them so.
_ID_MAX: Final = 2**31 - 1
#: Ids that are given here while schemas of a registry elsewhere are imported with theirs.
OWN_IDS: Final = 2**30


def resolved(state: RegistryState, subject: str, schema: Schema) -> Version:
    """Return a schema as the version of a subject that it would be, with number and id 0; references are checked.

    A reference to version -1 means the newest one, which is taken now.

    Raises
    ------
    Unprocessable
        `invalid_schema`: a reference leads to no live version, two have one name, or there are too many.
        `schema_too_large`: with all that it refers to.
    """
    references = tuple(_resolved(state, used) for used in schema.references)
    if len({used.name for used in references}) < len(references):
        raise _invalid("references", "two references have the same name")
    version = Version(
        subject=subject,
        version=0,
        id=0,
        schema_type=schema.schema_type,
        schema=schema.schema,
        references=references,
    )
    if len(references) > SCHEMA_REFERENCES_MAX:
        raise _invalid("references", f"a schema has at most {SCHEMA_REFERENCES_MAX}")
    every = state.with_references(version)
    if len(every) > SCHEMA_REFERENCES_MAX + 1:
        raise _invalid("references", f"with all that these refer to, a schema has at most {SCHEMA_REFERENCES_MAX}")
    if any(one.schema_type != schema.schema_type for one in every):
        raise _invalid("references", f"a schema of type {schema.schema_type} refers only to schemas of its own type")
    if sum(len(one.schema.encode()) for one in every) > SCHEMA_BYTES_MAX:
        raise Unprocessable(
            f"a schema with all that it refers to is at most {SCHEMA_BYTES_MAX} bytes",
            code="schema_too_large",
            field="schema",
            extra={"limit": SCHEMA_BYTES_MAX},
        )
    return version


def _resolved(state: RegistryState, used: Reference) -> Reference:
    live = state.versions(used.subject)
    numbers = [one.version for one in live]
    number = numbers[-1] if used.version == -1 and numbers else used.version
    if number not in numbers:
        raise _invalid("references", f"{used.name}: there is no version {used.version} of subject {used.subject}")
    return Reference(used.name, used.subject, number)


def decide_register(
    state: RegistryState,
    subject: str,
    schema: Schema,
    *,
    basis: Basis | None,
    id_: int | None = None,
    number: int | None = None,
    ids_from: int = 1,
) -> tuple[SchemaEvent, ...]:
    """Return the event that makes a schema a version of a subject; none if it is one already.

    The schema's text was checked, and is compatible with what `basis` names; None for a subject whose schemas are
    imported, which is not checked. `id_` and `number` are those of an import; a number may also be given if it is the
    next one anyway. New texts get ids of `ids_from` or more.

    Raises
    ------
    Conflict
        `registry_changed`: the subject is no longer as it was checked; check again.
    Unprocessable
        `operation_not_permitted`: the mode of the subject does not allow this; also what `resolved` raises.
    """
    check_subject(subject)
    version = resolved(state, subject, schema)
    schema = msgspec.structs.replace(schema, references=version.references)
    mode = state.mode(subject)
    present = state.find(subject, schema)
    if present is not None and id_ in (None, present.id) and number in (None, present.version):
        return ()
    check_writable(state, subject)
    if mode == "IMPORT":
        return (_imported(state, subject, schema, id_, number),)
    if id_ is not None:
        raise _not_permitted(f"an id is given only while subject {subject} has the mode IMPORT", "id")
    entries = state.subjects.get(subject, {})
    next_number = max(entries, default=0) + 1
    if number not in (None, next_number):
        raise _not_permitted(f"the next version of subject {subject} is {next_number}", "version")
    if basis != state.basis(subject):
        raise Conflict(f"subject {subject} was changed meanwhile; try again", code="registry_changed")
    return (_registered(state, subject, schema, next_number, state.id_of(schema) or max(state.last_id + 1, ids_from)),)


def decide_follow(state: RegistryState, version: Version) -> tuple[SchemaEvent, ...]:
    """Return the event that stores a version of a registry elsewhere, under its id and number; none if it is there.

    Raises
    ------
    Unprocessable
        `operation_not_permitted`: id or number are another schema's here; also what `resolved` raises.
    """
    check_subject(version.subject)
    whole = resolved(
        state,
        version.subject,
        Schema(schema_type=version.schema_type, schema=version.schema, references=version.references),
    )
    schema = Schema(schema_type=whole.schema_type, schema=whole.schema, references=whole.references)
    present = state.find(version.subject, schema)
    if present is not None and (present.id, present.version) == (version.id, version.version):
        return ()
    return (_imported(state, version.subject, schema, version.id, version.version),)


def _imported(
    state: RegistryState, subject: str, schema: Schema, id_: int | None, number: int | None
) -> SchemaRegistered:
    if id_ is None or not 0 < id_ <= _ID_MAX:
        raise _not_permitted(f"while subject {subject} has the mode IMPORT, each schema is given with its id", "id")
    held, has = state.schemas.get(id_, schema), state.id_of(schema)
    if held != schema or has not in (None, id_):
        why = f"id {id_} belongs to another schema" if held != schema else f"this schema has the id {has} already"
        raise _not_permitted(why, "id")
    entries = state.subjects.get(subject, {})
    number = max(entries, default=0) + 1 if number is None else number
    if number in entries or not 0 < number <= _ID_MAX:
        raise _not_permitted(f"subject {subject} has a version {number} already, or cannot have it", "version")
    return _registered(state, subject, schema, number, id_)


def _registered(state: RegistryState, subject: str, schema: Schema, number: int, id_: int) -> SchemaRegistered:
    is_known = id_ in state.schemas
    versions = sum(map(len, state.subjects.values()))
    size = sum(len(one.schema) for one in state.schemas.values()) + (0 if is_known else len(schema.schema))
    if versions >= SCHEMA_VERSIONS_MAX or size > REGISTRY_BYTES_MAX or id_ > _ID_MAX:
        raise Conflict(
            f"the registry is full: it holds {SCHEMA_VERSIONS_MAX} versions and {REGISTRY_BYTES_MAX} characters of "
            "schemas; delete some permanently",
            code="registry_full",
        )
    return SchemaRegistered(subject=subject, version=number, id=id_, schema=UNSET if is_known else schema)


def live_versions(state: RegistryState, subject: str) -> Sequence[Version]:
    """Return the versions of a subject, ascending, at least one; raise `NotFound` (`subject_not_found`) if none is."""
    versions = state.versions(subject)
    if not versions:
        raise NotFound(f"there is no subject {subject}", code="subject_not_found", field="subject")
    return versions


def decide_delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> tuple[SchemaEvent, ...]:
    """Return the events that delete all versions of a subject, and its rules, or remove a deleted subject for good.

    Raises
    ------
    NotFound
        `subject_not_found`; `subject_deleted`: already; `subject_not_deleted`: it is not yet.
    Unprocessable
        `reference_exists`: a version is used by other schemas; `operation_not_permitted`: it may not be changed.
    """
    every = state.versions(subject, deleted=True)
    live = [one for one in every if not one.deleted]
    if not every:
        live_versions(state, subject)
    if permanent and live:
        raise NotFound(
            f"subject {subject} is removed for good only after it was deleted",
            code="subject_not_deleted",
            field="subject",
        )
    if not permanent and not live:
        raise NotFound(f"subject {subject} is deleted already", code="subject_deleted", field="subject")
    numbers = [one.version for one in (every if permanent else live)]
    _check_deletable(state, subject, numbers, permanent=permanent)
    deleted = SchemaDeleted(subject=subject, versions=tuple(numbers), permanent=permanent)
    return (deleted, *decide_rules(state, subject, SubjectRules()))


def decide_delete_version(
    state: RegistryState, subject: str, number: int, *, permanent: bool
) -> tuple[SchemaEvent, ...]:
    """Return the event that deletes a version, or removes a deleted one for good.

    Raises
    ------
    NotFound
        `subject_not_found`, `version_not_found`; `version_deleted`: already; `version_not_deleted`: it is not yet.
    Unprocessable
        As for a subject.
    """
    if subject not in state.subjects:
        live_versions(state, subject)
    version = state.version(subject, number)
    if version is None:
        raise version_not_found(subject, number)
    if permanent and not version.deleted:
        raise NotFound(
            f"version {number} of subject {subject} is removed for good only after it was deleted",
            code="version_not_deleted",
            field="version",
        )
    if not permanent and version.deleted:
        raise NotFound(
            f"version {number} of subject {subject} is deleted already", code="version_deleted", field="version"
        )
    _check_deletable(state, subject, [number], permanent=permanent)
    return (SchemaDeleted(subject=subject, versions=(number,), permanent=permanent),)


def version_not_found(subject: str, number: int) -> NotFound:
    """Return the error of a version that is not there."""
    return NotFound(f"subject {subject} has no version {number}", code="version_not_found", field="version")


def _check_deletable(state: RegistryState, subject: str, numbers: Sequence[int], *, permanent: bool) -> None:
    check_writable(state, subject)
    for number in numbers:
        # A deleted version that refers to another one is still read: what it refers to goes only after it.
        users = [one for one in state.referring(subject, number) if permanent or not one.deleted]
        others = [one for one in users if one.subject != subject or one.version not in numbers]
        if others:
            raise Unprocessable(
                f"version {number} of subject {subject} is used by version {others[0].version} of {others[0].subject}",
                code="reference_exists",
                field="subject",
            )


def decide_rules(state: RegistryState, subject: str, rules: SubjectRules) -> tuple[SchemaEvent, ...]:
    """Return the event that sets the rules of a subject, or of all (`ALL_SUBJECTS`); none when nothing changes."""
    if state.rules.get(subject, SubjectRules()) == rules:
        return ()
    return (SubjectRulesPut(subject=subject, rules=rules),)


def decide_compatibility(
    state: RegistryState, subject: str, level: Compatibility | UnsetType
) -> tuple[SchemaEvent, ...]:
    """Return the event that sets the compatibility of a subject, or of all; UNSET removes it.

    Raises
    ------
    NotFound
        `compatibility_not_set`: there is none to be removed.
    Unprocessable
        `invalid_subject`; `operation_not_permitted`: the subject may not be changed.
    """
    rules = _rules(state, subject)
    if level is UNSET and rules.compatibility is UNSET and subject != ALL_SUBJECTS:
        raise NotFound(f"subject {subject} has no compatibility of its own", code="compatibility_not_set")
    check_writable(state, subject)
    return decide_rules(state, subject, msgspec.structs.replace(rules, compatibility=level))


def decide_mode(state: RegistryState, subject: str, mode: Mode | UnsetType, *, force: bool) -> tuple[SchemaEvent, ...]:
    """Return the event that sets the mode of a subject, or of all; UNSET removes it.

    Raises
    ------
    NotFound
        `mode_not_set`: there is none to be removed.
    Unprocessable
        `invalid_subject`; `operation_not_permitted`: ids that are imported could clash with schemas that are there.
    """
    rules = _rules(state, subject)
    if mode is UNSET and rules.mode is UNSET and subject != ALL_SUBJECTS:
        raise NotFound(f"subject {subject} has no mode of its own", code="mode_not_set")
    has_schemas = state.versions(subject, deleted=True) if subject != ALL_SUBJECTS else state.subjects
    if mode == "IMPORT" and rules.mode != "IMPORT" and has_schemas and not force:
        raise _not_permitted("there are schemas already; import beside them with force=true", "mode")
    return decide_rules(state, subject, msgspec.structs.replace(rules, mode=mode))


def _rules(state: RegistryState, subject: str) -> SubjectRules:
    if subject != ALL_SUBJECTS:
        check_subject(subject)
    return state.rules.get(subject, SubjectRules())


def check_writable(state: RegistryState, subject: str) -> None:
    """Return if the mode of a subject allows changes, else raise `Unprocessable` (`operation_not_permitted`)."""
    mode = state.mode(subject)
    if mode in ("READONLY", "READONLY_OVERRIDE"):
        what = "the registry" if subject == ALL_SUBJECTS else f"subject {subject}"
        raise _not_permitted(f"{what} has the mode {mode}", "subject")


def _not_permitted(why: str, field: str) -> Unprocessable:
    return Unprocessable(why, code="operation_not_permitted", field=field)


def _invalid(field: str, why: str) -> Unprocessable:
    return Unprocessable(f"{field}: {why}", code="invalid_schema", field=field)
