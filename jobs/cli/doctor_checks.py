"""The checks of `deltamq doctor` for Spark and the tables: Java, jars, logs, and the service's warehouse.

The look at the tables reads only logs and sizes, so it takes seconds; `deltamq verify` reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deltamq.jobs.cli.options import opened, warehouse_uri
from deltamq.jobs.setup.jars import jars_folder, wrong_jars
from deltamq.jobs.setup.java import JavaMissing, find_java
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.doctor import Check, CheckOutcome, Subject
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.request_values import is_loopback
from deltamq.tables.ops.verification import Gravity, inspect
from deltamq.tables.paths import Space
from deltamq.tables.store.native import native_library

_SHOWN_MAX: Final = 20


def spark_checks(_subject: Subject) -> Iterator[Check]:
    """Check that Spark can start: a suitable Java, and the jars with their pinned hashes."""
    try:
        java = find_java()
    except JavaMissing as error:
        what, _, remedy = str(error).rpartition(". ")
        yield Check.failed("java", what or str(error), remedy)
    else:
        yield Check.ok("java", f"Java {java.version} at {java.path}")
    folder = jars_folder()
    wrong = wrong_jars(folder)
    for name, what in wrong.items():
        remedy = "run `deltamq setup`, or set DELTAMQ_JARS to the folder that has the jars; the first use fetches them"
        yield Check.warning("jars", f"{folder / name} {what}", remedy)
    if not wrong:
        yield Check.ok("jars", f"the jars in {folder} match their pins")


def warehouse_checks(subject: Subject) -> Iterator[Check]:
    """Check that jobs and SQL would use the warehouse of the service; nothing if the service does not answer."""
    try:
        with Admin(subject.url, **subject.access, patience=Patience(retries=0, timeout_s=5.0)) as admin:
            served = _normal(admin.cluster().warehouse)
    except DeltaMQError:
        return  # the check of the service reports the error
    ours = _normal(warehouse_uri(subject.profile, subject.warehouse))
    if ours == served:
        yield Check.ok("warehouse", f"{subject.url} serves {ours}")
        return
    is_sure = "://" in ours or "://" in served or is_loopback(urlsplit(subject.url.split(",")[0]).hostname or "")
    yield Check(
        name="warehouse",
        health=CheckOutcome.FAILED if is_sure else CheckOutcome.WARNING,
        detail=f"commands here use {ours}, but {subject.url} serves {served}: jobs that run here do nothing there",
        remedy=f"give --warehouse {served} or --url {subject.url}, or set DELTAMQ_WAREHOUSE_URI",
    )


def _normal(uri: str) -> str:
    return uri.removeprefix("file://").rstrip("/")


def table_checks(subject: Subject) -> Iterator[Check]:
    """Check that each partition's log is sound and its files have their sizes; `deltamq verify` reads them in full."""
    how = (
        "one native call" if native_library() else "call by call in Python (a C compiler at installation makes it one)"
    )
    yield Check.ok("tables", f"commits to local disks: {how}")
    uri = warehouse_uri(subject.profile, subject.warehouse)
    if "://" not in uri and not Path(uri).is_dir():
        yield Check.ok("tables", f"no warehouse at {uri} yet; the service creates it")
        return
    try:
        with opened(uri) as warehouse:
            refs = [ref for space in Space for ref in warehouse.refs(space)]
            findings = [f for f in inspect(warehouse, refs) if f.gravity is not Gravity.NOTE]
            may_write = warehouse.may_write
    except DeltaMQError as error:
        yield Check.failed("tables", f"{uri}: {error.detail}", "examine the error and the disk")
        return
    if not may_write:
        yield Check.warning(
            "tables",
            f"this process may only read {uri}",
            "whoever starts a service, jobs, `deltamq verify --repair` or a query of Spark must write there",
        )
    for finding in findings[:_SHOWN_MAX]:
        health = CheckOutcome.FAILED if finding.gravity is Gravity.DAMAGE else CheckOutcome.WARNING
        yield Check(name="tables", health=health, detail=f"{finding.file}: {finding.problem}", remedy=finding.remedy)
    if len(findings) > _SHOWN_MAX:
        more = f"{len(findings) - _SHOWN_MAX} more findings"
        yield Check.warning("tables", more, "`deltamq verify` shows all of them")
    if not findings:
        yield Check.ok("tables", f"{len(refs)} partitions in {uri} are sound")
