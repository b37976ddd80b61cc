"""`deltamq schema ...`: the registry's schemas; `deltamq quarantine ...`: what did not fit (SPEC TYPE-20, TYPE-6)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, cast

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.schema_admin import SchemaType
from deltamq.mq.client.cli.console import PATIENCE, error_line, one_line, print_json, print_table, service_options
from deltamq.mq.client.cli.dead_letters import offsets_at
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.wire.quarantine import QuarantinedMessage, QuarantineDone
from deltamq.mq.wire.schemas import SchemaPut, SchemaReference

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


#: The options of a topic's schema, by the names that requests have.
_SCHEMA_OPTIONS: Final = (
    click.option("--format", "form", type=click.Choice(_TYPES), help="What messages are written in; it stays."),
    click.option("--schema-file", type=click.File(encoding="utf-8"), help="The text of its next version; - for stdin."),
    click.option("--subject", help="Its subject in the registry; NAME-value by default."),
    click.option("--message", help="The message of a Protobuf schema; the first one by default."),
    click.option("--wire", type=click.Choice(["none", "confluent"]), help="Whether bodies have Confluent's header."),
    click.option(
        "--on-invalid",
        type=click.Choice(["reject", "quarantine", "rescue"]),
        help="What becomes of a message that does not fit.",
    ),
    click.option("--unwrap", type=click.Choice(["debezium"]), help="The envelope that is taken off."),
)


def schema_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a topic's schema to a command, which gets it as `schema`, None if no option is given."""

    @functools.wraps(command)
    def with_schema(*, form: str | None, schema_file: IO[str] | None, **given: Any) -> Any:
        parts = {name: given.pop(name) for name in ("subject", "message", "wire", "on_invalid", "unwrap")}
        parts |= {"format": form, "schema": None if schema_file is None else schema_file.read()}
        asked = any(part is not None for part in parts.values())
        return command(schema=SchemaPut(**parts) if asked else None, **given)

    wrapped: Callable[..., Any] = with_schema
    for option in reversed(_SCHEMA_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


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


# Quarantine -----------------------------------------------------------------------------------------------------------


@click.group()
def quarantine() -> None:
    """List and show messages that did not fit a topic's schema; send them again, or delete them."""


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    code = click.option("--code", help="Only messages with this code, such as wrong_type.")
    at = click.option("--at", "places", multiple=True, metavar="PARTITION=OFFSET", help="A message; may be repeated.")
    return code(at(command))


@quarantine.command("list")
@click.argument("topic")
@click.option("--code", help="Only messages with this code, such as wrong_type.")
@click.option("--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most.")
@service_options
def list_messages(topic: str, code: str | None, limit: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print messages of TOPIC in quarantine, one a line: place, code, field, reason, key, body."""
    left, cursor = limit, None
    with Admin(url, patience=PATIENCE, **access) as admin:
        while left > 0:
            page = admin.quarantine_page(topic, limit=min(left, 1_000), code=code, cursor=cursor)
            for message in page.messages:
                click.echo(msgspec.json.encode(message).decode() if as_json else _line(message))
            left, cursor = left - len(page.messages), page.cursor
            if cursor is None:
                return


def _line(message: QuarantinedMessage) -> str:
    why, body = message.invalid, message.payload.decode("utf-8", "backslashreplace")
    place = f"{message.partition}:{message.offset}"
    cells = (place, why.code, why.field or "", why.reason or "", message.key or "", body)
    return "\t".join(map(one_line, cells))


@quarantine.command("show")
@click.argument("topic")
@click.argument("partition")
@click.argument("offset", type=click.IntRange(0))
@service_options
def show_message(topic: str, partition: str, offset: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the whole message at OFFSET of PARTITION as JSON, with what does not fit."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        page = admin.quarantine_page(topic, partition=partition, offset=offset)
    if not page.messages:
        raise NotFound(f"{partition}:{offset} is not in quarantine", code="not_quarantined")
    print_json(page.messages[0])


@quarantine.command()
@click.argument("topic")
@_which
@service_options
def replay(topic: str, places: tuple[str, ...], code: str | None, url: str, access: ClientAccess, as_json: bool) -> int:
    """Send messages of TOPIC again, decoded with its newest schema; exits 1 if some still do not fit.

    By default all. A second run stores nothing twice.
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        done = admin.replay_quarantine(topic, offsets=offsets_at(places), code=code)
    return _report(done, "sent again", as_json)


@quarantine.command("delete")
@click.argument("topic")
@_which
@click.option("--all", "everything", is_flag=True, help="All messages in quarantine.")
@service_options
def delete_messages(
    topic: str,
    places: tuple[str, ...],
    code: str | None,
    everything: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> int:
    """Delete messages of TOPIC in quarantine: say which, or --all. They are shown no more."""
    if everything is bool(places or code):
        raise click.UsageError("say either which messages, or --all")
    with Admin(url, patience=PATIENCE, **access) as admin:
        done = admin.delete_quarantine(topic, offsets=offsets_at(places), code=code, everything=everything)
    return _report(done, "deleted", as_json)


def _report(done: QuarantineDone, what: str, as_json: bool) -> int:
    if as_json:
        print_json(done)
    else:
        again = f", {done.duplicates:,} had left before" if done.duplicates else ""
        click.echo(f"{what}: {done.done:,} messages{again}")
    for one in done.failed:
        why = f": {one.field or ''} {one.reason}" if one.reason else ""
        error = DeltaMQError(f"{one.partition}:{one.offset} was not {what}{why}", code=one.code)
        click.echo(error_line(error, as_json=as_json), err=True)
    return 1 if done.failed_total else 0
