"""The groups during the run: their progress is shown, their end awaited, and their accounts compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from deltamq.jobs.flights.agreement import GroupLine, compare_groups
from deltamq.jobs.flights.crew import Crew
from deltamq.jobs.flights.group_account import GroupAccount, GroupsLeft, expected_account
from deltamq.jobs.flights.groups import FlightGroup, left_of, served_group
from deltamq.jobs.flights.reading import Ask
from deltamq.jobs.flights.replay import Ledger
from deltamq.mq.client.admin.admin import Admin

#: Seconds to wait after the last event. On an idle machine a few are enough; on a busy one, Spark takes minutes.
LIMIT_S: Final = 600.0
LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """The groups of this run.

    Parameters
    ----------
    ask
        Asks the Spark reader.
    say
        Prints a line.
    """

    admin: Admin
    topic: str
    groups: Sequence[FlightGroup]
    crew: Crew
    ask: Callable[[Ask], str]
    say: Callable[[str], None]

    def progress(self) -> str:
        """Look after the workers, and return the progress of the groups, as reported by the service."""
        self.crew.look()
        return self._by_service()[0]

    def await_done(self) -> None:
        """Wait until no group has messages left, by the service and by the tables, or until the time limit."""
        deadline = time.monotonic() + LIMIT_S
        shown = ""
        while True:
            self.crew.look()
            text, left = self._by_service()
            if left == 0:
                tables = self._by_tables()
                if tables.nothing:
                    return
                text = f"by the state tables, {_tables_text(tables)}"
            if text != shown:
                self.say(f"groups    {text}")
                shown = text
            if time.monotonic() > deadline:
                self.say(f"groups    given up after {LIMIT_S:.0f} s: {text}")
                return
            time.sleep(LOOK_EVERY_S)

    def compare(self, ledger: Ledger, handled: Sequence[GroupAccount]) -> tuple[GroupLine, ...]:
        """Collect each side's account of the groups and compare them; `handled` is the workers' side."""
        expected = [
            expected_account(group.name, ledger, fails=group.fails, held=self.crew.held.get(number, {}))
            for number, group in enumerate(self.groups)
        ]
        served = [served_group(self.admin, group.name, self.topic) for group in self.groups]
        read = msgspec.json.decode(self.ask(self._question("groups")), type=list[GroupAccount])
        return compare_groups(expected, handled, served, read)

    def _by_service(self) -> tuple[str, int | None]:
        """The messages that are left, as text, and as a number (None: a group has not begun)."""
        words, total = [], 0
        for group in self.groups:
            left = left_of(self.admin.get_group(group.name), self.topic)
            if left is None:
                return "not begun", None
            dead = self.admin.dead_letters(group.name, limit=1).total if group.fails else 0
            words.append(f"{group.name} {left:,} left" + (f", {dead:,} dead letters" if dead else ""))
            total += left
        return "; ".join(words), total

    def _by_tables(self) -> GroupsLeft:
        return msgspec.json.decode(self.ask(self._question("left")), type=GroupsLeft)

    def _question(self, what: Literal["left", "groups"]) -> Ask:
        return Ask(what=what, topic=self.topic, groups=[group.name for group in self.groups])


def _tables_text(tables: GroupsLeft) -> str:
    words = [f"{group} {'not begun' if left is None else f'{left:,} left'}" for group, left in tables.left.items()]
    return "; ".join(words) + (", not all merged yet" if tables.moving else "")
