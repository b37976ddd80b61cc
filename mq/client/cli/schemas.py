"""`deltamq schema list|show|register|check|delete`: subjects and schemas of the registry (SPEC TYPE-20)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, Any, Final, cast

import click

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.schema_admin import SchemaType
from deltamq.mq.client.cli.console import PATIENCE, one_line, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.wire.schemas import SchemaReference

_TYPES: Final = ("avro", "json", "protobuf", "columns")


def _references(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[SchemaReference]:
    references = []
    for one in given:
        name, is_named, place = one.partition("=")
        subject, _, version = place.rpartition(":")
        if not is_named or not subject or not version.isdecimal():
            raise click.BadParameter(f"{one!r}: write NAME=SUBJECT:VERSION", ctx, param)
        references.append(SchemaReference(name, subject, int(version)))
    return references


def _of_text(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a schema's file, type and references to a command."""
    for option in (
        click.option(
            "--reference",
            "references",
            multiple=True,
            callback=_references,
            help="NAME=SUBJECT:VERSION of a schema that this one uses by NAME; may be repeated.",
        ),
        click.option("--type", "kind", type=click.Choice(_TYPES), default="avro", show_default=True),
        click.argument("file", type=click.File(encoding="utf-8")),
        click.argument("subject"),
    ):
        command = option(command)
    return command


@click.group()
def schema() -> None:
    """List, show, register, check and delete schemas; the values of topic T have the subject T-value."""


@schema.command("list")
@click.argument("subject", required=False)
@click.option("--deleted", is_flag=True, help="Also subjects that are deleted, but not for good.")
@service_options
def list_schemas(subject: str | None, deleted: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the subjects, or the versions of SUBJECT with their ids."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        if subject is None:
            subjects = admin.list_subjects(deleted=deleted)
            print_json(subjects) if as_json else click.echo("".join(f"{one_line(one)}\n" for one in subjects), nl=False)
            return
        versions = [admin.get_schema(subject, number) for number in admin.list_schemas(subject)]
    if as_json:
        print_json(versions)
    else:
        rows = [(one.version, one.id, one.schema_type, one_line(one.schema)[:80]) for one in versions]
        print_table(("version", "id", "type", "schema"), rows, right=("version", "id"))


@schema.command()
@click.argument("subject")
@click.option("--version", type=click.IntRange(1), help="By default the newest.")
@service_options
def show(subject: str, version: int | None, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the text of a schema of SUBJECT."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        one = admin.get_schema(subject, version)
    print_json(one) if as_json else click.echo(one.schema)


@schema.command()
@_of_text
@service_options
def register(
    subject: str, file: IO[str], kind: str, references: Any, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Make the schema in FILE (- for stdin) the next version of SUBJECT."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        schema_type = cast(SchemaType, kind.upper())
        one = admin.register_schema(subject, file.read(), schema_type=schema_type, references=references)
    print_json(one) if as_json else click.echo(f"version {one.version} of {one_line(subject)}, id {one.id}")


@schema.command()
@_of_text
@service_options
def check(
    subject: str, file: IO[str], kind: str, references: Any, url: str, access: ClientAccess, as_json: bool
) -> None:
    """Say whether the schema in FILE (- for stdin) may be the next version of SUBJECT; status 1 if not."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        schema_type = cast(SchemaType, kind.upper())
        reasons = admin.check_schema(subject, file.read(), schema_type=schema_type, references=references)
    if as_json:
        print_json({"compatible": not reasons, "reasons": reasons})
    else:
        click.echo("\n".join(map(one_line, reasons)) or "compatible")
    if reasons:
        click.get_current_context().exit(1)


@schema.command()
@click.argument("subject")
@click.option("--version", type=click.IntRange(1), help="By default all versions.")
@click.option("--permanent", is_flag=True, help="For good: only what is deleted already, and no message needs.")
@service_options
def delete(subject: str, version: int | None, permanent: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Delete a schema of SUBJECT, or all; readers of old messages still get it until it is deleted for good."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.delete_schema(subject, version, permanent=permanent)
    print_json({"deleted": subject}) if as_json else click.echo(f"deleted {one_line(subject)}")
