"""The roles of one life: begun until it works, void when they go, passed on when all is stored (SPEC META-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from deltamq.api.host.roles import Hooks, Roles
from deltamq.mq.errors import Unavailable


class Heard:
    """Hooks that note what they are called with; each may be told to fail."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.failures: dict[str, int] = {}
        self.hooks = Hooks(
            gained=[self._gained], drained=[self._drained], lost=[lambda role: self.said.append(f"-{role}")]
        )

    def _may_fail(self, what: str) -> None:
        if self.failures.get(what, 0):
            self.failures[what] -= 1
            raise Unavailable(what)

    async def _gained(self, role: str, epoch: int) -> None:
        self._may_fail(role)
        self.said.append(f"+{role}{epoch}")

    async def _drained(self, role: str) -> None:
        self._may_fail(f"={role}")
        self.said.append(f"={role}")


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def _play(work: Callable[[Roles, Heard], Awaitable[None]]) -> Heard:
    async def play() -> Heard:
        heard = Heard()
        roles = Roles(heard.hooks)
        await roles.all_served()
        await work(roles, heard)
        await roles.end(is_over=True)
        assert not roles.served and not roles.ours
        return heard

    return asyncio.run(play())


def test_meta_01_what_keeps_one_role_does_not_keep_the_others() -> None:
    async def work(roles: Roles, heard: Heard) -> None:
        heard.failures["b"] = 2
        roles.follow({"a": 1, "b": 2}, before=("b",))
        assert not roles.serves("a"), "it is begun first"
        await _until(lambda: roles.served == {"a": 1, "b": 2})
        assert roles.fresh == {"a"}, "nobody can wake up who had it before"

    assert sorted(_play(work).said[-2:]) == ["-a", "-b"]


def test_meta_01_a_role_that_went_while_it_was_begun_is_not_served() -> None:
    async def work(roles: Roles, heard: Heard) -> None:
        roles.follow({"a": 1}, before=())
        roles.follow({}, before=("a",))
        await _until(lambda: heard.said.count("-a") == 2)
        assert not roles.served, "what was begun is void, too"

    assert _play(work).said == ["-a", "+a1", "-a"]


def test_meta_01_a_role_taken_anew_is_begun_anew() -> None:
    async def work(roles: Roles, heard: Heard) -> None:
        roles.follow({"a": 1}, before=())
        await _until(lambda: roles.served == {"a": 1})
        roles.follow({"a": 3}, before=("a",))
        assert not roles.serves("a")
        await _until(lambda: roles.served == {"a": 3})

    assert _play(work).said == ["+a1", "-a", "+a3", "-a"]


def test_meta_01_a_broker_is_passed_on_when_all_is_stored() -> None:
    async def work(roles: Roles, heard: Heard) -> None:
        async def give(role: str) -> None:
            assert not roles.served
            heard.said.append(f">{role}")
            roles.follow({}, before=("a",))

        roles.follow({"a": 1}, before=())
        await _until(lambda: roles.serves("a"))
        roles.pass_on("a", give)
        roles.pass_on("a", give)
        await _until(lambda: not roles.serves("a"))
        assert roles.served == {"a": 1}, "what is under way ends first"
        await _until(lambda: not roles.ours)

    assert _play(work).said == ["+a1", "=a", ">a", "-a"]


def test_meta_01_a_broker_that_cannot_be_stored_stays() -> None:
    async def work(roles: Roles, heard: Heard) -> None:
        async def give(role: str) -> None:
            raise AssertionError("it was not stored")

        roles.follow({"a": 1}, before=())
        await _until(lambda: roles.serves("a"))
        heard.failures["=a"] = 1
        roles.pass_on("a", give)
        await _until(lambda: not roles.serves("a"))
        await _until(lambda: roles.serves("a"))

    assert _play(work).said == ["+a1", "-a"]
