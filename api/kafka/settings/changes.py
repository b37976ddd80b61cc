"""What clients want of a topic's settings, name by name: what cannot be is refused by its name, and the rest can be."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from deltamq.api.kafka.settings.topics import PARTITIONER, TOPIC_SETTINGS, clash
from deltamq.api.kafka.settings.values import Kind
from deltamq.mq.partitioners import Partitioner

_SHOWN_CHARS: Final = 100


class Operation(enum.IntEnum):
    """Kafka's numbers for what is done with a setting."""

    SET = 0
    RESET = 1
    ADD = 2
    TAKE = 3


_OF_LISTS: Final = (Operation.ADD, Operation.TAKE)


class Change(NamedTuple):
    """A change of one setting; the operation is any number that a client sends."""

    name: str
    operation: int
    value: str | None


@dataclass(slots=True)
class Changes:
    """The changes that can be made, and for the others, by name, why not."""

    kafka: dict[str, str | None] = field(default_factory=dict)
    partitioner: Partitioner | None = None
    problems: dict[str, str] = field(default_factory=dict)

    def refuse(self, name: str, why: str) -> None:
        """Make no change of this setting."""
        self.kafka.pop(name, None)
        if name == PARTITIONER:
            self.partitioner = None
        self.problems[name] = f"{name[:_SHOWN_CHARS]} {why}"


def changes_of(asked: Iterable[Change], kept: Mapping[str, str]) -> Changes:
    """Return the changes of a topic that keeps these settings of Kafka's."""
    found = Changes()
    seen: set[str] = set()
    for one in asked:
        if one.name in seen:
            found.refuse(one.name, "is named twice")
        seen.add(one.name)
        if one.name not in found.problems:
            _take(found, one, kept)
    pair = clash({name: value for name, value in {**kept, **found.kafka}.items() if value is not None})
    for name in pair or ():
        if name in found.kafka:
            found.refuse(name, "would make the smallest compaction lag greater than the largest")
    return found


def _take(found: Changes, one: Change, kept: Mapping[str, str]) -> None:
    setting = TOPIC_SETTINGS.get(one.name)
    if one.operation == Operation.RESET:
        if one.name == PARTITIONER and setting is not None:
            found.partitioner = cast(Partitioner, setting.default)
        elif setting is not None:  # Kafka puts back what it does not know, too
            found.kafka[one.name] = None
    elif setting is None:
        found.refuse(one.name, "is no setting of a topic")
    elif one.value is None:
        found.refuse(one.name, "has no value")
    elif one.operation != Operation.SET and (one.operation not in _OF_LISTS or setting.kind is not Kind.LIST):
        found.refuse(one.name, "is no list: it can be set, or deleted, which means its default")
    else:
        try:
            value = setting.read(_whole(one, kept.get(one.name, setting.default)))
        except ValueError as error:
            found.refuse(one.name, f"{error}, and was {one.value[:_SHOWN_CHARS]!r}")
        else:
            if one.name == PARTITIONER:
                found.partitioner = cast(Partitioner, value)
            else:
                found.kafka[one.name] = value


def _whole(one: Change, present: str) -> str:
    """Return the whole value that a setting has after a change."""
    value = (one.value or "").strip()
    there, named = ([part.strip() for part in text.split(",") if part.strip()] for text in (present, value))
    if one.operation == Operation.ADD:
        return ",".join([*there, *named])
    if one.operation == Operation.TAKE:
        return ",".join(part for part in there if part not in named)
    return value
