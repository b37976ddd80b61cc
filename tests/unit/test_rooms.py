"""The rooms inside the layers: no circles, no folder that cannot be overlooked, no function that takes everything."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("api", "jobs", "mq", "tables")
#: The modules that get the whole service, to make what takes its parts. FastAPI gives it to the functions of its calls.
GIVEN_THE_SERVICE = {"deltamq.api.app", "deltamq.api.kafka.calls.door", "deltamq.api.kafka.server.server"}

#: Most modules of a folder, its `__init__` among them.
MODULES_MAX = 22
#: Folders with more, and why they are no rooms of smaller ones.
LARGE = {
    "tests": "what tests of several folders share: each file is the stand-in of one thing, and is found by its name",
    "tests/api/routes": "a file for each module of `api/routes`, and for its endpoints with static or global topics",
    "tests/e2e": "a file for each way through several processes, with the process that it starts beside it",
    "tests/faults": "a file for each fault, with the process that is killed beside it",
    "tests/spark": "a file for each job, view or source; the session that all share is in one conftest",
}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements in `node`, without their expressions, which are most of a tree."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
            yield inner
            yield from _statements(inner)


@functools.cache
def _imports() -> tuple[tuple[str, str, str], ...]:
    """(module that imports, module that it imports from, name) of every import in the layers."""
    return tuple(one for layer in LAYERS for path in (ROOT / layer).rglob("*.py") for one in _imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, str, str]]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    importing = ".".join(("deltamq", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((importing, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((importing, alias.name, "") for alias in node.names)


def test_functions_take_what_they_use_and_not_the_whole_service() -> None:
    given = set()
    for path in (ROOT / "api").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in _statements(ast.parse(text)) if "Service" in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                if any(one.annotation is not None and "Service" in _names(one.annotation) for one in every):
                    given.add(".".join(("deltamq", *path.relative_to(ROOT).with_suffix("").parts)))
    assert given == GIVEN_THE_SERVICE


def _names(annotation: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def test_no_modules_import_each_other_in_a_circle_not_for_types_either() -> None:
    modules = {importing for importing, _, _ in _imports()}
    imported: dict[str, set[str]] = {}
    for importing, module, name in _imports():
        found = {one for one in (module, f"{module}.{name}") if one in modules and one != importing}
        imported.setdefault(importing, set()).update(found)
    graphlib.TopologicalSorter(imported).prepare()


def test_a_folder_has_no_more_modules_than_can_be_overlooked() -> None:
    folders = [one for layer in (*LAYERS, "tests") for one in ((ROOT / layer), *(ROOT / layer).rglob("*/"))]
    large = {str(one.relative_to(ROOT)) for one in folders if len(list(one.glob("*.py"))) > MODULES_MAX}
    assert large == set(LARGE)
