"""What all commands share: options, tables for people, JSON for machines, one line for an error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar, cast

import click
import msgspec

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.credentials import TOKEN_ENV
from deltamq.mq.client.http.endpoint import CA_ENV, CERT_ENV, KEY_ENV
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.errors import DeltaMQError, Forbidden, Overloaded, Unauthenticated, Unavailable, Unknown

DEFAULT_URL: Final = "http://127.0.0.1:8080"

#: Short, because people wait at the terminal: a missing service is reported within a second or two.
PATIENCE: Final = Patience(retries=3, first_wait_ms=100.0, timeout_s=20.0)

#: Many queues are made, or moved and sealed, by one call.
LONG_PATIENCE: Final = Patience(retries=3, first_wait_ms=100.0, timeout_s=180.0, request_timeout_s=60.0)

#: Control characters, line and paragraph separators, and marks of direction, each as Python writes it.
_SHOWN: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x061C,
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
}

Command = TypeVar("Command", bound=Callable[..., Any])

#: What the user can do about an error, by its code.
_REMEDIES: Final = {
    "connect_failed": "start the service with `deltamq serve`, or name it with --url",
    "topic_not_found": "`deltamq topic list` shows the topics, `deltamq topic create NAME` makes one",
    "partition_not_found": "`deltamq topic show TOPIC` shows its partitions",
    "group_not_found": "`deltamq group list` shows the groups, `deltamq group create NAME` makes one",
    "order_conflict": "wait until messages popped in another order are acknowledged, or their invisible time ends",
    "epoch_over": "the group's offsets were reset: read them again, and go on from there",
    "group_not_exclusive": "make another group: `deltamq group create NAME --strategy exclusive`",
    "group_exclusive": "consume it in order: `--order exclusive`",
    "handle_expired": "the message is delivered again: use a longer invisible time",
    "handle_invalid": "pass the handle unchanged, with the group that popped the message",
    "message_not_found": "only a delayed message that is not due yet can be cancelled",
    "already_due": "the message is delivered already, or about to be",
    "offset_too_small": "retention has removed the offset: use --from first",
    "offset_too_large": "the log ends before the offset: use --from last",
    "partitions_cannot_shrink": "a topic can only grow; to have fewer partitions, delete it and create it again",
    "partitions_cannot_grow": "make a topic with more partitions, or give up its order: --order-strategy best_tried",
    "partitioner_fixed": "leave --partitioner out; `deltamq topic create OTHER --partitioner ...` makes another topic",
    "partitioner_not_static": "leave out --partitioner, or make a plain topic: without --static",
    "queues_cannot_shrink": "a static topic can only get more queues; to have fewer, delete it and create it again",
    "topic_static": "change it together with its number of queues: `deltamq topic create NAME --static --queues N`",
    "topic_not_static": "it is a plain topic; `deltamq topic create NAME --static --queues N` makes a static one",
    "mapping_incomplete": "`deltamq topic check NAME` names all faults, `deltamq topic repair NAME` mends them",
    "queue_unserved": "`deltamq topic check NAME` names what is missing, `deltamq topic repair NAME` mends it",
    "remap_in_progress": "try again in a moment: an earlier remapping or expansion is not finished yet",
    "not_sealed": "check with `deltamq cluster` whether their brokers are served, then run the same command again",
    "unknown_broker": "`deltamq cluster` shows the brokers",
    "broker_unavailable": "`deltamq cluster` shows the brokers, and which of them are served",
    "unknown_queue": "`deltamq topic show NAME` shows its logical queues",
    "physical_partition": "name a logical queue: `deltamq topic show NAME` shows them",
    "certificate_not_trusted": "name the authority's certificate with --ca, and the host as its certificate does",
    "tls_files_invalid": "check the files that --ca, --cert and --key name",
    "token_unavailable": "check whether the source of your tokens is reachable",
    "token_refused": "check the client's id, secret and scope at the provider of tokens",
    "driver_missing": "install it: `pip install 'deltamq[postgres]'`",
    "outbox_not_found": "make it once, with `Outbox(table=...).create(connection)` and a commit, or name its --table",
    "database_not_found": "check the path: sqlite:///relative/path or sqlite:////absolute/path",
    "outbox_outcome_unknown": "if it is not in the topic, `deltamq outbox send-again ID` sends it",
    "not_sent": "check with `deltamq doctor` whether the service is running and reachable",
}


def service_options(command: Command) -> Command:
    """Add `--url`, `--json`, `--token` and the files of TLS to a command, which gets token and files as `access`."""

    @wraps(command)
    def with_access(
        *arguments: Any, token: str | None, ca: str | None, cert: str | None, key: str | None, **options: Any
    ) -> Any:
        return command(*arguments, access=ClientAccess(token=token, ca=ca, cert=cert, key=key), **options)

    decorated: Any = with_access
    for option in (
        click.option("--key", envvar=KEY_ENV, help="The key of --cert, in PEM, unless it is in that file."),
        click.option("--cert", envvar=CERT_ENV, help="Certificate to show to the service, in PEM."),
        click.option("--ca", envvar=CA_ENV, help="Authorities whose certificates are trusted, in PEM."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON for machines."),
        click.option(
            "--token",
            envvar=TOKEN_ENV,
            help="Bearer token; better in the variable: others on this machine can read flags. Without one, "
            "DELTAMQ_CLIENT_OIDC_ISSUER, _CLIENT_ID and _CLIENT_SECRET get one from an identity provider.",
        ),
        click.option(
            "--url",
            envvar=["DELTAMQ_URL", "DELTAMQ_CLIENT_URL"],
            default=DEFAULT_URL,
            show_default=True,
            help="URL of the service, or of several of its processes, separated by commas.",
        ),
    ):
        decorated = option(decorated)
    return cast("Command", decorated)


def watchable(command: Command) -> Command:
    """Add `--watch SECONDS` to a command that prints: it prints again and again, until Ctrl-C."""

    @wraps(command)
    def repeated(*arguments: Any, watch: float | None, **options: Any) -> None:
        if watch is None:
            command(*arguments, **options)
            return
        print_again(lambda: command(*arguments, **options), watch, as_json=options["as_json"])

    shown = click.option(
        "--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Print again, until Ctrl-C."
    )
    return cast("Command", shown(repeated))


def print_again(show: Callable[[], object], every_s: float, *, as_json: bool) -> NoReturn:
    """Print again and again, until Ctrl-C; a terminal shows the newest print alone, unless it is JSON."""
    while True:
        if sys.stdout.isatty() and not as_json:
            click.clear()
        show()
        sys.stdout.flush()
        time.sleep(every_s)


def error_line(error: DeltaMQError, *, as_json: bool = False) -> str:
    """Return an error as one line: its code, what happened, and what to do."""
    remedy = _remedy(error)
    if as_json:
        document: dict[str, Any] = {"code": error.code, "detail": error.detail, "remedy": remedy, **error.extra}
        return msgspec.json.encode({"error": document}).decode()
    line = f"error: {error.code}: {one_line(error.detail)}"
    return f"{line} ({remedy})" if remedy else line


def _remedy(error: DeltaMQError) -> str | None:
    known = _REMEDIES.get(error.code)
    if known is not None:
        return known
    if isinstance(error, Unauthenticated):
        return (
            "give a valid token in DELTAMQ_CLIENT_TOKEN or with --token, or DELTAMQ_CLIENT_OIDC_ISSUER and its client"
        )
    if isinstance(error, Forbidden):
        return "ask an administrator for the right, or use another token"
    if isinstance(error, Unknown):
        return "the request may have been applied: check before repeating it"
    if isinstance(error, (Overloaded, Unavailable)):
        return "try again in a moment"
    return None


def one_line(text: str) -> str:
    """Return foreign text as one line that is safe to print on a terminal.

    Characters that move the cursor, end a line, set colours or turn the direction of writing become escapes.
    """
    return text.translate(_SHOWN)


def print_json(value: object) -> None:
    """Print a value (dataclasses included) as one line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print rows under headings; columns named in `right` are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else one_line(str(cell)) for cell in row))
    # A pipe has no width, so nothing is cut off.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=10_000)
    console.print(table, markup=False)
