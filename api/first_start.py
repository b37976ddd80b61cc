"""`deltamq auth init`: the first administrator of a warehouse (SPEC SEC-7).

Anyone who may write the warehouse's files may make one: without a service, or beside it. The key is printed once. If
the process is killed after storing and before printing, the key is lost: run it with another name, then give the
first one a new key, or remove it.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from deltamq.api.audit.acts import Act
from deltamq.mq.audit import BY_FILES, ActBegun, AuditRecord, MetadataChange, bounded
from deltamq.mq.auth.changes import decide_first_administrator
from deltamq.mq.auth.keys import Key, new_key
from deltamq.mq.errors import DeltaMQError, Unknown
from deltamq.mq.limits import ACT_ID_BYTES, KEY_ID_BYTES, SECRET_BYTES
from deltamq.mq.meta.features import GUARDED, decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config import Config, load
from deltamq.tables.config_sections import AuditWhen
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import rows_of_audit
from deltamq.tables.queue.refs import AUDIT
from deltamq.tables.settings import Flush

#: The call in the audit.
_CALL: Final = "deltamq auth init"


@click.command("init", help="Make the first administrator of a warehouse, and print its key, once.")
@click.option("--profile", default=None, help="Settings from conf/<profile>.toml.")
@click.option("--warehouse", default=None, help="Folder or URL of the tables.")
@click.option("--principal", default="admin", show_default=True, help="Name of the administrator.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def init_command(profile: str | None, warehouse: str | None, principal: str, as_json: bool) -> None:
    """Make the first administrator of a warehouse, and print its key, once."""
    key_id, token = make_administrator(load(profile, {"warehouse.uri": warehouse}), principal)
    if as_json:
        click.echo(msgspec.json.encode({"principal": principal, "key_id": key_id, "key": token}))
        return
    click.echo(token)
    click.echo(
        f"This is the key of {principal}, who may do everything. It is not shown again: keep it, for example in"
        " DELTAMQ_CLIENT_TOKEN. Start services with DELTAMQ_SERVICE_AUTH=true.",
        err=True,
    )


def make_administrator(config: Config, principal: str) -> tuple[str, str]:
    """Store a principal that may do everything; return the id of its key, and the key itself.

    Raises
    ------
    Conflict
        `principal_exists`. `feature_waits`: a process of a release that would not guard the warehouse runs.
    """
    warehouse = Warehouse.open(config.warehouse.uri, settings=config.log)
    try:
        now_ms = SYSTEM_CLOCK.wall_us() // 1000
        key, token = new_key(principal, secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES), now_ms)
        is_audited = config.service.audit is not AuditWhen.NEVER
        audit = warehouse.create(AUDIT) if is_audited else None
        _make(MetaLog(warehouse), audit, key)
    finally:
        warehouse.close()
    return key.id, token


def _make(meta: MetaLog, audit: PartitionLog | None, key: Key) -> None:
    """Store the principal with its key; the end of the act is recorded before the key is printed."""
    begun = ActBegun(
        id=secrets.token_hex(ACT_ID_BYTES),
        time_ms=key.created_ms,
        principal=BY_FILES,
        address=f"{_user()}@{socket.gethostname()}",
        process="",
        call=_CALL,
        resource="principal",
        name=key.principal,
        asked=bounded({"principal": key.principal}),
    )
    act = Act(begun)
    _store(audit, begun)
    changes: list[MetadataChange] = []

    def decide(meta: Meta) -> Sequence[AnyEvent]:
        features = decide_use(meta.features, meta.brokers.features, GUARDED)
        events = (*features, *decide_first_administrator(meta.auth, key))
        changes[:] = [MetadataChange(meta, events)]
        return events

    try:
        meta.submit_any(decide, act.id)
    except DeltaMQError as error:
        act.is_unsure = isinstance(error, Unknown)
        _store(audit, act.ended(key.created_ms, error.status, error.code, error.detail))
        raise
    act.changes += changes
    _store(audit, act.ended(SYSTEM_CLOCK.wall_us() // 1000, 200, "", ""))


def _store(audit: PartitionLog | None, record: AuditRecord) -> None:
    if audit is not None:
        audit.append([Batch(rows_of_audit([record]))], flush=Flush.SYNC)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
