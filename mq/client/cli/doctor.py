"""The checks of `deltamq doctor`: whether everything that DeltaMQ needs is in order, and if not, what to do.

Each layer checks what it knows. A layer registers a checker under the entry point group `deltamq.doctor`: a callable
that takes the `Subject` and yields `Check`s. The check of the service is here, because the client knows HTTP. A checker
that raises counts as a failed check and does not end the doctor.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import full_disk_line
from deltamq.mq.client.cli.console import print_json, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.errors import DeltaMQError, Forbidden, Unauthenticated

#: The entry point group in which the other layers register their checkers.
CHECKERS = "deltamq.doctor"


class CheckOutcome(enum.Enum):
    """The outcome of a check."""

    OK = "ok"  #: as it should be
    WARNING = "warning"  #: works, but needs attention
    FAILED = "failed"  #: something will not work until the remedy is applied


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check: what was found and, unless it is in order, what to do."""

    name: str
    health: CheckOutcome
    detail: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert self.health is CheckOutcome.OK or self.remedy, f"{self.name}: what is not in order needs a remedy"

    @classmethod
    def ok(cls, name: str, detail: str) -> Check:
        return cls(name=name, health=CheckOutcome.OK, detail=detail)

    @classmethod
    def warning(cls, name: str, detail: str, remedy: str) -> Check:
        return cls(name=name, health=CheckOutcome.WARNING, detail=detail, remedy=remedy)

    @classmethod
    def failed(cls, name: str, detail: str, remedy: str) -> Check:
        return cls(name=name, health=CheckOutcome.FAILED, detail=detail, remedy=remedy)


def _no_access() -> ClientAccess:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the doctor examines; without a `warehouse`, the profile's."""

    url: str
    warehouse: str | None = None
    profile: str = "local"
    access: ClientAccess = field(default_factory=_no_access, repr=False)


Checker = Callable[[Subject], Iterable[Check]]


def installed_checkers() -> dict[str, Callable[[], Checker]]:
    """Return the loaders of the registered checkers by name; the check of the service comes last."""
    loaders: dict[str, Callable[[], Checker]] = {point.name: point.load for point in entry_points(group=CHECKERS)}
    loaders["service"] = lambda: check_service
    return loaders


def examine(subject: Subject, loaders: Mapping[str, Callable[[], Checker]]) -> Iterator[Check]:
    """Yield the checks of all checkers, each when it is done."""
    for name, load in loaders.items():
        try:
            yield from load()(subject)
        except ModuleNotFoundError as error:
            detail = f"not looked at: the package {error.name} is not installed, as in a client without Spark"
            yield Check.ok(name, detail)
        except Exception as error:
            yield Check.failed(
                name,
                f"the check itself failed: {type(error).__name__}: {error}",
                "please report this with the detail above",
            )


def check_service(subject: Subject) -> Iterator[Check]:
    """Check whether the service at the URL answers and is ready, and report what it hosts."""
    with Admin(subject.url, **subject.access, patience=Patience(retries=0, timeout_s=5.0)) as admin:
        try:
            unready = admin.unready()
            cluster = admin.cluster() if unready is None else None
        except (Unauthenticated, Forbidden) as error:
            yield Check.failed(
                "service",
                f"{subject.url} is alive, and says: {error.detail}",
                "give a token that may describe the cluster, in DELTAMQ_CLIENT_TOKEN",
            )
            return
        except DeltaMQError as error:
            yield Check.failed(
                "service",
                f"{subject.url}: {error.detail}",
                "start it with `deltamq serve`, or name the right one with --url",
            )
            return
        if cluster is None:
            yield Check.warning(
                "service",
                f"{subject.url} is alive but not ready: {unready}",
                "try again in a few seconds, if it starts; its log says more",
            )
            return
        brokers = ", ".join(broker.broker for broker in cluster.brokers)
        detail = f"{subject.url} serves warehouse {cluster.warehouse} with {brokers}"
        yield Check.ok("service", detail)
        for stopped in cluster.stopped:
            yield Check.failed(
                "partitions",
                f"{stopped.queue or stopped.partition} of {stopped.topic} is stopped: {stopped.detail}",
                "run `deltamq verify`, which names the damage and the remedy",
            )
        if (line := full_disk_line(cluster)) is not None:
            yield Check.warning(
                "disk",
                line,
                "`deltamq topic create NAME --retention-bytes N` lets a topic keep less; or use a larger disk",
            )
        for job in cluster.missing_jobs:
            yield Check.warning(
                "jobs",
                f"no job {job.job} runs on {cluster.warehouse}: {job.means}",
                f"start `deltamq jobs run --warehouse {cluster.warehouse}`, and keep it running",
            )


_SIGNS: Final = {
    CheckOutcome.OK: ("ok", "green"),
    CheckOutcome.WARNING: ("warning", "yellow"),
    CheckOutcome.FAILED: ("FAILED", "red"),
}


@click.command()
@click.option("--warehouse", envvar="DELTAMQ_WAREHOUSE_URI", help="The tables' folder or URL; default: the profile's.")
@click.option("--profile", envvar="DELTAMQ_PROFILE", default="local", show_default=True, help="conf/<profile>.toml")
@service_options
def doctor(warehouse: str | None, profile: str, url: str, access: ClientAccess, as_json: bool) -> int:
    """Check Java, jars, warehouse and service; exits 1 if something does not work."""
    checks = []
    for check in examine(Subject(url=url, warehouse=warehouse, profile=profile, access=access), installed_checkers()):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = sum(check.health is CheckOutcome.FAILED for check in checks)
    if as_json:
        print_json({"ok": failed == 0, "checks": checks})
    return 1 if failed else 0


def _print(check: Check) -> None:
    word, colour = _SIGNS[check.health]
    click.echo(f"{click.style(f'{word:>8}', fg=colour)}  {check.name}: {check.detail}")
    if check.remedy is not None:
        click.echo(f"{'':>8}  -> {check.remedy}")
