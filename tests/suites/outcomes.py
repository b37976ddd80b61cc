"""What tests did, read from their output, and held against what is expected of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

__all__ = [
    *("Comparison", "ExpectationsInvalid", "Outcome"),
    *("compare", "go_outcomes", "librdkafka_outcome", "printed_outcomes", "reasons"),
]

#: Begins the line of a test that may pass and may fail.
_EITHER: Final = "? "
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class Outcome(StrEnum):
    """What one test did."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class ExpectationsInvalid(ValueError):
    """A list of expected failures that cannot be read."""


def reasons(text: str) -> dict[str, str]:
    """Return the tests that are expected to fail, each with its reason.

    A line without indent is a reason, and the indented lines below it are the tests that it holds for. One that begins
    with `? ` may pass as well, for a reason that lies in the client. `#` begins a comment.
    """
    found: dict[str, str] = {}
    reason = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            reason = line.strip()
            continue
        test = line.strip()
        if not reason:
            raise ExpectationsInvalid(f"line {number}: {test} has no reason; write one, not indented, above it")
        if test in found:
            raise ExpectationsInvalid(f"line {number}: {test} is there twice")
        found[test] = reason
    return found


class Comparison(msgspec.Struct, frozen=True):
    """The outcomes of a suite beside what is expected; each list is sorted."""

    passed: int
    skipped: int
    failed_as_expected: tuple[str, ...] = ()
    #: These failed, and should not.
    failed: tuple[str, ...] = ()
    #: These passed, and their line should go.
    passed_unexpectedly: tuple[str, ...] = ()
    #: These have a line, and did not run.
    missing: tuple[str, ...] = ()

    @property
    def is_as_expected(self) -> bool:
        """Whether exactly that failed which was expected to."""
        return not (self.failed or self.passed_unexpectedly or self.missing)


def compare(outcomes: Mapping[str, Outcome], expected: Collection[str], *, is_whole: bool = True) -> Comparison:
    """Hold outcomes against what is expected; unless the suite is whole, expected tests may not have run."""
    either = {test.removeprefix(_EITHER) for test in expected if test.startswith(_EITHER)}
    wanted = {test for test in expected if not test.startswith(_EITHER)}
    failed = {test for test, outcome in outcomes.items() if outcome is Outcome.FAIL}
    return Comparison(
        passed=sum(outcome is Outcome.PASS for outcome in outcomes.values()),
        skipped=sum(outcome is Outcome.SKIP for outcome in outcomes.values()),
        failed_as_expected=tuple(sorted(failed & (wanted | either))),
        failed=tuple(sorted(failed - wanted - either)),
        passed_unexpectedly=tuple(sorted(test for test in wanted & outcomes.keys() if outcomes[test] is Outcome.PASS)),
        missing=tuple(sorted(test for test in wanted if outcomes.get(test, Outcome.SKIP) is Outcome.SKIP))
        if is_whole
        else (),
    )


def go_outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return the outcomes from the lines of `go test -json`, without tests that only hold others.

    A test that failed though none of those within it did has failed itself. One that was begun and did not end, because
    its process died, has failed.
    """
    found: dict[str, Outcome] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict) or not (test := event.get("Test")):
            continue
        match event.get("Action"):
            case "run":
                found[test] = Outcome.FAIL
            case "pass" | "fail" | "skip" as action:
                found[test] = Outcome(action)
    holders = {test.rsplit("/", depth)[0] for test in found for depth in range(1, test.count("/") + 1)}
    return {
        test: outcome
        for test, outcome in found.items()
        if test not in holders or (outcome is Outcome.FAIL and not _fails_within(found, test))
    }


def _fails_within(outcomes: Mapping[str, Outcome], holder: str) -> bool:
    return any(test.startswith(f"{holder}/") and outcomes[test] is Outcome.FAIL for test in outcomes)


def librdkafka_outcome(output: str, test: str) -> Outcome:
    """Return the outcome of a test from the summary of librdkafka's runner; it failed if its line is not there."""
    found = re.findall(rf"\| {re.escape(test)} +\| +(\w+)", _COLOUR.sub("", output))
    return {"PASSED": Outcome.PASS, "SKIPPED": Outcome.SKIP}.get(found[-1] if found else "", Outcome.FAIL)


def printed_outcomes(output: str, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Return what a program of ours printed: a line is `##`, the outcome and the test's name."""
    for outcome, test in re.findall(r"^##(pass|fail) (.*)$", output, re.MULTILINE):
        if re.search(pattern, test):
            yield test, Outcome(outcome)
