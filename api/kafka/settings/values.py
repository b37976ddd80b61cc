"""What a setting of Kafka's can be: the values that Kafka takes, and the form in which it shows them."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_BOOLEANS: Final = ("true", "false")
_REPLICAS_MAX: Final = 4_096

#: Returns a value as Kafka shows it; raises `ValueError` with what it must be.
Read: TypeAlias = Callable[[str], str]


class Kind(enum.IntEnum):
    """Kafka's numbers for the types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(enum.IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    NODE = 4
    DEFAULT = 5


class Setting(NamedTuple):
    """A setting of topics."""

    kind: Kind
    default: str
    read: Read
    #: The setting of nodes that says the default.
    of_node: str | None
    says: str
    is_fixed: bool = False


class Shown(NamedTuple):
    """A setting of a topic or of a node, with its value."""

    name: str
    value: str | None
    source: Source
    kind: Kind
    says: str
    is_read_only: bool = False
    #: The setting of nodes that says the default, and the default.
    of_node: tuple[str, str] | None = None

    @property
    def synonyms(self) -> list[tuple[str, str | None, Source]]:
        """Return name, value and source of what says the value, the first is that which counts."""
        found: list[tuple[str, str | None, Source]] = []
        if self.of_node is None or self.source != Source.DEFAULT:
            found.append((self.name, self.value, self.source))
        if self.of_node is not None:
            found.append((*self.of_node, Source.DEFAULT))
        return found


def whole(low: int, high: int, *others: int, must: str = "") -> Read:
    """Take whole numbers from `low` to `high`, and others; `must` says it to who gives something else."""
    must = must or f"must be a whole number from {low} to {high}" + "".join(f" or {one}" for one in others)

    def read(text: str) -> str:
        if not _WHOLE.fullmatch(text):
            raise ValueError(must)
        number = int(text)
        if not low <= number <= high and number not in others:
            raise ValueError(must)
        return str(number)

    return read


def decimal(low: float, high: float) -> Read:
    """Take numbers from `low` to `high`."""
    must = f"must be a number from {low:g} to {high:g}"

    def read(text: str) -> str:
        try:
            number = math.nan if "_" in text else float(text)
        except ValueError:
            raise ValueError(must) from None
        if not low <= number <= high:
            raise ValueError(must)
        return str(number)

    return read


def either(text: str) -> str:
    """Take true and false."""
    if text.lower() not in _BOOLEANS:
        raise ValueError("must be true or false")
    return text.lower()


def one_of(*values: str, why: str = "") -> Read:
    """Take some values only; `why` says more to who gives another."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be {' or '.join(values)}{why}")
        return text

    return read


def some_of(*values: str) -> Read:
    """Take lists of some values, which may be empty."""

    def read(text: str) -> str:
        found = _items(text)
        if not set(found) <= set(values):
            raise ValueError(f"must be a list of {' and '.join(values)}")
        return ",".join(found)

    return read


def throttled(text: str) -> str:
    """Take lists of replicas, each a partition and a broker, or all."""
    found = _items(text)
    if found != ["*"] and not all(map(_REPLICA.fullmatch, found)):
        raise ValueError("must be * or a list of PARTITION:BROKER")
    if len(found) > _REPLICAS_MAX:
        raise ValueError(f"must have at most {_REPLICAS_MAX} replicas")
    return ",".join(found)


def _items(text: str) -> Sequence[str]:
    """Return the items of a list, each once."""
    return [*dict.fromkeys(one.strip() for one in text.split(","))] if text else []
