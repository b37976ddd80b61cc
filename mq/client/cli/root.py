"""The `deltamq` command line: one click group whose commands are loaded when they are run.

`deltamq --help` imports neither Arrow nor HTTP nor another layer. The commands of the other layers (`serve`, `jobs`)
are found under the entry point group `deltamq.commands`, each a click command.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 outcome not known, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, version
from typing import Final

import click

from deltamq.mq.errors import DeltaMQError, Unknown

#: The entry point group in which the other layers register their commands.
COMMANDS: Final = "deltamq.commands"

_FAILED: Final = 1
_UNKNOWN: Final = 3
_INTERRUPTED: Final = 130

#: The client's commands: module and name of each, and its line in the help.
_OWN: Final = {
    "topic": ("deltamq.mq.client.cli.topics:topic", "Create, list, show, remap and delete topics."),
    "produce": ("deltamq.mq.client.cli.produce:produce", "Send NDJSON messages from a file or stdin."),
    "cluster": ("deltamq.mq.client.cli.cluster:cluster", "Show the service's processes and brokers."),
    "log-level": ("deltamq.mq.client.cli.cluster:log_level", "Change what the process that answers logs."),
    "settings": ("deltamq.mq.client.cli.cluster:settings", "Show the settings of the process that answers."),
    "audit": ("deltamq.mq.client.cli.auth:audit", "Who did what, and what was refused."),
    "apply": ("deltamq.mq.client.cli.apply:apply", "Bring topics, groups and access to what files say."),
    "describe": ("deltamq.mq.client.cli.apply:describe", "Print topics, groups and access as a file for `apply`."),
    "auth": ("deltamq.mq.client.cli.auth:auth", "Principals, keys and access rules: who may do what."),
    "broker": ("deltamq.mq.client.cli.cluster:broker", "Show brokers, close and open them for writes and reads."),
    "consume": ("deltamq.mq.client.cli.consume:consume", "Print the messages of a topic, for a group or without one."),
    "tail": ("deltamq.mq.client.cli.consume:tail", "Print the last messages of a topic, and new ones as they come."),
    "schema": ("deltamq.mq.client.cli.schemas:schema", "List, show, register, check and delete schemas."),
    "search": ("deltamq.mq.client.cli.search:search", "Find messages by key, id, tag, header, text or time."),
    "latest": ("deltamq.mq.client.cli.search:latest", "Print the newest value of a key."),
    "deliveries": ("deltamq.mq.client.cli.search:deliveries", "Show what each group did with a message."),
    "history": ("deltamq.mq.client.cli.history:history", "Show lag, rates and other gauges over the last day."),
    "delayed": ("deltamq.mq.client.cli.search:delayed", "List delayed messages, cancel one."),
    "group": ("deltamq.mq.client.cli.groups:group", "Create, list, show, reset and delete consumer groups."),
    "outbox": ("deltamq.mq.client.cli.outbox:outbox", "Send what applications have committed in their database."),
    "dead-letters": (
        "deltamq.mq.client.cli.dead_letters:dead_letters",
        "List and count dead letters, send back, delete.",
    ),
    "quarantine": (
        "deltamq.mq.client.cli.schemas:quarantine",
        "List what did not fit a topic's schema, send again, delete.",
    ),
    "erase": ("deltamq.mq.client.cli.topics:erase", "Erase what messages of a key say; show how far that is."),
    "upgrade": ("deltamq.mq.client.cli.cluster:upgrade", "Switch on the features that every process knows."),
    "doctor": ("deltamq.mq.client.cli.doctor:doctor", "Check Java, jars, warehouse and service."),
    "completion": ("deltamq.mq.client.cli.root:completion", "Print the script with which a shell completes commands."),
    "worker": ("deltamq.mq.client.cli.worker:worker", "Run the handlers that a module declares."),
    "up": ("deltamq.mq.client.cli.up:up", "Run the service and the jobs together, on one machine."),
}
#: Help lines of other layers' commands, so that printing the help does not load the service or Spark.
_OTHERS_HELP: Final = {
    "backup": "Make backups of a warehouse in use, and restore them.",
    "cost": "Show the calls of an object store, and their price.",
    "serve": "Run the service.",
    "setup": "Fetch the jars that Spark needs, and check Java.",
    "jobs": "Run and list the Spark jobs.",
    "verify": "Read and check every byte of every partition.",
}


#: The variable with which click's scripts ask for completions.
_COMPLETE: Final = "_DELTAMQ_COMPLETE"


class _LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *_others()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            module, _, attribute = _OWN[cmd_name][0].partition(":")
            command = getattr(import_module(module), attribute)
        else:
            point = _others().get(cmd_name)
            if point is None:
                return None
            command = _loaded(point)
        assert isinstance(command, click.Command), f"{cmd_name} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._line(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    @staticmethod
    def _line(name: str) -> str:
        if name in _OWN:
            return _OWN[name][1]
        return _OTHERS_HELP.get(name, f"See `deltamq {name} --help`.")


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "deltamq":
            raise
        extra = "service" if ".api." in point.value else "spark"
        raise click.ClickException(
            f"`deltamq {point.name}` needs the package {error.name}: pip install 'deltamq[{extra}]'"
        ) from error


def _others() -> dict[str, EntryPoint]:
    """Return what this distribution says; to read the texts of all that are installed takes tens of milliseconds."""
    try:
        points = distribution("deltamq").entry_points
    except PackageNotFoundError:
        return {}
    return {point.name: point for point in points.select(group=COMMANDS)}


def _version() -> str:
    try:
        return version("deltamq")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"deltamq {_version()}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """DeltaMQ: a message log whose partitions are Delta tables."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands and options.

    For bash put `eval "$(deltamq completion bash)"` into ~/.bashrc; for zsh the same with zsh into ~/.zshrc; for fish
    write it to ~/.config/fish/completions/deltamq.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click has it"
    click.echo(kind(cli, {}, "deltamq", _COMPLETE).source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(_status(sys.argv[1:] if arguments is None else list(arguments)))


def _status(arguments: list[str]) -> int:
    if (asked := os.environ.get(_COMPLETE)) is not None:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "deltamq", _COMPLETE, asked)
    try:
        # Not `cli.main`: it would turn a closed pipe into a failure.
        with cli.make_context("deltamq", arguments) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DeltaMQError as error:
        _show(error, as_json="--json" in arguments)
        return _UNKNOWN if isinstance(error, Unknown) else _FAILED
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Without this, the interpreter would report that again when it flushes at exit.
        _drop_output()
        return 0
    except OSError as error:  # such as a full disk where the output goes, or a file that cannot be read
        _drop_output()
        click.echo(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        return _FAILED
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    """Discard what stdout has not written yet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(error: DeltaMQError, *, as_json: bool) -> None:
    from deltamq.mq.client.cli.console import error_line

    click.echo(error_line(error, as_json=as_json), err=True)
