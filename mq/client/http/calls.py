"""What all calls of a client share: the cluster, retries, typed answers, and lists that are answered page by page."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

import msgspec

from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.endpoint import Query, path_of
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.retries import Attempts, Patience, is_worth_retrying, was_refused_every_time
from deltamq.mq.client.http.tokens import Token
from deltamq.mq.client.shells.both import Client, both
from deltamq.mq.client.shells.shell import Answer, Shell
from deltamq.mq.errors import DeltaMQError, Unknown, Unprocessable
from deltamq.mq.wire.answers import Page

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import TracerProvider


T = TypeVar("T")


class ClientAccess(TypedDict, total=False):
    """How a client reaches a cluster and authenticates; see `Calls`."""

    token: Token | None
    ca: str | None
    cert: str | None
    key: str | None
    ssl_context: ssl.SSLContext | None
    tracer_provider: TracerProvider | None


class Calls(Client):
    """Calls to one cluster; they are retried while it is away, within `patience`.

    With threads they are safe for any number of them; with an event loop for any number of its tasks.

    Parameters
    ----------
    url
        The service, `http://HOST:PORT`, or several of its processes, as a list or separated by commas.
    token
        Sent as `Authorization: Bearer ...`, only to the cluster's processes: a text, or a function that returns one
        (such as `OidcClientCredentials`), which is called again when the service refuses its token. By default
        `DELTAMQ_CLIENT_TOKEN`; an empty text sends none.
    ca, cert, key, ssl_context
        Trusted authorities and the client's certificate for `https://` URLs: PEM files, or a context; see `Tls`.
    tracer_provider
        Makes the spans of OpenTelemetry; by default the application's provider, and no spans if it has set none.
    shell
        What drives the calls, for those that a larger client makes; by default one of their own.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        patience: Patience | None = None,
        shell: Shell | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        self.shell = self._make_shell() if shell is None else shell
        self.hosts = Hosts(url, shell=self.shell, **access)
        self.patience = patience if patience is not None else Patience()

    @both
    async def close(self) -> None:
        """Close the connections."""
        await self.hosts.close()
        await self.shell.close()

    async def repeat(
        self,
        attempt: Callable[[float], Coroutine[Any, Any, T]],
        *,
        wait_ms: int = 0,
        on_failure: Callable[[DeltaMQError], None] | None = None,
    ) -> T:
        """Call `attempt` until it succeeds, is refused, or `patience` is used up; returns its result.

        The `outcome` of the error that is raised is that of all attempts.

        Parameters
        ----------
        attempt
            Called with the seconds that it may take.
        wait_ms
            Milliseconds that an attempt may take in addition, because the request asks the service to wait.
        on_failure
            Called with the error of each failed attempt.
        """
        wait_s = wait_ms / 1000
        deadline = self.shell.now() + self.patience.timeout_s + wait_s
        attempts = Attempts(self.patience, shell=self.shell, deadline=deadline, retries=self.patience.retries)
        may_be_applied = False
        while True:
            try:
                return await attempt(attempts.timeout_s() + wait_s)
            except DeltaMQError as error:
                if on_failure is not None:
                    on_failure(error)
                if not is_worth_retrying(error) or not await attempts.may_go_on(error):
                    if may_be_applied and not was_refused_every_time(error):
                        error.not_known()
                    raise
                may_be_applied = may_be_applied or error.outcome == "unknown"

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        wait_ms: int = 0,
        on_failure: Callable[[DeltaMQError], None] | None = None,
    ) -> Answer:
        if headers is None and body is not None:
            headers = {"Content-Type": "application/json"}

        async def attempt(timeout_s: float) -> Answer:
            return await self.hosts.call(method, path, query=query, headers=headers, body=body, timeout_s=timeout_s)

        return await self.repeat(attempt, wait_ms=wait_ms, on_failure=on_failure)

    async def _end(self, path: str, gone: type[DeltaMQError]) -> None:
        """Send a DELETE; a retry that raises `gone` after a lost answer counts as success."""
        lost = [False]

        def note(error: DeltaMQError) -> None:
            lost[0] = lost[0] or isinstance(error, Unknown)

        try:
            await self._call("DELETE", path, on_failure=note)
        except gone:
            if not lost[0]:
                raise


def read_answer(answer: Answer, kind: type[T]) -> T:
    """Decode the JSON document of an answer as `kind`."""
    return decoded(answer.body, kind)


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode the JSON document in `body` as `kind`; raises `Unknown` (`answer_unreadable`) if that fails."""
    try:
        return decode_as(body, kind)
    except msgspec.MsgspecError as error:
        raise Unknown(f"the service's answer is unreadable: {error}", code="answer_unreadable") from error


#: Rows in one page.
_PAGE_ROWS: Final = 1_000


P = TypeVar("P", bound=Page)
R = TypeVar("R")


class PagedCalls(Calls):
    """Calls of which some are answered in pages."""

    async def _rows(
        self,
        path: Sequence[str],
        kind: type[P],
        rows_of: Callable[[P], Sequence[R]],
        asked: Mapping[str, str | None] | None = None,
        *,
        limit: int | None = None,
    ) -> AsyncGenerator[R, None]:
        """Yield the rows of a list, page by page, so that no answer is large; at most `limit` of them.

        `path` has the segments after `/v1`; values of `asked` that are None are not sent.
        """
        query = {name: value for name, value in (asked or {}).items() if value is not None}
        while limit is None or limit > 0:
            query["limit"] = str(_PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit))
            page = read_answer(await self._call("GET", path_of(*path), query=query), kind)
            rows = rows_of(page)
            for row in rows:
                yield row
            limit = None if limit is None else limit - len(rows)
            if page.next is None:
                return
            query["after"] = str(page.next)


def time_text(moment: datetime, field: str = "time") -> str:
    """Return RFC 3339 in UTC; raise `Unprocessable`, naming `field`, if the moment has no time zone."""
    if moment.tzinfo is None:
        raise Unprocessable(f"{field} needs a time zone", field=field)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
