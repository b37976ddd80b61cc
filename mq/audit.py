"""What administrators did and what was refused, as records for `sys/audit` (SPEC SEC-40 to SEC-42).

    begun    the caller and what it asks for, stored before anything is done
    ended    what became of it, stored before it is confirmed; with the state before and after, without secrets
    refused  how often one principal was refused one call in a minute, counted in bounded memory

An act has one id in both its records. A record that is stored twice counts once, by kind and id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import REFUSAL_MINUTES_MAX, REFUSALS_COUNTED_MAX, RESOURCES_MAX, SHOWN_BYTES_MAX
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group_settings import GroupSettings
from deltamq.mq.schemas.registry import RegistryState, SubjectRules
from deltamq.mq.statistics import MINUTE_MS
from deltamq.mq.stored_json import Form, corrupt_when_damaged, forms_of, to_json

#: The caller where there is no authentication, or one without a valid key; no principal can have this name.
ANONYMOUS: Final = "(anonymous)"

#: The principal of a change to a warehouse's files without a service: `deltamq auth init`.
BY_FILES: Final = "(files)"

#: done: it was confirmed. refused: the caller's fault, nothing was done. failed: an error of the service, and no change
#: of the metadata. unknown: it may have been done, in whole or in part.
Outcome = Literal["done", "refused", "failed", "unknown"]


class ActBegun(msgspec.Struct, frozen=True, kw_only=True):
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
    #: The kind of resource that it concerns: `topic`, `group`, `principal`, `key`, `acl`, `quota`, `broker`, `cluster`.
    resource: str
    name: str
    #: Names in the path, and fields of query and body that the call knows, as JSON; empty for none.
    asked: str


class ActEnded(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an act."""

    kind: ClassVar[str] = "ended"
    id: str
    time_ms: int
    outcome: Outcome
    #: The HTTP status of the answer.
    status: int
    #: Code and detail of the problem; empty if it was done.
    code: str
    detail: str
    #: The kinds of events that it added to the metadata.
    events: tuple[str, ...]
    #: What the metadata said of its resources before and after, as JSON; empty where nothing changed.
    before: str
    after: str


class RefusalCount(msgspec.Struct, frozen=True, kw_only=True):
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
    #: The address of the last refused call.
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


#: In place of principal and call where too many are counted apart; neither can have this name.
OTHER: Final = "(other)"


class RefusalKey(NamedTuple):
    """The fields that the refusals of one row share."""

    minute_ms: int
    principal: str
    call: str
    status: int
    code: str


class RefusalTally(msgspec.Struct):
    """The number of refusals, and the address of the last one."""

    count: int = 0
    address: str = ""


class Refusals:
    """What a process refused and has not stored."""

    def __init__(self) -> None:
        self._rows: dict[RefusalKey, RefusalTally] = {}

    def add(self, now_ms: int, principal: str, call: str, status: int, code: str, address: str) -> None:
        """Count one refusal."""
        self._add(RefusalKey(now_ms - now_ms % MINUTE_MS, principal, call, status, code), RefusalTally(1, address))

    def _add(self, key: RefusalKey, more: RefusalTally) -> None:
        row = self._rows.get(key)
        if row is None and len(self._rows) >= REFUSALS_COUNTED_MAX:
            # The caller chooses neither statuses nor codes: a minute has few of these rows.
            key = key._replace(principal=OTHER, call=OTHER)
            row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = RefusalTally()
        row.count += more.count
        row.address = more.address

    def take(self, now_ms: int, *, whole: bool = False) -> Mapping[RefusalKey, RefusalTally]:
        """Return and forget what is to be stored: the minutes that are over, or all with `whole`.

        A minute that the clock puts into the future is over, too: the clock was set back since.
        """
        running = now_ms - now_ms % MINUTE_MS
        taken = {key: row for key, row in self._rows.items() if whole or key.minute_ms != running}
        for key in taken:
            del self._rows[key]
        return taken

    def give_back(self, taken: Mapping[RefusalKey, RefusalTally]) -> int:
        """Count again what could not be stored; return how many refusals are dropped because they are too old."""
        for key, row in taken.items():
            self._add(key, row)
        minutes = sorted({key.minute_ms for key in self._rows})
        gone = set(minutes[:-REFUSAL_MINUTES_MAX])
        dropped = [key for key in self._rows if key.minute_ms in gone]
        return sum(self._rows.pop(key).count for key in dropped)


# What the audit shows of an act's effect.
_BAD_REQUEST: Final = 400
_INTERNAL: Final = 500


