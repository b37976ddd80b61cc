"""Handlers of messages, declared where they are written; `deltamq worker` runs them (SPEC CONS-14).

    @handler(topic="orders", group="billing", concurrency=8, order="key")
    def book(order: Order) -> None: ...                      # the body, decoded from JSON

    @handler(topic=["orders", "refunds"], group="audit")
    async def note(message: PoppedMessage) -> Result: ...    # the message itself; a coroutine

The annotation of the first parameter says what the function takes: the message (without an annotation, too), `bytes`,
`str`, or a type that msgspec or pydantic decodes from JSON. A body that is nothing of the kind is a dead letter with
the reason, and the function is not called. A second parameter gets the message besides.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

import msgspec

from deltamq.mq.client.messages.received import PoppedMessage, ReceivedMessage, Result
from deltamq.mq.client.pop.consumer_life import checked_topics
from deltamq.mq.errors import Refused
from deltamq.mq.limits import REASON_LENGTH_MAX
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.names import check_group

log = logging.getLogger("deltamq.worker")

F = TypeVar("F", bound=Callable[..., object])
#: What a middleware wraps: the rest of them and the handler.
Call: TypeAlias = Callable[[], Coroutine[Any, Any, Result | None]]
#: Awaits what it wraps; it may look at the message before, and at the result or the exception after, and change it.
Middleware: TypeAlias = Callable[[PoppedMessage, Call], Coroutine[Any, Any, Result | None]]
#: Calls a function of the user's with one argument: awaits a coroutine function, and calls another one in a thread.
Caller: TypeAlias = Callable[[Callable[[Any], object], object], Coroutine[Any, Any, object]]

#: Where a function keeps its declarations.
_ATTRIBUTE: Final = "__deltamq_handlers__"
#: Most parameters of a handler: what is decoded, and the message.
_PARAMETERS_MAX: Final = 2


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages are popped for a handler; see `PopConsumer`."""

    concurrency: int = 8
    order: Ordering | None = None
    tags: str = "*"
    filter: str | None = None
    invisible_ms: int | None = None
    renew_for_s: float | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A function that handles a group's messages of some topics."""

    function: Callable[..., Any]
    topics: tuple[str, ...]
    group: str
    options: HandlerOptions
    middleware: tuple[Middleware, ...]
    #: What the function takes, for people, and how that is made of a message.
    takes: str
    decode: Callable[[PoppedMessage], object]
    with_message: bool

    @property
    def name(self) -> str:
        """Module and name of the function."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    async def handle(self, message: PoppedMessage, caller: Caller) -> object:
        """Decode a message and call the function, inside of the middleware; raises what these raise."""

        async def call() -> Any:
            try:
                value = self.decode(message)
            except (msgspec.MsgspecError, ValueError) as error:
                return Result.DEAD(_reason(f"the body is no {self.takes}: {error}"))
            if self.with_message:
                return await caller(partial(self.function, value), message)
            return await caller(self.function, value)

        for outer in reversed(self.middleware):
            call = partial(outer, message, call)
        return await call()


def handler(
    *,
    topic: str | Sequence[str],
    group: str,
    concurrency: int = 8,
    order: Ordering | None = None,
    tags: str = "*",
    filter: str | None = None,
    invisible_ms: int | None = None,
    renew_for_s: float | None = None,
    middleware: Sequence[Middleware] = (),
) -> Callable[[F], F]:
    """Declare that a function handles the messages of one topic or several for a group; the function stays as it is.

    Parameters
    ----------
    concurrency
        Number of messages that are handled at once, in each process.
    order, tags, filter, invisible_ms, renew_for_s
        As those of `PopConsumer`.
    middleware
        Coroutine functions `(message, call)` around the handler, the outermost first: they return what `await call()`
        returns, or another `Result`. What they raise brings the message again, as what the handler raises. There are
        `logged`, `dead_letter_on` and `retry_on`.

    Raises
    ------
    Refused
        A name or an option is not valid, or the function takes more than a value and the message.
    """
    topics, checked = checked_topics(topic), check_group(group)
    if any(not inspect.iscoroutinefunction(each) for each in middleware):
        raise Refused("middleware must be coroutine functions: async def f(message, call)", field="middleware")
    options = HandlerOptions(
        concurrency=concurrency,
        order=order,
        tags=tags,
        filter=filter,
        invisible_ms=invisible_ms,
        renew_for_s=renew_for_s,
    )

    def declare(function: F) -> F:
        takes, decode, with_message = _taken(function)
        declared = Declared(
            function=function,
            topics=topics,
            group=checked,
            options=options,
            middleware=tuple(middleware),
            takes=takes,
            decode=decode,
            with_message=with_message,
        )
        setattr(function, _ATTRIBUTE, (*getattr(function, _ATTRIBUTE, ()), declared))
        return function

    return declare


def handlers_of(module: ModuleType, names: Sequence[str] = ()) -> list[Declared]:
    """Return the handlers that a module declares, or those of its functions `names`; what it imports does not count.

    Raises
    ------
    Refused
        `no_handlers`: there are none, or a name has none; the error says which there are.
    """
    found = {
        name: getattr(value, _ATTRIBUTE)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and hasattr(value, _ATTRIBUTE) and (names or value.__module__ == module.__name__)
    }
    if unknown := [name for name in names if name not in found]:
        raise Refused(
            f"{module.__name__} has no handler {', '.join(unknown)}; it has {', '.join(found) or 'none'}",
            code="no_handlers",
            field="MODULE",
        )
    if not found:
        raise Refused(
            f"{module.__name__} has no handlers: declare functions with @deltamq.handler(topic=..., group=...)",
            code="no_handlers",
            field="MODULE",
        )
    return [declared for name in names or found for declared in found[name]]


# Middleware ---------------------------------------------------------------------------------------------------------


async def logged(message: PoppedMessage, call: Call) -> Result | None:
    """Log a line for each message (`deltamq.worker`, INFO): what became of it and how long that took."""
    began, outcome = time.monotonic(), "raised"
    try:
        result = await call()
        outcome = "ok" if result is None or result == Result.OK else type(result).__name__.lower()
        return result
    finally:
        log.info(
            "event=handled message=%s@%d attempt=%d outcome=%s took_ms=%.1f",
            message.partition,
            message.offset,
            message.delivery_attempt,
            outcome,
            (time.monotonic() - began) * 1000,
        )


def dead_letter_on(*errors: type[Exception]) -> Middleware:
    """Make a dead letter, with the reason, of a message whose handler raises one of these: a repeat is no use."""

    async def outer(message: PoppedMessage, call: Call) -> Result | None:
        try:
            return await call()
        except errors as error:
            return Result.DEAD(_reason(f"{type(error).__name__}: {error}"))

    return outer


def retry_on(*errors: type[Exception], delay_ms: int) -> Middleware:
    """Bring a message again after `delay_ms` if its handler raises one of these; others follow the group's policy."""
    later = Result.RETRY(delay_ms)

    async def outer(message: PoppedMessage, call: Call) -> Result | None:
        try:
            return await call()
        except errors:
            log.warning(
                "event=retried message=%s@%d delay_ms=%d", message.partition, message.offset, delay_ms, exc_info=True
            )
            return later

    return outer


