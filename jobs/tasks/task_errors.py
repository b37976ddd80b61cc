"""How a DeltaMQ error gets from a task of Spark to the driver.

Spark passes on text only: a task's error becomes the message of another error, below a traceback and within a sentence
of the scheduler. So a DeltaMQ error is written as one line of JSON behind a mark, and parsed from whatever text it
arrives in.

    task: Corrupt("...", code="merge_gap") --> "DELTAMQ-ERROR {...}" --> PythonException, Connect's ... --> Corrupt(...)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltamq.mq import errors
from deltamq.mq.errors import DeltaMQError

_MARK: Final = "DELTAMQ-ERROR"
_LINE: Final = re.compile(rf"{_MARK} (\{{.*\}})\s*$", re.MULTILINE)
#: Spark Connect hands on about 2,000 characters of a message.
_DETAIL_LENGTH_MAX: Final = 1_000
_CLASSES: Final[dict[str, type[DeltaMQError]]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, DeltaMQError)
}


class TaskError(RuntimeError):
    """A DeltaMQ error as text, in a task."""


@contextmanager
def as_text() -> Iterator[None]:
    """Raise DeltaMQ errors as text that the driver can parse, and other errors unchanged."""
    try:
        yield
    except DeltaMQError as error:
        # Without the traceback: the detail says what is wrong and where, and the whole line must fit.
        raise TaskError(_text(error)) from None


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise the DeltaMQ error that ended a task, and other errors unchanged."""
    try:
        yield
    except DeltaMQError:
        raise
    except Exception as error:
        found = error_in(str(error))
        if found is None:
            raise
        raise found from error


def error_in(text: str) -> DeltaMQError | None:
    """Return the DeltaMQ error that `text` contains, None if it contains none."""
    found = _LINE.search(text)
    if found is None:
        return None
    try:
        told = json.loads(found[1])
        error = _CLASSES[told["class"]](told["detail"])
        error.code, error.field, error.extra = told["code"], told["field"], told["extra"]
    except (ValueError, KeyError, TypeError):
        return None
    return error


def _text(error: DeltaMQError) -> str:
    """Return the error as one line; a class outside the tree in `mq.errors` is named as its nearest base there."""
    nearest = next(one for one in type(error).__mro__ if one.__name__ in _CLASSES)
    told = {
        "class": nearest.__name__,
        "detail": error.detail[:_DETAIL_LENGTH_MAX],
        "code": error.code,
        "field": error.field,
        "extra": error.extra,
    }
    return f"{_MARK} {json.dumps(told)}"
