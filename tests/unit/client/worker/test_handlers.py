"""Handlers that modules declare: what they take, what wraps them, and what is refused (SPEC CONS-14)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from deltamq.mq.client.messages.received import Dead, PoppedMessage, ReceivedMessage, Result
from deltamq.mq.client.shells.loop import LoopShell
from deltamq.mq.client.worker import handlers
from deltamq.mq.client.worker.handlers import Call, Declared, dead_letter_on, handler, handlers_of, logged, retry_on
from deltamq.mq.errors import DeltaMQError, Refused
from deltamq.mq.limits import REASON_LENGTH_MAX

MESSAGE = PoppedMessage(partition="orders@a", offset=3, body=b'{"id": 7, "amount": 1.5}', topic="orders")


@dataclass
class Plain:
    id: int
    amount: float


class Struct(msgspec.Struct):
    id: int
    amount: float


class Dict(TypedDict):
    id: int
    amount: float


class Model(pydantic.BaseModel):
    id: int
    amount: float


def declared(function: Callable[..., object], **options: Any) -> Declared:
    """Return the only declaration of a function."""
    module = ModuleType("app")
    function.__module__ = "app"
    vars(module)[function.__name__] = handler(topic="orders", group="billing", **options)(function)
    (found,) = handlers_of(module)
    return found


def handled(found: Declared, message: PoppedMessage = MESSAGE) -> Result | None:
    result = asyncio.run(found.handle(message, LoopShell("test").call))
    assert result is None or isinstance(result, Result)
    return result


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Plain, Plain(7, 1.5)),
        (Struct, Struct(7, 1.5)),
        (Dict, {"id": 7, "amount": 1.5}),
        (Model, Model(id=7, amount=1.5)),
        (dict[str, float], {"id": 7.0, "amount": 1.5}),
        (bytes, MESSAGE.body),
        (str, MESSAGE.text),
        (PoppedMessage, MESSAGE),
        (ReceivedMessage, MESSAGE),
        (None, MESSAGE),
    ],
)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_cons_14_the_annotation_says_what_a_handler_takes(kind: Any, value: object, is_coroutine: bool) -> None:
    taken: list[object] = []

    def plain(first: Any, message: PoppedMessage) -> Result:
        taken.extend((first, message))
        return Result.OK

    async def coroutine(first: Any, message: PoppedMessage) -> Result:
        await asyncio.sleep(0)
        return plain(first, message)

    function: Callable[..., object] = coroutine if is_coroutine else plain
    if kind is None:
        del function.__annotations__["first"]
    else:
        function.__annotations__["first"] = kind
    assert handled(declared(function)) == Result.OK
    assert taken == [value, MESSAGE]


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (Plain, b'{"id": "x", "amount": 1}', "Expected `int`, got `str` - at `$.id`"),
        (Struct, b"\xff", "the body is no Struct"),
        (Model, b'{"id": 1}', "Field required"),
        (str, b"\xff\xfe", "the body is no str"),
        (Struct, b"not json " * 1_000, "JSON is malformed"),
    ],
)
def test_cons_14_what_does_not_decode_is_a_dead_letter_with_the_reason(kind: Any, body: bytes, why: str) -> None:
    def book(order: Any) -> None:
        raise AssertionError("it is not called")

    book.__annotations__["order"] = kind
    result = handled(declared(book), msgspec.structs.replace(MESSAGE, body=body))
    assert isinstance(result, Dead) and why in result.reason and len(result.reason) <= REASON_LENGTH_MAX


def test_cons_14_middleware_is_around_the_handler_and_may_change_the_result() -> None:
    seen: list[str] = []

    async def outer(message: PoppedMessage, call: Call) -> Result | None:
        seen.append("outer")
        try:
            return await call()
        except KeyError as error:
            return Result.DEAD(f"no {error}")

    async def inner(message: PoppedMessage, call: Call) -> Result | None:
        seen.append(f"inner {message.offset}")
        return await call()

    def book(message: PoppedMessage) -> None:
        seen.append("book")
        raise KeyError("account")

    assert handled(declared(book, middleware=(outer, inner))) == Result.DEAD("no 'account'")
    assert seen == ["outer", "inner 3", "book"]


@pytest.mark.parametrize(
    ("raised", "result", "outcome"),
    [
        (None, None, "ok"),
        (ValueError("no\namount"), Result.DEAD("ValueError: no amount"), "dead"),
        (TimeoutError("the bank"), Result.RETRY(60_000), "retry"),
        (OSError("disk"), OSError, "raised"),
    ],
)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_cons_14_errors_become_dead_letters_or_retries_and_each_message_is_logged(
    raised: Exception | None,
    result: Result | type[OSError] | None,
    outcome: str,
    is_coroutine: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def book(message: PoppedMessage) -> None:
        if raised is not None:
            raise raised

    async def later(message: PoppedMessage) -> None:
        book(message)

    found = declared(
        later if is_coroutine else book,
        middleware=(logged, dead_letter_on(KeyError, ValueError), retry_on(TimeoutError, delay_ms=60_000)),
    )
    with caplog.at_level("INFO", "deltamq.worker"):
        if result is OSError:
            with pytest.raises(OSError, match="disk"):
                handled(found)
        else:
            assert handled(found) == result
    assert f"event=handled message=orders@a@3 attempt=1 outcome={outcome} took_ms=" in caplog.text
    assert ("event=retried" in caplog.text and "the bank" in caplog.text) is (outcome == "retry")


def test_cons_14_middleware_sees_what_does_not_decode(caplog: pytest.LogCaptureFixture) -> None:
    def book(order: Plain) -> None:
        raise AssertionError("it is not called")

    with caplog.at_level("INFO", "deltamq.worker"):
        assert isinstance(
            handled(declared(book, middleware=(logged,)), msgspec.structs.replace(MESSAGE, body=b"{")), Dead
        )
    assert "outcome=dead" in caplog.text


def test_a_function_may_handle_several_groups_and_is_called_as_before() -> None:
    @handler(topic="orders", group="billing", concurrency=2, order="key")
    @handler(topic=["orders", "refunds"], group="audit")
    def note(text: str) -> str:
        return text.upper()

    assert note("x") == "X"
    module = ModuleType(note.__module__)
    vars(module)["note"] = note
    first, second = handlers_of(module, ["note"])
    assert (first.group, first.topics, second.group) == ("audit", ("orders", "refunds"), "billing")
    assert (second.options.concurrency, second.options.order, second.takes) == (2, "key", "str")


def test_what_a_module_imports_is_not_its_own_unless_it_is_named() -> None:
    @handler(topic="orders", group="billing")
    def book(body: bytes) -> None: ...

    module = ModuleType("other")
    vars(module)["book"] = book
    with pytest.raises(Refused, match=r"other has no handlers: declare functions with @deltamq\.handler") as caught:
        handlers_of(module)
    assert caught.value.code == "no_handlers"
    with pytest.raises(Refused, match="other has no handler note; it has book"):
        handlers_of(module, ["note"])
    assert [each.group for each in handlers_of(module, ["book"])] == ["billing"]


def none_() -> None: ...
def three(a: object, b: object, c: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "field"),
    [
        (none_, {"topic": "orders", "group": "g"}, "handler"),
        (three, {"topic": "orders", "group": "g"}, "handler"),
        (three, {"topic": [], "group": "g"}, "topics"),
        (three, {"topic": "or ders", "group": "g"}, "topic"),
        (three, {"topic": "orders", "group": ""}, "group"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_where_it_is_declared(
    function: Callable[..., object], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(DeltaMQError) as caught:
        handler(**options)(function)
    assert caught.value.field == field


README = Path(handlers.__file__).with_name("README.md").read_text(encoding="utf-8")
EXAMPLES = [
    code for code in re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S) if "from deltamq import" in code
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_for_who_comes_from_elsewhere_declare_a_handler(code: str) -> None:
    module = ModuleType("app")
    exec(compile(code, "README.md", "exec", dont_inherit=True), vars(module))
    (found,) = handlers_of(module)
    assert (found.topics, found.group) == (("orders",), "billing")
    result = handled(found, msgspec.structs.replace(MESSAGE, body=b'{"id": 17, "amount": 12}'))
    assert result is None and len(EXAMPLES) == 3


def test_cons_14_middleware_is_a_coroutine_function() -> None:
    with pytest.raises(Refused, match="async def"):
        handler(topic="orders", group="billing", middleware=[lambda message, call: None])  # type: ignore[list-item,return-value]