# What a function takes ----------------------------------------------------------------------------------------------


def _reason(text: str) -> str:
    """Return an error as a reason, which is one line of printable characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return shown[:REASON_LENGTH_MAX]


def _taken(function: Callable[..., object]) -> tuple[str, Callable[[PoppedMessage], object], bool]:
    """Return what a function takes: its name, how it is made of a message, and whether the message comes as well."""
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not parameters or len(needed) > _PARAMETERS_MAX:
        raise Refused(
            f"{function.__qualname__} takes {len(needed)} values: a handler takes the body, decoded, and the message",
            field="handler",
        )
    kind = get_type_hints(function).get(parameters[0].name, PoppedMessage)
    name = getattr(kind, "__name__", None) or str(kind)
    return name, _decoder(kind), len(parameters) == _PARAMETERS_MAX


def _decoder(kind: Any) -> Callable[[PoppedMessage], object]:
    if kind is Any or kind is object or (isinstance(kind, type) and issubclass(kind, ReceivedMessage)):
        return lambda message: message
    if kind is bytes:
        return lambda message: message.body
    if kind is str:
        return lambda message: message.body.decode()
    if hasattr(kind, "model_validate_json"):  # pydantic's, which need not be installed
        return lambda message: kind.model_validate_json(message.body)
    decoder = msgspec.json.Decoder(kind)
    return lambda message: decoder.decode(message.body)
