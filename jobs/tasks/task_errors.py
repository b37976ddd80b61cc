"""How a DeltaMQ error gets from a task of Spark to the driver.

Spark passes on text only: a task's error becomes the message of another error, below a traceback and within a sentence
of the scheduler. So a DeltaMQ error is written as one line of JSON behind a mark, and parsed from the text that it
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
#: Spark Connect passes on about 2,000 characters of a message.
_DETAIL_LENGTH_MAX: Final = 1_000
_CLASSES: Final[dict[str, type[DeltaMQError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DeltaMQError)
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
        raised = error_in(str(error))
        if raised is None:
            raise
        raise raised from error


def error_in(text: str) -> DeltaMQError | None:
    """Return the DeltaMQ error that `text` contains, None if it contains none."""
    line = _LINE.search(text)
    if line is None:
        return None
    try:
        fields = json.loads(line[1])
        error = _CLASSES[fields["class"]](fields["detail"])
        error.code, error.field, error.extra = fields["code"], fields["field"], fields["extra"]
    except (ValueError, KeyError, TypeError):
        return None
    return error


def _text(error: DeltaMQError) -> str:
    """A class outside the tree in `mq.errors` is named as its nearest base there."""
    nearest = next(base for base in type(error).__mro__ if base.__name__ in _CLASSES)
    fields = {
        "class": nearest.__name__,
        "detail": error.detail[:_DETAIL_LENGTH_MAX],
        "code": error.code,
        "field": error.field,
        "extra": error.extra,
    }
    return f"{_MARK} {json.dumps(fields)}"
