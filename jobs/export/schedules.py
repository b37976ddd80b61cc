"""Scheduled replays and resets: their definitions, their times, and their progress (SPEC SPARK-10).

    <warehouse>/jobs/<kind>/scheduled/<name>.json     the work of the job `replay` or `reset`, and its interval
    <warehouse>/jobs/<kind>/<id>/state.json           when it is due next; for a replay, its next offsets

One run makes up for all times that pass while no job runs. Without a state, the first time is still due.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from deltamq.jobs.export.reset import target_of
from deltamq.mq.errors import NotFound, Refused
from deltamq.mq.names import check_client_topic, check_group
from deltamq.mq.request_values import ago_ms
from deltamq.tables.ops.stored_json import check_name, names_in, read_stored
from deltamq.tables.store.store import Store

Kind = Literal["replay", "reset"]
KINDS: Final[tuple[Kind, ...]] = ("replay", "reset")
_EVERY_S_MIN: Final = 60
_EVERY_S_MAX: Final = 366 * 86_400


class _Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of both kinds; due at `first_ms`, and every `every_s` seconds after that."""

    name: str
    group: str
    every_s: int
    first_ms: int
    #: Names the schedule's state; a schedule that is created again by the same name has another id.
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


class ScheduledReplay(_Scheduled, frozen=True, kw_only=True, tag="replay"):
    """A schedule that sends a group's new dead letters back."""

    to: Literal["origin", "retry"] = "origin"
    #: The letters' original topics; empty: all.
    topics: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """A description for people."""
        of = f" of {', '.join(self.topics)}" if self.topics else ""
        return f"replay dead letters{of} of group {self.group} to {self.to}"


class ScheduledReset(_Scheduled, frozen=True, kw_only=True, tag="reset"):
    """A schedule that resets a group's offsets in a topic."""

    topic: str
    to: str
    retries: Literal["keep", "drop"] = "keep"

    @property
    def description(self) -> str:
        """A description for people."""
        return f"reset group {self.group} in topic {self.topic} to {self.to}"


AnyScheduled = ScheduledReplay | ScheduledReset


class ScheduledState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a schedule."""

    due_ms: int
    #: For a replay: the next offset by folder of a partition of dead letters.
    offsets: Mapping[str, int] = {}


_decode: Final[msgspec.json.Decoder[AnyScheduled]] = msgspec.json.Decoder(AnyScheduled)
_decode_state: Final = msgspec.json.Decoder(ScheduledState)


def _kind(schedule: AnyScheduled) -> Kind:
    return "replay" if isinstance(schedule, ScheduledReplay) else "reset"


def save_scheduled(store: Store, wanted: AnyScheduled) -> None:
    """Store a schedule under its name.

    Raises
    ------
    Refused
        A field is invalid, or the name is taken: a schedule must not be changed by accident.
    """
    check_name(wanted.name)
    if not _EVERY_S_MIN <= wanted.every_s <= _EVERY_S_MAX:
        raise Refused(f"every: must be {_EVERY_S_MIN} seconds to {_EVERY_S_MAX // 86_400} days", field="every")
    check_group(wanted.group)
    if isinstance(wanted, ScheduledReset):
        check_client_topic(wanted.topic)
        if ago_ms(wanted.to) is None and target_of(wanted.to).time_ms is not None:
            raise Refused("to: for a schedule, give earliest, latest, or a time ago such as -24h", field="to")
    for topic in wanted.topics if isinstance(wanted, ScheduledReplay) else ():
        check_client_topic(topic)
    key = _key(_kind(wanted), wanted.name)
    if not store.put_if_absent(key, msgspec.json.encode(wanted), durable=True):
        raise Refused(f"name: there is a scheduled {_kind(wanted)} {wanted.name!r}; remove it first", field="name")


def scheduled(store: Store, kind: Kind) -> list[AnyScheduled]:
    """Return all schedules of a kind, by name."""
    return [read_scheduled(store, kind, name) for name in scheduled_names(store, kind)]


def scheduled_names(store: Store, kind: Kind) -> list[str]:
    """Return the names of all schedules of a kind, in order."""
    return names_in(store, f"jobs/{kind}/scheduled")


def remove_scheduled(store: Store, kind: Kind, name: str) -> None:
    """Delete a schedule and its progress."""
    schedule = read_scheduled(store, kind, name)
    store.delete(_key(kind, name))
    store.delete_tree(f"jobs/{kind}/{schedule.id}")


def read_state(store: Store, schedule: AnyScheduled) -> ScheduledState:
    """Return the progress of a schedule."""
    return read_stored(store, _state_key(schedule), _decode_state) or ScheduledState(due_ms=schedule.first_ms)


def write_state(store: Store, schedule: AnyScheduled, state: ScheduledState) -> None:
    """Store the progress of a schedule."""
    store.replace(_state_key(schedule), msgspec.json.encode(state))


def next_due_ms(schedule: AnyScheduled, now_ms: int) -> int:
    """Return the first due time after `now_ms`."""
    every_ms = schedule.every_s * 1_000
    passed = max(0, (now_ms - schedule.first_ms) // every_ms + 1)
    return schedule.first_ms + passed * every_ms


def read_scheduled(store: Store, kind: Kind, name: str) -> AnyScheduled:
    """Return the schedule of this name, or raise `NotFound`."""
    schedule = read_stored(store, _key(kind, name), _decode)
    if schedule is None:
        detail = f"there is no scheduled {kind} {name!r}; see deltamq jobs scheduled list"
        raise NotFound(detail, code="scheduled_not_found")
    return schedule


def _key(kind: Kind, name: str) -> str:
    return f"jobs/{kind}/scheduled/{name}.json"


def _state_key(schedule: AnyScheduled) -> str:
    return f"jobs/{_kind(schedule)}/{schedule.id}/state.json"
