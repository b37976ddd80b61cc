"""One request of a global topic that several clusters store: what is stored, and one answer from theirs (STATIC-19)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from deltamq.api.host.owners import Relayed
from deltamq.api.host.peer_json import json_of
from deltamq.api.sending.store_request import StoreRequest
from deltamq.api.wire.answer import Answer
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.wire.produce import ProduceAnswer

#: Stands for the queues of messages that may go to any.
FREE: Final = -1
#: Statuses from here on are problems.
_NOT_DONE: Final = 300
Error = TypeVar("Error", bound=DeltaMQError)


class Moved(Unavailable):
    """Nothing of a part was stored: its queue moves, or it was sent by an old copy; it is sent again."""

    code = "queue_unserved"


@dataclass(slots=True)
class Sent:
    """The parts of one request that are stored."""

    answers: list[ProduceAnswer] = field(default_factory=list)
    #: The queues of these parts; FREE for messages that could go anywhere.
    queues: set[int] = field(default_factory=set)

    def add(self, queues: Collection[int], answer: ProduceAnswer) -> None:
        """Note that the messages of these queues are stored."""
        self.queues.update(queues)
        self.answers.append(answer)

    def answer(self, request: StoreRequest) -> Answer:
        """Return the answer when all are."""
        return Answer.of_json(msgspec.json.encode(merged(self.answers, request)))

    def told_in(self, error: Error) -> Error:
        """Return an error that also says what is stored of the request."""
        ranges = [one for answer in self.answers for one in answer.ranges]
        if ranges:
            error.extra = {**error.extra, "stored": msgspec.to_builtins(ranges)}
        return error


def told_by(answer: Answer) -> ProduceAnswer:
    """Return what a cluster tells of what it stores; raise the problem that it answered with."""
    if answer.status >= _NOT_DONE:
        raise Relayed.of(answer)
    return json_of(answer.body, ProduceAnswer)


def left_of(request: StoreRequest, answers: Sequence[ProduceAnswer]) -> NDArray[np.int64]:
    """Return the indexes of the messages that are meant and that no answer tells of."""
    meant = np.arange(request.body.rows.count) if request.only is None else request.only
    for one in (one for answer in answers for one in answer.ranges):
        meant = meant[:0] if one.indexes is UNSET else meant[~np.isin(meant, one.indexes)]
    return meant


def merged(answers: Sequence[ProduceAnswer], request: StoreRequest) -> ProduceAnswer:
    """Return one answer from those of several clusters, each about some messages of the request."""
    told = [(one, _is_duplicate(one.duplicate, answer)) for answer in answers for one in answer.ranges]
    is_all = all(duplicate for _, duplicate in told)
    for one, duplicate in told:
        one.duplicate = True if duplicate and not is_all else UNSET
    whole = ProduceAnswer(
        [one for one, _ in told], any(duplicate for _, duplicate in told), all(answer.durable for answer in answers)
    )
    if request.want_ids:
        ids = [""] * request.body.rows.count
        for answer in answers:
            for at, message_id in enumerate(answer.message_ids or ()):
                ids[at] = message_id or ids[at]
        whole.message_ids = ids
    return whole


def _is_duplicate(told: object, answer: ProduceAnswer) -> bool:
    """Whether a range is of an earlier copy: each says so by itself, unless all ranges of its answer are."""
    return told is True or (answer.duplicate and all(one.duplicate is UNSET for one in answer.ranges))
