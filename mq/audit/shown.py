"""What the audit shows of an act's effect: the state of its resources before and after, without secrets (SEC-40)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from deltamq.mq.audit.records import Outcome
from deltamq.mq.audit_limits import RESOURCES_MAX, SHOWN_BYTES_MAX
from deltamq.mq.auth.state import AuthState
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.group_settings import GroupSettings
from deltamq.mq.stored_json import to_json

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
    keys = list(dict.fromkeys(event.key for one in changes for event in one.events))[:RESOURCES_MAX]
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
    """Return the state that events with this key are about; None if there is none."""
    kind, _, name = key.partition("/")
    match kind:
        case "auth":
            return _principal(meta.auth, name)
        case "topic":
            return _topic(meta, name)
        case "group":
            return _group(meta, name)
        case "access":
            return _access(meta, name)
        case "moves" | "mapping" | "segments":
            topic = next((one.name for one in meta.topics.topics.values() if one.id == name.partition("/")[0]), None)
            return None if topic is None else _topic(meta, topic)
    return None


def _principal(state: AuthState, name: str) -> Any:
    """Return who the principal is and what it may do; of keys their ids, never the stored digests."""
    found = state.principals.get(name)
    if found is None:
        return None
    quota = state.quotas.get(name)
    return {
        "note": found.note,
        "disabled_ms": found.disabled_since_ms,
        "keys": [{"id": key.id, "created_ms": key.created_ms, "until_ms": key.until_ms} for key in state.keys_of(name)],
        "acls": [
            {"id": r.id, "effect": r.effect, "resource": r.resource, "pattern": r.pattern, "verbs": list(r.verbs)}
            for r in state.rules_of(name)
        ],
        "quota": None if quota is None else asdict(quota),
    }


def _topic(meta: Meta, name: str) -> Any:
    found = meta.topics.topics.get(name)
    if found is None:
        return None
    queues = None if found.static is None else found.static.total
    return {
        "id": found.id,
        "epoch": found.route.epoch,
        "partitions": list(found.route.partitions),
        "total_queues": queues,
        "settings": asdict(found.settings),
    }


def _group(meta: Meta, name: str) -> Any:
    found = meta.groups.find(name)
    if found is None:
        return None
    settings: GroupSettings = found.settings
    return {"epoch": found.epoch, "settings": settings.to_json(), "resets": _resets(meta, name)}


def _resets(meta: Meta, name: str) -> Any:
    starts = {lane: start for lane, start in meta.groups.resets.items() if lane.group == name}
    return {lane.partition: {"epoch": start.epoch, "offset": start.offset} for lane, start in starts.items()}


def _access(meta: Meta, name: str) -> Any:
    topic_id, _, partition = name.partition("/")
    access = meta.access.of(topic_id, partition) if partition else meta.access.of_broker(name)
    return asdict(access)
