"""What all calls of an administrator share: one service, repeated attempts, typed answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from mq.client.attempts import Attempts, Patience, is_worth_retrying
from mq.client.endpoint import Answer, Endpoint, Query
from mq.errors import DeltaMQError, Unknown

__all__ = ["AdminCalls", "decoded", "read_answer"]

T = TypeVar("T")


class AdminCalls:
    """Calls of one service that are repeated while it is away, up to `patience`.

    Parameters
    ----------
    url
        The service, `http://HOST:PORT`.
    token
        Sent as `Authorization: Bearer ...`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, token=token, ssl_context=ssl_context)
        self._patience = patience if patience is not None else Patience()

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        on_failure: Callable[[DeltaMQError], None] | None = None,
    ) -> Answer:
        headers = None if body is None else {"Content-Type": "application/json"}
        deadline = time.monotonic() + self._patience.timeout_s
        attempts = Attempts(self._patience, deadline=deadline, retries=self._patience.retries)
        while True:
            try:
                return self._endpoint.call(
                    method, path, query=query, headers=headers, body=body, timeout_s=attempts.timeout_s()
                )
            except DeltaMQError as error:
                if on_failure is not None:
                    on_failure(error)
                if not is_worth_retrying(error) or not attempts.may_go_on(error):
                    raise

    def _end(self, path: str, gone: type[DeltaMQError]) -> None:
        """DELETE what is there; a repetition after a lost answer that raises `gone` counts as done."""
        lost = [False]

        def note(error: DeltaMQError) -> None:
            lost[0] = lost[0] or isinstance(error, Unknown)

        try:
            self._call("DELETE", path, on_failure=note)
        except gone:
            if not lost[0]:
                raise


def read_answer(answer: Answer, kind: type[T]) -> T:
    """The document of an answer, as `kind`."""
    return decoded(answer.body, kind)


def decoded(body: bytes, kind: type[T]) -> T:
    """The document in `body`, as `kind`; `Unknown` (`answer_unreadable`) when it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Unknown(f"the service's answer is unreadable: {error}", code="answer_unreadable") from error
