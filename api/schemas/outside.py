"""A registry elsewhere, of Confluent's REST API, whose schemas topics here are written with (SPEC TYPE-49).

    a body with an id that is not known --> 503 `schema_pending`, which clients repeat
                                            |  GET /schemas/ids/ID/versions, /subjects/S/versions/N
                                            '--> the version is imported into the metadata, under its id
    a topic gets a schema               --> all versions of its subject are imported
    a topic's messages have no id       --> its subject is looked at again and again, as nothing else tells of a version

What is imported is part of the metadata: it stays known while the registry does not answer, and after a restart, to
every process and to Spark.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from deltamq.api.outward import fetched, trusting
from deltamq.mq.errors import DeltaMQError, NotFound, Unavailable
from deltamq.mq.schemas.limits import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX
from deltamq.mq.schemas.registry import Reference, RegistryState, Version
from deltamq.mq.schemas.setting import SchemaType
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.oidc_settings import is_private

log = logging.getLogger("deltamq.api")

_TIMEOUT_S: Final = 5.0
#: A version's JSON: its text may be escaped.
_BYTES_MAX: Final = 8 * SCHEMA_BYTES_MAX
#: How long an id that the registry does not have is not asked for again, and a registry that has not answered.
_MISSING_S: Final = 10.0
_DOWN_S: Final = 1.0
#: How often the subjects of topics whose messages have no ids are looked at, all of them.
_LOOK_S: Final = 30.0
_MISSING_MAX: Final = 10_000
_OK, _NOT_FOUND = 200, 404
_HEADERS: Final = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}


class _Uses(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Version(msgspec.Struct, rename="camel"):
    subject: str
    version: int
    id: int
    schema: str
    schema_type: SchemaType = "AVRO"
    references: list[_Uses] = []


class _Place(msgspec.Struct):
    subject: str
    version: int


class _Unanswered(Exception):
    """The registry does not answer as it should; the text says how, for logs."""


class OutsideRegistry:
    """Imports what topics need; `want` is called on any thread, all else on the event loop."""

    def __init__(
        self,
        url: str,
        user: str,
        ca: str,
        *,
        state: Callable[[], RegistryState],
        follow: Callable[[Version], Awaitable[None]],
        without_ids: Callable[[], Collection[str]],
    ) -> None:
        """`follow` stores a version under its id and number, or raises if it may not be.

        `without_ids` are the subjects of the topics whose messages have no ids.

        Raises
        ------
        ConfigInvalid
            The URL or the file `schemas_ca` is not right.
        """
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigInvalid(
                "service.schemas_url: give http://HOST[:PORT][/PATH], or https://", field="service.schemas_url"
            )
        if user and not is_private(url):
            raise ConfigInvalid(
                "service.schemas_url: a password goes to another machine over https:// only",
                field="service.schemas_url",
            )
        name, _, password = user.partition(":")
        self._auth = httpx.BasicAuth(name, password) if user else None
        self._tls = trusting(ca, "service.schemas_ca")
        self._state = state
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._missing: dict[tuple[str, int], float] = {}
        self._down_until, self._why = 0.0, ""
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._without_ids = without_ids
        #: What stood against the newest version of a subject, so that a log says it once.
        self._said: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for new versions of subjects whose messages have no ids."""
        self._looking = self._loop.create_task(self._look_forever())

    def want(self, subject: str, id_: int) -> None:
        """Return if the subject has no schema with this id.

        Raises
        ------
        Unavailable
            `schema_pending`: it is asked for. `registry_unavailable`: the registry does not answer.
        """
        now = time.monotonic()
        with self._lock:
            if now < self._missing.get((subject, id_), 0.0):
                return
            why = self._why
            is_down = now < self._down_until
        if not is_down:
            self._loop.call_soon_threadsafe(self._begin, subject, id_)
        if why:
            raise Unavailable(
                f"schema {id_} of subject {subject}: {self.url} {why}; known schemas go on", code="registry_unavailable"
            )
        raise Unavailable(f"schema {id_} of subject {subject} is asked for at {self.url}", code="schema_pending")

    async def bring(self, subject: str) -> None:
        """Import the versions of a subject that are not known yet; none if the registry does not have it.

        Raises
        ------
        Unavailable
            `registry_unavailable`.
        """
        try:
            numbers = await self._get(f"/subjects/{quote(subject, safe='')}/versions", list[int]) or []
            for number in sorted(numbers):
                await self._import(subject, number, 0)
        except _Unanswered as error:
            raise Unavailable(
                f"subject {subject}: {self.url} {error}; repeat it later", code="registry_unavailable"
            ) from None

    async def stop(self) -> None:
        """End what is asked."""
        tasks = [*self._tasks.values(), *filter(None, (self._looking,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_forever(self) -> None:
        while True:
            subjects = self._without_ids()
            for subject in subjects:
                await asyncio.sleep(_LOOK_S / len(subjects))
                await self._look(subject)
            if not subjects:
                await asyncio.sleep(_LOOK_S)

    async def _look(self, subject: str) -> None:
        try:
            await self.bring(subject)
        except DeltaMQError as error:
            if self._said.get(subject) != error.detail:
                log.warning("event=schema_not_imported subject=%r detail=%r", subject, error.detail)
            self._said[subject] = error.detail
        else:
            self._said.pop(subject, None)

    def _begin(self, subject: str, id_: int) -> None:
        key = subject, id_
        if key not in self._tasks:
            task = self._tasks[key] = self._loop.create_task(self._fetch(subject, id_))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _fetch(self, subject: str, id_: int) -> None:
        try:
            places = await self._get(f"/schemas/ids/{id_}/versions", list[_Place]) or []
            here = [place.version for place in places if place.subject == subject]
            if here:
                await self._import(subject, max(here), 0)
        except _Unanswered as error:
            self._note_down(str(error))
            return
        except DeltaMQError as error:
            log.warning("event=schema_not_imported subject=%r id=%d detail=%r", subject, id_, error.detail)
            here = []
        with self._lock:
            self._why = ""
            if not here:
                if len(self._missing) >= _MISSING_MAX:
                    self._missing.clear()
                self._missing[subject, id_] = time.monotonic() + _MISSING_S

    def _note_down(self, why: str) -> None:
        if why != self._why:
            log.warning("event=registry_unavailable url=%s detail=%r", self.url, why)
        with self._lock:
            self._why, self._down_until = why, time.monotonic() + _DOWN_S

    async def _import(self, subject: str, number: int, depth: int) -> None:
        """Import a version, and before it what it refers to."""
        entry = self._state().subjects.get(subject, {}).get(number)
        if entry is not None:
            return
        found = await self._get(f"/subjects/{quote(subject, safe='')}/versions/{number}", _Version)
        if found is None or (found.subject, found.version) != (subject, number):
            raise NotFound(f"subject {subject} has no version {number} at {self.url}", code="subject_not_found")
        if depth > SCHEMA_DEPTH_MAX:
            raise NotFound(f"subject {subject} refers to itself at {self.url}", code="invalid_schema")
        for used in found.references:
            await self._import(used.subject, used.version, depth + 1)
        references = tuple(Reference(used.name, used.subject, used.version) for used in found.references)
        await self._follow(
            Version(
                subject=subject,
                version=number,
                id=found.id,
                schema_type=found.schema_type,
                schema=found.schema,
                references=references,
            )
        )

    async def _get(self, path: str, kind: Any) -> Any:
        """Return an answer; None for 404."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await fetched(
                    self.url + path, self._tls, bytes_max=_BYTES_MAX, headers=_HEADERS, auth=self._auth
                )
        except TimeoutError:
            raise _Unanswered(f"does not answer within {_TIMEOUT_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _Unanswered(f"cannot be reached: {type(error).__name__}") from None
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != _OK or len(answer.body) > _BYTES_MAX:
            how = f"status {answer.status}" if answer.status != _OK else f"more than {_BYTES_MAX} bytes"
            raise _Unanswered(f"answers with {how}")
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise _Unanswered("answers with what no registry answers with") from None
