"""`deltamq doctor`: is everything that DeltaMQ needs here in order, and if not, what is to be done.

Each layer checks what it knows. A layer registers a checker under the entry point group `deltamq.doctor`: a callable
that takes the `Subject` and yields `Check`s. The service's own check lives here, because the client knows HTTP. A
checker that raises is a failed check, never a failed doctor. Importing this module costs no Arrow and no HTTP.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from mq.errors import DeltaMQError

__all__ = ["CHECKERS", "Check", "Checker", "Health", "Subject", "check_service", "examine", "installed_checkers"]

#: The entry point group in which the other layers register their checkers.
CHECKERS = "deltamq.doctor"


class Health(enum.Enum):
    """How a check came out."""

    OK = "ok"  #: as it should be
    WARNING = "warning"  #: works, but somebody should look
    FAILED = "failed"  #: something will not work until the remedy is applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at: what was found and, unless it is in order, what to do."""

    name: str
    health: Health
    detail: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert self.health is Health.OK or self.remedy, f"{self.name}: what is not in order needs a remedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the doctor is asked to look at; a warehouse of None is the one of the profile."""

    url: str
    warehouse: str | None = None
    profile: str = "local"
    token: str | None = None


Checker = Callable[[Subject], Iterable[Check]]


def installed_checkers() -> dict[str, Callable[[], Checker]]:
    """The registered checkers by name, each still to be loaded; the service's own comes last."""
    loaders: dict[str, Callable[[], Checker]] = {point.name: point.load for point in entry_points(group=CHECKERS)}
    loaders["service"] = lambda: check_service
    return loaders


def examine(subject: Subject, loaders: Mapping[str, Callable[[], Checker]]) -> Iterator[Check]:
    """Yield every check of every checker, as each is done."""
    for name, load in loaders.items():
        try:
            yield from load()(subject)
        except Exception as error:
            yield Check(
                name=name,
                health=Health.FAILED,
                detail=f"the check itself failed: {type(error).__name__}: {error}",
                remedy="please report this with the detail above",
            )


def check_service(subject: Subject) -> Iterator[Check]:
    """Whether the service at the URL answers, serves, and what it hosts."""
    from mq.client.admin import Admin
    from mq.client.http import Patience

    with Admin(subject.url, token=subject.token, patience=Patience(retries=0, timeout_s=5.0)) as admin:
        try:
            ready = admin.ready()
        except DeltaMQError as error:
            yield Check(
                name="service",
                health=Health.FAILED,
                detail=f"{subject.url}: {error.detail}",
                remedy="start it with `deltamq serve`, or name the right one with --url",
            )
            return
        if not ready:
            yield Check(
                name="service",
                health=Health.WARNING,
                detail=f"{subject.url} is alive but does not serve yet (or is stopping)",
                remedy="try again in a few seconds; its log says what it waits for",
            )
            return
        cluster = admin.cluster()
        brokers = ", ".join(broker.broker for broker in cluster.brokers)
        detail = f"{subject.url} serves warehouse {cluster.warehouse} with {brokers}"
        yield Check(name="service", health=Health.OK, detail=detail)
