"""Every command and option of `deltamq` that a document names is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from deltamq.mq.client.cli.root import cli

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = (
    *sorted(_ROOT.glob("*.md")),
    *sorted(path for room in ("mq", "tables", "api", "jobs", "conf") for path in (_ROOT / room).rglob("*.md")),
)
#: A command with its words, up to what ends it in text or in a shell; not an import, and not a picture.
_COMMAND = re.compile(
    r"(?<![\w/.\"'-])(?:\.venv/bin/|/opt/deltamq/bin/)?deltamq (?!import |after |deltamq-)"
    r"([a-z][^`|&;#+()\n]*?)(?= -{3}|[`|&;#+()\n]|$)"
)
_CODE = re.compile(r"`([^`\n]+)`|^(.*\bdeltamq .*)$", re.MULTILINE)


def _lines(document: Path) -> list[str]:
    code = _CODE.findall(document.read_text("utf-8"))
    return [line for quoted, whole in code for line in _COMMAND.findall(quoted or whole)]


def unknown_word(line: str) -> str | None:
    """Return the first word of a command line that is neither command, argument nor option; None if all are known."""
    command: click.Command = cli
    context = click.Context(cli)
    for word in line.split():
        word = word.rstrip(".,:")
        if word.startswith("--"):
            name = word.partition("=")[0]
            if name != "--help" and name not in {
                option for one in command.params for option in (*one.opts, *one.secondary_opts)
            }:
                return word
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None:
                return word
            command = found
    return None


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_every_command_that_a_document_names_is_there(document: Path) -> None:
    assert {line: word for line in _lines(document) if (word := unknown_word(line)) is not None} == {}


def test_the_commands_of_documents_are_found() -> None:
    assert len([line for document in _DOCUMENTS for line in _lines(document)]) > 80
    assert (
        unknown_word("topic shows orders") == "shows"
        and unknown_word("topic create orders --partition 2") == "--partition"
    )
    assert unknown_word("topic create orders --partitions 2") is None
