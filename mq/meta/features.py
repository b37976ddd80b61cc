"""Features of a warehouse: what its metadata uses that not every release knows (SPEC META-5).

A change that an older release would misread is a feature with a name. It is used only once it is switched on, which is
an event of the metadata like others, and that happens only when every process of the cluster knows it (`deltamq
upgrade`, or the first call that needs it); the first process of a new warehouse switches on all. A release that does
not know a feature which is on cannot go on, and says which it is; so a process that is rolled back refuses to start
instead of deciding by half of the metadata. That goes for reading, too: a reader decides by the metadata who may see
what and where a key lies, so there is no feature that stops writers alone, as Delta's tables have it.

    process 1 (new)   knows: a, b   --.
    process 2 (old)   knows: a      --+-- upgrade: a is switched on, b waits for process 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, Unavailable
from deltamq.mq.stored_json import Form, forms_of

SCHEMAS: Final = "schemas"
GUARDED: Final = "guarded"
KAFKA_PARTITIONER: Final = "kafka-partitioner"
PASSWORDS: Final = "passwords"
CLIENT_QUOTAS: Final = "client-quotas"
#: The features that this release knows, and what each changes. A new one is added with the change that needs it.
KNOWN_FEATURES: Final[dict[str, str]] = {
    SCHEMAS: "the schema registry, and topics with a schema",
    GUARDED: "a guarded warehouse, which no process without authentication serves, and disabled principals",
    KAFKA_PARTITIONER: "topics with Kafka's partitioner",
    PASSWORDS: "passwords of users, which Kafka's clients set",
    CLIENT_QUOTAS: "quotas of Kafka's clients, by user and client id",
}


class FeatureOn(msgspec.Struct, frozen=True, kw_only=True):
    """A feature is used from here on."""

    kind: ClassVar[str] = "feature_on"
    name: str
    #: What it changes, in the words of the release that switched it on.
    says: str

    @property
    def key(self) -> str:
        return f"feature/{self.name}"


FeatureEvent = FeatureOn
#: The stored form of each kind of event.
FEATURE_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(FeatureOn)


class FeaturesState(msgspec.Struct, frozen=True):
    """The features that are on, with what each changes. Immutable."""

    on: Mapping[str, str] = msgspec.field(default_factory=dict)

    def apply_all(self, events: Iterable[FeatureEvent]) -> FeaturesState:
        """Return the state after `events`; raise `Unavailable` (`feature_unknown`) for one that is not known here."""
        after = replace(self, on={**self.on, **{event.name: event.says for event in events}})
        after.check_known()
        return after

    def check_known(self) -> None:
        """Return if this release knows all features that are on."""
        for name, says in self.on.items():
            if name not in KNOWN_FEATURES:
                raise Unavailable(
                    f"this warehouse uses the feature {name!r} ({says}), which this release does not know: start the "
                    "release that switched it on, or a newer one",
                    code="feature_unknown",
                )


class Upgrade(NamedTuple):
    """What an upgrade would do: features to switch on, and features that wait, each with the processes that lack it."""

    ready: Mapping[str, str]
    waiting: Mapping[str, Sequence[str]]


def upgrade_of(state: FeaturesState, hosts: Mapping[str, Sequence[str]]) -> Upgrade:
    """Return what can be switched on, given the features that each live process knows, by its address."""
    ready: dict[str, str] = {}
    waiting: dict[str, Sequence[str]] = {}
    for name, says in KNOWN_FEATURES.items():
        lacking = sorted(address for address, known in hosts.items() if name not in known)
        if name in state.on:
            continue
        if lacking:
            waiting[name] = lacking
        else:
            ready[name] = says
    return Upgrade(ready, waiting)


def decide_upgrade(state: FeaturesState, hosts: Mapping[str, Sequence[str]]) -> tuple[FeatureEvent, ...]:
    """Return the events that switch on all that every live process knows."""
    return tuple(FeatureOn(name=name, says=says) for name, says in upgrade_of(state, hosts).ready.items())


def decide_use(state: FeaturesState, hosts: Mapping[str, Sequence[str]], name: str) -> tuple[FeatureEvent, ...]:
    """Return the event that switches on a feature which is about to be used; none if it is on.

    Raises
    ------
    Conflict
        `feature_waits`: live processes do not know it; the error names them.
    """
    if name in state.on:
        return ()
    waiting = upgrade_of(state, hosts).waiting.get(name)
    if waiting:
        raise Conflict(
            f"{KNOWN_FEATURES[name]}: processes of a release without it still run, replace them: {', '.join(waiting)}",
            code="feature_waits",
        )
    return (FeatureOn(name=name, says=KNOWN_FEATURES[name]),)
