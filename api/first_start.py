"""`deltamq auth init`: the first administrator of a warehouse (SPEC SEC-7).

Whoever may write the warehouse's files may make one: without a service, or beside it. The key is printed once. If the
process is killed after storing and before printing, the key is lost: run it again with another name, and give the first
one a new key, or remove it.
"""

from __future__ import annotations

import secrets

import click
import msgspec

from mq.auth import decide_first_administrator, new_key
from mq.auth_limits import KEY_ID_BYTES, SECRET_BYTES
from tables.clock import SYSTEM_CLOCK
from tables.config import Config, load
from tables.log import Warehouse
from tables.queue import MetaLog

__all__ = ["init_command", "make_administrator"]


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
        `principal_exists`.
    """
    warehouse = Warehouse.open(config.warehouse.uri, settings=config.log)
    try:
        now_ms = SYSTEM_CLOCK.wall_us() // 1000
        key, token = new_key(principal, secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES), now_ms)
        MetaLog(warehouse).submit_any(lambda meta: decide_first_administrator(meta.auth, key))
    finally:
        warehouse.close()
    return key.id, token
