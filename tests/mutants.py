"""Whether the suite notices when the code is wrong: small changes of `mq` and `tables`, one at a time.

    tests, traced --> which test runs which line --> a sample of mutants --> the tests of each mutant's line

A mutant is the source with one operator, number, condition or statement changed. It is found if one of the tests that
run its line fails. The sample depends on the seed and the source alone, so that two suites can be held against each
other: `python -m tests.mutants --out before.json`, then again after a change of the tests with `--against before.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import coverage
import msgspec

ROOT: Final = Path(__file__).parents[1]
CODE: Final = ("mq", "tables")
#: Not rules: the command line, the texts that it shows, and the queue in memory, which is a test's model itself.
LEFT_OUT: Final = ("mq/client/cli", "mq/testing")
TESTS: Final = ("tests/unit", "tests/contract")
#: Seconds for the tests of one mutant; one that makes them hang is found.
TIMEOUT_S: Final = 120
#: Of the tests of a line so many are run, those that run the fewest lines first.
TESTS_OF_A_MUTANT: Final = 60

#: Operators and what each becomes; comparisons become comparisons, and so on.
_SWAPPED: Final[dict[type[ast.AST], Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(msgspec.Struct, frozen=True):
    """One change of one file."""

    path: str
    line: int
    #: Which of the line's changes, counted from 0 in the order of the tree.
    number: int
    change: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} #{self.number} {self.change}"


@dataclass
class Verdict:
    """What the tests said of a mutant."""

    mutant: Mutant
    found: bool
    tests: int
    by: list[str] = field(default_factory=list)


class _Changer(ast.NodeTransformer):
    """Count the changes that a tree allows; make the one that is `wanted`."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str]] = []
        self._functions = 0

    def _offer(self, node: ast.AST, line: int, change: str) -> bool:
        """Whether this is the change to be made."""
        if not self._functions:  # runs at import: no test runs it alone
            return False
        self.found.append((line, change))
        return len(self.found) - 1 == self.wanted

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._functions += 1
        node.body = [self.visit(one) if not _is_text(one) else one for one in node.body]
        self._functions -= 1
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """The text of an error is not a rule."""
        return ast.Pass() if self._offer(node, node.lineno, "does not raise") else node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for at, operator in enumerate(node.ops):
            other = _SWAPPED[type(operator)]
            if self._offer(node, node.lineno, f"{type(operator).__name__} -> {other.__name__}"):
                node.ops[at] = other()
        return self.generic_visit(node)

    def _visit_operator(self, node: ast.BinOp | ast.BoolOp | ast.AugAssign) -> ast.AST:
        other: Any = _SWAPPED.get(type(node.op))
        if other is not None and self._offer(node, node.lineno, f"{type(node.op).__name__} -> {other.__name__}"):
            node.op = other()
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._visit_operator(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._visit_operator(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._visit_operator(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) and self._offer(node, node.lineno, "not x -> x"):
            return cast(ast.AST, self.visit(node.operand))
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._offer(node, node.lineno, f"{node.value} -> {not node.value}"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self._offer(node, node.lineno, f"{node.value} -> {node.value + 1}"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if (
            node.value is not None
            and not (isinstance(node.value, ast.Constant) and node.value.value is None)
            and self._offer(node, node.lineno, "returns None")
        ):
            return ast.copy_location(ast.Return(ast.Constant(None)), node)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call) and self._offer(node, node.lineno, "does not call"):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    changer = _Changer()
    changer.visit(ast.parse(source))
    for number, (line, change) in enumerate(changer.found):
        yield Mutant(path, line, number, change)


def mutated(source: str, mutant: Mutant) -> str:
    """The file with the mutant's change."""
    changer = _Changer(mutant.number)
    return ast.unparse(ast.fix_missing_locations(changer.visit(ast.parse(source))))


def trace(folder: Path, tests: Sequence[str]) -> Path:
    """Run the tests with their lines written down; returns the file."""
    data, settings = folder / "traced", folder / "coveragerc"
    # the C tracer: contexts are its own
    settings.write_text(f"[run]\nsource = {','.join(CODE)}\ndynamic_context = test_function\ndata_file = {data}\n")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-x", *_PYTEST]
    subprocess.run([*command, *tests], cwd=ROOT, check=True)
    return data


_PYTEST: Final = ("-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(TIMEOUT_S))


def tests_of_lines(data: Path) -> dict[str, dict[int, list[str]]]:
    """Which tests run which line: by path and line, those that run the fewest lines first."""
    found = coverage.CoverageData(str(data))
    found.read()
    lines: dict[str, dict[int, list[str]]] = {}
    sizes: dict[str, int] = defaultdict(int)
    for file in found.measured_files():
        of_file = lines[str(Path(file).relative_to(ROOT))] = {
            line: [one for one in contexts if one] for line, contexts in found.contexts_by_lineno(file).items()
        }
        for contexts in of_file.values():
            for one in contexts:
                sizes[one] += 1
    for of_file in lines.values():
        for contexts in of_file.values():
            contexts.sort(key=lambda one: (sizes[one], one))
    return lines


def node_id(context: str) -> str | None:
    """The test of a context `tests.unit.mq.test_names.test_x`; None if it is no function of a test's file.

    Hypothesis runs its machines from a file of its own: other tests of their lines are run, those are not.
    """
    module, _, name = context.rpartition(".")
    path = ROOT / f"{module.replace('.', '/')}.py"
    return f"{path.relative_to(ROOT)}::{name}" if path.is_file() and path.name.startswith("test_") else None


def judge(mutant: Mutant, contexts: Sequence[str], copy: Path) -> Verdict:
    """Run the tests of a mutant's line against it, in a copy of the source."""
    file = copy / mutant.path
    source = file.read_text(encoding="utf-8")
    chosen = list(filter(None, map(node_id, contexts)))[:TESTS_OF_A_MUTANT]
    if not chosen:
        return Verdict(mutant, False, 0)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", *_PYTEST, *chosen]
    try:
        file.write_text(mutated(source, mutant), encoding="utf-8")
        ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        # a test that fails, or a file that cannot be imported any more
        by = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
        if ran.returncode and not by:
            raise RuntimeError(f"pytest ended with {ran.returncode}, which is no verdict:\n{ran.stdout}{ran.stderr}")
        return Verdict(mutant, bool(by), len(chosen), by)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, True, len(chosen), ["(time is over)"])
    finally:
        file.write_text(source, encoding="utf-8")


def _copy(folder: Path, number: int) -> Path:
    copy = folder / f"copy{number}"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for name in (".venv", ".jars"):
        if (ROOT / name).exists():
            (copy / name).symlink_to(ROOT / name)
    return copy


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants, the same ones for the same source and seed."""
    paths = sorted(path.relative_to(ROOT).as_posix() for layer in CODE for path in (ROOT / layer).rglob("*.py"))
    kept = [path for path in paths if not path.startswith(LEFT_OUT)]
    every = [one for path in kept for one in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))]
    return random.Random(seed).sample(every, min(count, len(every)))


def run(count: int, seed: int, workers: int) -> list[Verdict]:
    """Judge a sample; mutants whose line no test runs are not found."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        lines = tests_of_lines(trace(folder, TESTS))
        copies = [_copy(folder, number) for number in range(workers)]
        shares: list[list[Mutant]] = [sample(count, seed)[at::workers] for at in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            judged = pool.map(lambda pair: list(_judged(pair[0], lines, pair[1])), zip(shares, copies, strict=True))
            return [verdict for share in judged for verdict in share]


def _judged(share: Sequence[Mutant], lines: dict[str, dict[int, list[str]]], copy: Path) -> Iterator[Verdict]:
    for mutant in share:
        began = time.monotonic()
        contexts = lines.get(mutant.path, {}).get(mutant.line, [])
        verdict = judge(mutant, contexts, copy)
        said = "found by " + ", ".join(verdict.by[:1]) if verdict.found else f"NOT FOUND by {verdict.tests} tests"
        print(f"{time.monotonic() - began:5.1f} s  {mutant.name}: {said}", flush=True)
        yield verdict


def main() -> int:
    """Judge a sample, and hold it against an earlier one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (one a core)")
    parser.add_argument("--out", type=Path, help="write the verdicts to this file")
    parser.add_argument("--against", type=Path, help="verdicts of before: fail if one is not found any more")
    asked = parser.parse_args()
    verdicts = run(asked.count, asked.seed, asked.workers)
    found = {one.mutant.name for one in verdicts if one.found}
    print(f"{len(found)} of {len(verdicts)} mutants found")
    if asked.out is not None:
        asked.out.write_text(json.dumps([msgspec.to_builtins(one) for one in verdicts], indent=1), encoding="utf-8")
    if asked.against is None:
        return 0
    before = {Mutant(**one["mutant"]).name for one in json.loads(asked.against.read_text()) if one["found"]}
    lost = sorted(before - found)
    print(f"{len(before)} were found before; no longer: {lost or 'none'}")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
