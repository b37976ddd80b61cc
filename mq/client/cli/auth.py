"""`deltamq auth ...`: principals, keys, access rules, quotas (SPEC SEC-7); and `deltamq audit`: who did what (SEC-42).

`init` makes the first administrator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from typing import Final, Literal, get_args

import click

from deltamq.mq.auth.keys import SCRAM_HASHES
from deltamq.mq.auth.principals import Effect, Resource, Verb
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.wire.auth import AclInfo, ActInfo, KeyInfo, PasswordInfo, QuotaInfo, RefusalInfo

#: The entry point group of the commands that need the warehouse itself.
_COMMANDS: Final = "deltamq.auth"
_verb: Final = click.Choice(get_args(Verb))
_TIMES: Final = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"])


class _WithOthers(click.Group):
    """A group that also has the commands of other layers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *(point.name for point in entry_points(group=_COMMANDS))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=_COMMANDS, name=cmd_name):
            command = point.load()
            assert isinstance(command, click.Command), f"{cmd_name} is not a click command"
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_WithOthers)
def auth() -> None:
    """Who may do what: principals, keys, access rules."""


# Principals -----------------------------------------------------------------------------------------------------------


@auth.group()
def principal() -> None:
    """Make, list, show, disable, enable and remove principals."""


@principal.command("create")
@click.argument("name")
@click.option("--note", default="", help="Whom to ask about it.")
@service_options
def create_principal(name: str, note: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Make principal NAME, or change its note."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        made = admin.put_principal(name, note=note)
    print_json(made) if as_json else click.echo(f"principal {name}")


@principal.command("list")
@service_options
def list_principals(url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the names of all principals, and which of them are disabled."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        names, disabled = admin.list_principals(), set(admin.list_principals(disabled=True))
    if as_json:
        print_json({"principals": names, "disabled": sorted(disabled)})
    for name in () if as_json else names:
        click.echo(f"{name} (disabled)" if name in disabled else name)


@principal.command("show")
@click.argument("name")
@service_options
def show_principal(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print principal NAME with its keys, passwords and access rules."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.get_principal(name)
    if as_json:
        print_json(info)
        return
    click.echo(f"principal {info.principal}{f' ({info.note})' if info.note else ''}")
    if info.disabled_time is not None:
        click.echo(f"disabled since {_time(info.disabled_time)}: it may do nothing")
    _print_keys(info.keys)
    if info.passwords:
        _print_passwords(info.passwords)
    _print_acls(info.acls)


@principal.command("delete")
@click.argument("name")
@service_options
def delete_principal(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Remove principal NAME with its keys and access rules."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.delete_principal(name)
    print_json({"principal": name}) if as_json else click.echo(f"removed principal {name}")


@principal.command("disable")
@click.argument("name")
@service_options
def disable_principal(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Refuse all that principal NAME asks for, until it is enabled. Its keys and access rules stay.

    What it has under way ends: pops and streams that wait, and connections of Kafka's clients.
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.disable_principal(name)
    print_json(info) if as_json else click.echo(f"disabled principal {name}")


@principal.command("enable")
@click.argument("name")
@service_options
def enable_principal(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Let principal NAME do again what its access rules grant."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.enable_principal(name)
    print_json(info) if as_json else click.echo(f"enabled principal {name}")


# Keys -----------------------------------------------------------------------------------------------------------------


@auth.group()
def key() -> None:
    """Make, list and revoke keys."""


@key.command("create")
@click.argument("principal")
@click.option("--until", type=_TIMES, help="When it ends, with a time zone: 2030-05-01T12:00:00Z. By default never.")
@service_options
def create_key(principal: str, until: datetime | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Make a key for PRINCIPAL and print it: it is not shown again.

    To change a key under load: make the second, give it to all callers, revoke the first.
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        made = admin.create_key(principal, until=until)
    if as_json:
        print_json(made)
    else:
        click.echo(made.key)
        click.echo(f"This is key {made.key_id} of {principal}. It is not shown again.", err=True)


@key.command("rotate")
@click.argument("principal")
@click.option("--hours", type=click.FloatRange(0, 8_760), default=24, show_default=True, help="Until the old key ends.")
@click.option("--until", type=_TIMES, help="When the new key ends, with a time zone. By default never.")
@service_options
def rotate_key(
    principal: str, hours: float, until: datetime | None, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Make a second key for PRINCIPAL and print it; the first ends after some hours, in which both are good.

    Give the new key to all callers until then; the service logs, and counts in its metrics, keys that end soon.
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        made = admin.create_key(principal, until=until, overlap=timedelta(hours=hours))
    if as_json:
        print_json(made)
        return
    click.echo(made.key)
    click.echo(
        f"This is key {made.key_id} of {principal}. It is not shown again. The old one ends in {hours:g} hours.",
        err=True,
    )


@key.command("list")
@click.option("--principal", help="Only keys of this principal.")
@service_options
def list_keys(principal: str | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print keys, without their secrets."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        keys = admin.list_keys(principal)
    print_json({"keys": keys}) if as_json else _print_keys(keys)


@key.command("revoke")
@click.argument("key_id")
@service_options
def revoke_key(key_id: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Revoke the key with this id, which is its first part: mqk_ID_..."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.revoke_key(key_id)
    print_json({"key_id": key_id}) if as_json else click.echo(f"revoked key {key_id}")


def _print_keys(keys: Sequence[KeyInfo]) -> None:
    rows = [
        (
            info.key_id,
            info.principal,
            info.created_time.isoformat(timespec="seconds"),
            _time(info.until_time),
            "yes" if info.live else "NO",
        )
        for info in keys
    ]
    print_table(("key", "principal", "created", "until", "live"), rows)


# Passwords ------------------------------------------------------------------------------------------------------------


@auth.group()
def password() -> None:
    """Remove passwords, which Kafka's clients set (kafka-configs --entity-type users)."""


@password.command("remove")
@click.argument("principal")
@click.argument("mechanism", type=click.Choice(sorted(SCRAM_HASHES)))
@service_options
def remove_password(principal: str, mechanism: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Remove the password of PRINCIPAL for a MECHANISM; connections that came in with it end."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.remove_password(principal, mechanism)
    removed = {"principal": principal, "mechanism": mechanism}
    print_json(removed) if as_json else click.echo(f"removed the password of {principal} for {mechanism}")


def _print_passwords(passwords: Sequence[PasswordInfo]) -> None:
    rows = [(one.mechanism, str(one.iterations), _time(one.created_time)) for one in passwords]
    print_table(("password for", "iterations", "created"), rows, right=("iterations",))


# Access rules ---------------------------------------------------------------------------------------------------------


@auth.group()
def acl() -> None:
    """Add, list and remove access rules."""


@acl.command("add")
@click.argument("principal")
@click.option("--resource", type=click.Choice(get_args(Resource)), default="topic", show_default=True)
@click.option("--pattern", default="", help="A name, or a beginning of names and *: 'orders*'; none for the cluster.")
@click.option("--verb", "verbs", type=_verb, multiple=True, required=True, metavar="VERB", help="May be repeated.")
@click.option("--effect", type=click.Choice(get_args(Effect)), default="allow", show_default=True)
@service_options
def add_acl(
    principal: str,
    resource: Literal["topic", "group", "cluster"],
    pattern: str,
    verbs: tuple[str, ...],
    effect: Literal["allow", "deny"],
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Allow or deny PRINCIPAL verbs on topics, groups or the cluster. Any rule that denies wins.

    \b
    topic:   publish subscribe create alter delete describe
    group:   subscribe alter reset delete describe
    cluster: admin metrics audit
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        added = admin.add_acl(principal, resource, list(verbs), pattern=pattern, effect=effect)
    print_json(added) if as_json else _print_acls([added])
    if pattern.endswith(".*"):
        click.echo(f"{pattern} covers names that begin with {pattern[:-1]}, not {pattern[:-2]} itself", err=True)


@acl.command("list")
@click.option("--principal", help="Only access rules of this principal.")
@service_options
def list_acls(principal: str | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print access rules."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        acls = admin.list_acls(principal)
    print_json({"acls": acls}) if as_json else _print_acls(acls)


@acl.command("explain")
@click.argument("principal")
@click.argument("verb", type=_verb)
@click.argument("resource", type=click.Choice(get_args(Resource)))
@click.argument("name", default="")
@click.option("--group", "groups", multiple=True, help="A group that its token names, group:NAME; may be repeated.")
@service_options
def explain_acl(
    principal: str,
    verb: str,
    resource: Literal["topic", "group", "cluster"],
    name: str,
    groups: tuple[str, ...],
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print whether PRINCIPAL may do VERB on a topic or group NAME, or on the cluster, and by which rules."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        found = admin.explain(principal, verb, resource, name, groups=groups)
    if as_json:
        print_json(found)
        return
    what = f"{verb} {found.resource} {found.name}".rstrip("*").rstrip()
    why = "by" if found.rules else "no rule allows it"
    if found.disabled_time is not None:
        why = f"it is disabled since {_time(found.disabled_time)}"
    click.echo(f"{principal} {'may' if found.allowed else 'may NOT'} {what}: {why}")
    if found.rules:
        _print_acls(found.rules)


@acl.command("remove")
@click.argument("acl_id")
@service_options
def remove_acl(acl_id: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Remove the access rule with this id."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.remove_acl(acl_id)
    print_json({"acl_id": acl_id}) if as_json else click.echo(f"removed access rule {acl_id}")


def _print_acls(acls: Sequence[AclInfo]) -> None:
    rows = [(r.acl_id, r.principal, r.effect, r.resource, r.pattern, ", ".join(r.verbs), _covered(r)) for r in acls]
    print_table(("rule", "principal", "effect", "resource", "pattern", "verbs", "covers now"), rows)


def _covered(rule: AclInfo) -> str:
    if rule.resource == "cluster":
        return "the cluster"
    more = ", ..." if rule.matches > len(rule.matched) else ""
    return f"{rule.matches}: {', '.join(rule.matched)}{more}" if rule.matches else "nothing"


# Quotas ---------------------------------------------------------------------------------------------------------------


@auth.group()
def quota() -> None:
    """Set and list what principals may use of each process."""


@quota.command("set")
@click.argument("principal")
@click.option("--requests-per-s", type=click.IntRange(1), help="Requests a second.")
@click.option("--bytes-in-per-s", type=click.IntRange(1), help="Bytes of request bodies a second.")
@click.option("--bytes-out-per-s", type=click.IntRange(1), help="Bytes of answers a second.")
@service_options
def set_quota(
    principal: str,
    requests_per_s: int | None,
    bytes_in_per_s: int | None,
    bytes_out_per_s: int | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Set what PRINCIPAL may use of each process; what is left out has no bound."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.set_quota(
            principal,
            requests_per_s=requests_per_s,
            bytes_in_per_s=bytes_in_per_s,
            bytes_out_per_s=bytes_out_per_s,
        )
    print_json(info) if as_json else _print_quotas([info])


@quota.command("list")
@service_options
def list_quotas(url: str, access: ClientAccess, as_json: bool) -> None:
    """Print all quotas."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        quotas = admin.list_quotas()
    print_json({"quotas": quotas}) if as_json else _print_quotas(quotas)


def _print_quotas(quotas: Sequence[QuotaInfo]) -> None:
    rows = [
        (info.principal, *(bound or "-" for bound in (info.requests_per_s, info.bytes_in_per_s, info.bytes_out_per_s)))
        for info in quotas
    ]
    columns = ("principal", "requests/s", "bytes in/s", "bytes out/s")
    print_table(columns, rows, right=columns[1:])


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.isoformat(timespec="seconds")


@click.command("audit")
@click.option("--since", type=_TIMES, help="From this time on, with a time zone: 2030-05-01T12:00:00Z.")
@click.option("--principal", help="Only of this principal.")
@click.option(
    "--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="Print at most this number."
)
@click.option("--refusals", is_flag=True, help="Print what was refused, by minute, instead of what was done.")
@service_options
def audit(
    since: datetime | None,
    principal: str | None,
    limit: int,
    refusals: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print who did what, the oldest first; with --json one object a line, with the state before and after."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        counted = admin.audit_refusals(since=since, principal=principal, limit=limit) if refusals else ()
        acts = () if refusals else admin.audit(since=since, principal=principal, limit=limit)
        if as_json:
            for row in (*counted, *acts):
                print_json(row)
        elif refusals:
            _print_refusals(counted)
        else:
            _print_acts(acts)


def _print_acts(acts: Iterable[ActInfo]) -> None:
    columns = ("time", "principal", "from", "call", "resource", "name", "outcome", "code")
    rows = [(_time(o.time), o.principal, o.address, o.call, o.resource, o.name, o.outcome, o.code or "") for o in acts]
    print_table(columns, rows)


def _print_refusals(refusals: Iterable[RefusalInfo]) -> None:
    columns = ("minute", "principal", "call", "status", "code", "count", "last from")
    rows = [(_time(o.minute), o.principal, o.call, str(o.status), o.code, o.count, o.address) for o in refusals]
    print_table(columns, rows, right=("count",))