class MetadataChange(NamedTuple):
    """What one append of an act changed in the metadata."""

    before: Meta
    events: Sequence[AnyEvent]

    @property
    def after(self) -> Meta:
        return self.before.apply_all(self.events)


def outcome_of(status: int, *, changed: bool, is_unsure: bool) -> Outcome:
    """Return what became of an act, by the status of its answer and whether it `changed` the metadata."""
    if status < _BAD_REQUEST:
        return "done"
    if is_unsure or changed:
        return "unknown"
    return "refused" if status < _INTERNAL else "failed"


def states_of(changes: Sequence[MetadataChange]) -> tuple[str, str]:
    """Return what the metadata said of the changed resources before and after, as JSON; empty for no change."""
    keys = list(dict.fromkeys(event.key for change in changes for event in change.events))[:RESOURCES_MAX]
    if not keys:
        return "", ""
    before, after = changes[0].before, changes[-1].after
    return bounded(_states(before, keys)), bounded(_states(after, keys))


def bounded(shown: Mapping[str, Any]) -> str:
    """Return `shown` as JSON if that is small; else its size and the first names in it."""
    text = to_json(shown)
    if len(text) > SHOWN_BYTES_MAX:
        text = to_json({"(bytes)": len(text), "(names)": sorted(shown)[:RESOURCES_MAX]})
    return text.decode()


def _states(meta: Meta, keys: Iterable[str]) -> dict[str, Any]:
    return {key: _state(meta, key) for key in keys}


def _state(meta: Meta, key: str) -> Any:
    kind, _, name = key.partition("/")
    match kind:
        case "auth":
            return _principal(meta.auth, name)
        case "quota":
            quotas = meta.auth.client_quotas.values()
            return next((msgspec.to_builtins(one) for one in quotas if one.whose == name), None)
        case "topic":
            return _topic(meta, name)
        case "group":
            return _group(meta, name)
        case "access":
            return _access(meta, name)
        case "schemas":
            return _subject(meta.schemas, name)
        case "moves" | "mapping" | "segments":
            topic = next(
                (entry.name for entry in meta.topics.topics.values() if entry.id == name.partition("/")[0]), None
            )
            return None if topic is None else _topic(meta, topic)
    return None


def _principal(state: AuthState, name: str) -> Any:
    """Keys appear by id only, passwords by mechanism, never with what proves them."""
    principal = state.principals.get(name)
    if principal is None:
        return None
    quota = state.quotas.get(name)
    return {
        "note": principal.note,
        "disabled_ms": principal.disabled_since_ms,
        "keys": [{"id": key.id, "created_ms": key.created_ms, "until_ms": key.until_ms} for key in state.keys_of(name)],
        "passwords": {one.mechanism: one.iterations for one in state.passwords.get(name, {}).values()},
        "acls": [
            {"id": r.id, "effect": r.effect, "resource": r.resource, "pattern": r.pattern, "verbs": list(r.verbs)}
            for r in state.rules_of(name)
        ],
        "quota": None if quota is None else msgspec.to_builtins(quota),
    }


def _topic(meta: Meta, name: str) -> Any:
    topic = meta.topics.topics.get(name)
    if topic is None:
        return None
    queues = None if topic.static is None else topic.static.total
    return {
        "id": topic.id,
        "epoch": topic.route.epoch,
        "partitions": list(topic.route.partitions),
        "total_queues": queues,
        "settings": msgspec.to_builtins(topic.settings),
    }


def _group(meta: Meta, name: str) -> Any:
    group = meta.groups.find(name)
    if group is None:
        return None
    settings: GroupSettings = group.settings
    return {"epoch": group.epoch, "settings": settings.to_json(), "resets": _resets(meta, name)}


def _resets(meta: Meta, name: str) -> Any:
    starts = {lane: start for lane, start in meta.groups.resets.items() if lane.group == name}
    return {lane.partition: {"epoch": start.epoch, "offset": start.offset} for lane, start in starts.items()}


def _subject(state: RegistryState, name: str) -> Any:
    """Texts appear by id only."""
    versions = [
        {"version": one.version, "id": one.id, "deleted": one.deleted} for one in state.versions(name, deleted=True)
    ]
    return {"versions": versions, "rules": msgspec.to_builtins(state.rules.get(name, SubjectRules()))}


def _access(meta: Meta, name: str) -> Any:
    topic_id, _, partition = name.partition("/")
    access = meta.access.of(topic_id, partition) if partition else meta.access.of_broker(name)
    return msgspec.to_builtins(access)
