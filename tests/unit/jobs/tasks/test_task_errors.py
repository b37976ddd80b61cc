"""Errors of ours come out of tasks as they went in, whatever Spark writes around them."""

from __future__ import annotations

import pytest

from deltamq.jobs.tasks.task_errors import TaskError, as_text, error_in, errors_of_tasks
from deltamq.mq.errors import Corrupt, DeltaMQError, NotFound, Overloaded, Refused, Unknown
from deltamq.tables.log.paging import NotStored

AROUND = (
    'Job aborted: Task 3 failed 4 times\nTraceback (most recent call last):\n  File "worker.py"\n{}\n\n\tat org.Scala'
)


def told(error: Exception) -> str:
    """What a task says about it."""
    with pytest.raises(TaskError) as raised, as_text():
        raise error
    return AROUND.format(f"deltamq.jobs.tasks.task_errors.TaskError: {raised.value}")


@pytest.mark.parametrize(
    "error",
    [
        Corrupt('offset 7 is "gone":\n{no} record', code="merge_gap"),
        Refused("no such option", field="topic", extra={"options": ["a", "b"], "limit": 3}),
        Unknown(),
        Overloaded("wait", retry_after_s=7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_spark_07_an_error_of_a_task_is_the_same_on_the_driver(error: DeltaMQError) -> None:
    with pytest.raises(type(error)) as raised, errors_of_tasks():
        raise RuntimeError(told(error))
    found = raised.value
    assert (type(found), found.detail) == (type(error), error.detail)
    assert (found.code, found.field, found.extra) == (error.code, error.field, error.extra)
    assert isinstance(found.__cause__, RuntimeError), "what Spark said is kept"


def test_spark_07_an_error_outside_of_the_tree_is_the_one_it_is_a_case_of() -> None:
    found = error_in(told(NotStored("not there")))
    assert found is not None
    assert (type(found), found.code) == (NotFound, "offset_out_of_range")


@pytest.mark.parametrize(
    "text", ["", AROUND.format("ValueError: no"), 'DELTAMQ-ERROR {"class": "Nope"}\n', "DELTAMQ-ERROR {]}"]
)
def test_other_errors_stay_what_they_are(text: str) -> None:
    assert error_in(text) is None
    with pytest.raises(OSError, match="disk"), errors_of_tasks():
        raise OSError("disk" + text)
    with pytest.raises(OSError, match="disk"), as_text():
        raise OSError("disk" + text)


def test_an_error_that_is_ours_already_passes() -> None:
    error = Corrupt("here")
    with pytest.raises(Corrupt) as raised, errors_of_tasks():
        raise error
    assert raised.value is error


def test_long_details_are_cut_before_spark_cuts_them() -> None:
    found = error_in(told(Corrupt("x" * 5_000)))
    assert found is not None
    assert found.detail == "x" * 1_000
