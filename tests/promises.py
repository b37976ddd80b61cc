"""The tests behind the promises of GUARANTEES.md: `python -m tests.promises` writes their list, `tests/promises.md`.

A test says which promises it holds up: `@pytest.mark.promise("LOG-1")`, or `pytestmark` for a whole file. The list is
made from these marks, so a test that is renamed or moved takes its promise along.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["MADE", "promised", "proofs", "written"]

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "GUARANTEES.md"
MADE: Final = ROOT / "tests" / "promises.md"
_ROW: Final = re.compile(r"^\| ([A-Z]+-\d+) \|", re.MULTILINE)
_HEAD: Final = """# The tests of each promise

GUARANTEES.md has the promises; this list is made from marks in the tests: `python -m tests.promises`.

| promise | tests |
| --- | --- |"""


@functools.cache
def proofs() -> dict[str, list[str]]:
    """By id of a promise the names of its tests, or the paths of whole files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, promise in _marks(path):
            if name not in found[promise]:
                found[promise].append(name)
    return dict(found)


def _marks(path: Path) -> Iterator[tuple[str, str]]:
    """(test or path, id) of each mark in a file."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "mark.promise" in text else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((node.name, promise) for mark in node.decorator_list for promise in _promises(mark))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ((path.relative_to(ROOT).as_posix(), promise) for promise in _promises(node.value))


def _promises(marks: ast.expr) -> Iterator[str]:
    for node in ast.walk(marks):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
            yield from (str(ast.literal_eval(one)) for one in node.args)


def promised() -> list[str]:
    """The ids of all promises of GUARANTEES.md, in its order."""
    return _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))


def written() -> str:
    """The list of promises with their tests, as the marks say."""
    tests = proofs()
    rows = [f"| {one} | {', '.join(f'`{name}`' for name in tests.get(one, []))} |" for one in promised()]
    return "\n".join((_HEAD, *rows)) + "\n"


if __name__ == "__main__":
    MADE.write_text(written(), encoding="utf-8")
