"""What the documents tell people to type is typed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.main_job import PATIENCE_S, ROOT, MainJob
from tests.notebook import run_as_notebook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(PATIENCE_S + 300)]

README = (ROOT / "README.md").read_text(encoding="utf-8")
FLIGHTS = (ROOT / "jobs" / "flights" / "README.md").read_text(encoding="utf-8")
#: Documents whose examples are run, in this order.
DOCUMENTS = ("README.md", "mq/client/README.md", "jobs/README.md")
ADDRESS = "http://127.0.0.1:8080"
#: Examples that `make faults` alone runs: two dozen commands, and jobs and tables that have tests of their own.
LONG = ("Command line", "Topics with a schema", "Writing, typed tables, a catalog")


class Example(NamedTuple):
    """What somebody may type."""

    document: str
    title: str
    language: str
    text: str

    @property
    def starts_spark(self) -> bool:
        """Whether the example makes a Spark session, or takes the one of the notebook that it is typed into."""
        return "spark_session()" in self.text


def examples_of(document: str) -> Iterator[Example]:
    """The examples of a document, each with the heading above it."""
    whole = (ROOT / document).read_text(encoding="utf-8")
    for found in re.finditer(r"^```(bash|python)\n(.*?)^```$", whole, re.MULTILINE | re.DOTALL):
        headings = re.findall(r"^##+ (.+)$", whole[: found.start()], re.MULTILINE)
        yield Example(document, headings[-1], found[1], found[2])


EXAMPLES = [example for document in DOCUMENTS for example in examples_of(document)]


def _named(example: Example) -> object:
    """Return an example, and whether `make faults` alone runs it as a process: a start of Spark costs ten seconds."""
    marks = [pytest.mark.long] if example.starts_spark or example.title in LONG else []
    return pytest.param(example, marks=marks, id=f"{example.document}: {example.title}")


@pytest.mark.parametrize("example", [_named(example) for example in EXAMPLES])
def test_an_example_of_the_documents_works(example: Example, served: MainJob) -> None:
    text = example.text.replace(ADDRESS, served.url)
    command = ["bash", "-euo", "pipefail", "-c", text] if example.language == "bash" else [sys.executable, "-c", text]
    environ = {**os.environ, **environ_of(served)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    if example.document == "README.md" and "PullConsumer" in example.text:
        assert "amount" in done.stdout, "the first read finds what was sent before it"


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=f"{example.document}: {example.title}")
        for example in EXAMPLES
        # `make faults` alone runs the long ones, as processes: what they leave in the warehouse has a name.
        if example.starts_spark and example.title not in LONG
    ],
)
def test_an_example_with_spark_works_in_the_session_that_is_there(
    example: Example, served: MainJob, spark: SparkSession
) -> None:
    text = example.text.replace(ADDRESS, served.url)
    assert run_as_notebook(text, example.title, spark, environ_of(served)).strip()


def environ_of(served: MainJob) -> dict[str, str]:
    """Where the examples find the service and its warehouse."""
    return {"DELTAMQ_URL": served.url, "DELTAMQ_WAREHOUSE_URI": str(served.warehouse)}


def test_the_documents_have_an_example_of_each_door() -> None:
    assert [(example.document, example.title) for example in EXAMPLES] == [
        ("README.md", "REST"),
        ("README.md", "Python"),
        ("README.md", "Groups"),
        ("README.md", "Spark SQL"),
        ("README.md", "With a schema"),
        ("README.md", "Your own tests"),
        ("mq/client/README.md", "Order"),
        ("mq/client/README.md", "Everything to each client"),
        ("mq/client/README.md", "Commits by hand"),
        ("mq/client/README.md", "Static topics"),
        ("mq/client/README.md", "Values"),
        ("mq/client/README.md", "Filters"),
        ("mq/client/README.md", "asyncio"),
        ("mq/client/README.md", "Worker"),
        ("mq/client/README.md", "Outbox"),
        ("mq/client/README.md", "Maintenance, and routes by hand"),
        ("mq/client/README.md", "Tokens"),
        ("mq/client/README.md", "Traces"),
        ("mq/client/README.md", "Command line"),
        ("jobs/README.md", "Streams"),
        ("jobs/README.md", "Topics with a schema"),
        ("jobs/README.md", "Writing, typed tables, a catalog"),
    ]


def test_the_readmes_first_commands_are_targets_of_make() -> None:
    told = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert told == ["setup", "run"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in told if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_option_of_make_run_that_is_documented_is_one() -> None:
    options = re.findall(r"^\| `([A-Z]+)=\S+` \|", FLIGHTS, re.MULTILINE)
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nrun:")[2].partition("\n\n")[0]
    assert options == ["ONCE", "PORT", "EVENTS", "RATE", "WAIT", "WAREHOUSE"]
    assert [name for name in options if f"$({name})" not in recipe] == []


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, "mq/static/README.md", "api/README.md", "jobs/flights/README.md", "BENCHMARKS.md"]
)
def test_every_file_that_a_document_points_to_is_there(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
    assert targets or document != "README.md"
