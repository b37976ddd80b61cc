"""The records of `sys/audit`: an act as it begins and as it ends, and refusals of one minute.

    begun    the caller and what it asks for, stored before anything is done
    ended    what became of it, stored before it is confirmed
    refused  how often one principal was refused one call in a minute

An act has one id in both its records. A record that is stored twice counts once, by kind and id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from deltamq.mq.errors import Corrupt
from deltamq.mq.stored_json import Form, corrupt_when_damaged, forms_of

#: The caller where there is no authentication, or one without a valid key; no principal can have this name.
ANONYMOUS: Final = "(anonymous)"

#: The principal of a change to a warehouse's files without a service: `deltamq auth init`.
BY_FILES: Final = "(files)"

#: done: it was confirmed. refused: the caller's fault, nothing was done. failed: an error of the service, and no change
#: of the metadata. unknown: it may have been done, in whole or in part.
Outcome = Literal["done", "refused", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActBegun:
    """An administrative act is about to be carried out."""

    kind: ClassVar[str] = "begun"
    id: str
    time_ms: int
    principal: str
    #: Host and port of the caller's connection.
    address: str
    #: The id of the process that carries it out, which is new with each start.
    process: str
    #: Method and path template.
    call: str
    #: What it is about: `topic`, `group`, `principal`, `key`, `acl`, `broker`, `cluster`.
    resource: str
    name: str
    #: Names in the path, and fields of query and body that the call knows, as JSON; empty for none.
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActEnded:
    """What became of an act."""

    kind: ClassVar[str] = "ended"
    id: str
    time_ms: int
    outcome: Outcome
    #: Of the answer.
    status: int
    #: Code and detail of the problem; empty if it was done.
    code: str
    detail: str
    #: The kinds of events that it added to the metadata.
    events: tuple[str, ...]
    #: What the metadata said of its resources before and after, as JSON; empty where nothing changed.
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCount:
    """How often a principal was refused a call in one minute, by one process."""

    kind: ClassVar[str] = "refused"
    id: str
    minute_ms: int
    process: str
    principal: str
    call: str
    status: int
    code: str
    count: int
    #: From where it last came.
    address: str


AuditRecord = ActBegun | ActEnded | RefusalCount

_FORMS: Final[Mapping[str, Form[Any]]] = forms_of(ActBegun, ActEnded, RefusalCount)


def record_to_json(record: AuditRecord) -> tuple[str, bytes]:
    """Return tag and body of a record."""
    return record.kind, _FORMS[record.kind].to_json(record)


def record_from_json(tag: str, body: bytes) -> AuditRecord:
    """Return the record; raises `Corrupt` if it is damaged."""
    form = _FORMS.get(tag)
    if form is None:
        raise Corrupt(f"an audit record of unknown kind {tag!r}", code="audit_record_corrupt")
    with corrupt_when_damaged("an audit record", code="audit_record_corrupt"):
        record: AuditRecord = form.from_json(body)
    return record
