"""The members of one group of Kafka's consumers, by its classic protocol: a pure state machine, with time passed in.

    EMPTY --first join--> JOINING --all have joined, or time is up--> SYNCING --the leader's plan--> STABLE
      ^                     ^ |                                          |                            |
      '-- no member left ---|-'            a join, a leave, a member that is not heard of ------------'

The members plan among themselves: one of them, the leader, gets what all have said and assigns the partitions. A
generation is one such plan; a member that acts by an older one is refused. Nothing of this is stored: if the process
dies, members are unknown to the next one and join again.

A member with an instance id is static (KIP-345): when it comes back, it takes over its old membership with a new member
id, and the others go on by their plan. The old member id is fenced. A member without an instance id may have to join
with an id that it was given before (KIP-394), so that a lost answer leaves no member behind.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from deltamq.mq.errors import Conflict, Refused

#: How long the first member waits for others that start with it.
INITIAL_DELAY_MS: Final = 500
MEMBERS_MAX: Final = 1_000
#: The bounds of a session, as in Kafka's brokers; the settings may say another minimum.
SESSION_MS_MIN: Final = 6_000
SESSION_MS_MAX: Final = 1_800_000
#: Most time that members have to join again, whatever they say: Kafka takes any, and some clients say 24 days.
REBALANCE_MS_MAX: Final = 1_800_000


class MemberError(Conflict):
    """The member is not in the group, or not in this phase of it; it must join again."""


class Phase(enum.Enum):
    """What a group does, in Kafka's words."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"


class Joining(NamedTuple):
    """What a member says when it joins: `protocols` are ways to plan, the best first, each with its data."""

    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_ms: int
    rebalance_ms: int
    instance_id: str | None = None
    #: Whether it understands, as a leader that comes back, that there is nothing to plan (KIP-814).
    may_skip: bool = False


class Member(msgspec.Struct):
    """One member; `joins` and `syncs` say that it waits for an answer."""

    id: str
    said: Joining
    heard_ms: int
    assignment: bytes = b""
    joins: bool = False
    syncs: bool = False
    #: The leader that its answer names, if it has come back as the leader: it must not plan, as the others do not join.
    named_leader: str = ""
    #: Whether its answer says that it leads and has nothing to plan.
    skips: bool = False

    @property
    def is_answered_later(self) -> bool:
        """Whether it waits for an answer; until then, its heartbeats wait behind that call, on the same connection."""
        return self.joins or self.syncs

    def data_of(self, protocol: str) -> bytes:
        return dict(self.said.protocols).get(protocol, b"")


class Joined(NamedTuple):
    """The answer to a join; only the leader gets `members`: id, instance and data of each.

    With `skips`, the leader has nothing to plan: the others go on by the present plan.
    """

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member: str
    members: tuple[tuple[str, str | None, bytes], ...]
    skips: bool


class Synced(NamedTuple):
    """The answer to a sync: what the member has."""

    protocol_type: str
    protocol: str
    assignment: bytes


class ClassicGroup:
    """One group. Calls that wait are answered later: `take_joined` and `take_synced` say whose answers are there."""

    def __init__(self, session_ms_min: int = SESSION_MS_MIN) -> None:
        """`session_ms_min` is the shortest session that a member may have."""
        self._session_ms_min = session_ms_min
        self.phase = Phase.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        #: When the phase JOINING ends, even if not all have joined; whether it lasts until then even if all have.
        self._deadline_ms = 0
        self._waits_for_more = False
        self._joined: list[str] = []
        self._synced: list[str] = []
        #: Ids that were given to members that have not joined with them yet, and until when they may.
        self._given: dict[str, int] = {}
        #: Member ids of static members that have come back as others, the oldest first.
        self._fenced: dict[str, None] = {}

    # What members ask.

    def join(self, now_ms: int, member: str, new_id: str, said: Joining, *, needs_id: bool = False) -> str:
        """Let a member join, a new one as `new_id`; return its id. The answer is in `take_joined` when it is decided.

        Raises
        ------
        MemberError
            `unknown_member`; `fenced_instance`: another member has this instance id; `inconsistent_protocol`: the
            others plan in other ways. `member_id_required`: with `needs_id`, a new member must join as `new_id`.
        Refused
            `invalid_session_timeout`, or `group_full`.
        """
        said = said._replace(rebalance_ms=min(said.rebalance_ms, REBALANCE_MS_MAX))
        holder = self.admit(now_ms, member, new_id, said, needs_id=needs_id)
        if not member and holder is not None:
            return self._come_back(now_ms, self.members[holder], new_id, said)
        entry = self.members.get(member)
        if entry is None:
            self._given.pop(member, None)
            entry = self.members[member or new_id] = Member(member or new_id, said, now_ms)
        elif entry.said.protocols == said.protocols and self._is_repeat(entry):
            entry.heard_ms = now_ms
            self._joined.append(entry.id)
            return entry.id
        entry.said, entry.heard_ms, entry.joins = said, now_ms, True
        self.protocol_type = said.protocol_type
        self._begin(now_ms)
        self.tick(now_ms)
        return entry.id

    def admit(self, now_ms: int, member: str, new_id: str, said: Joining, *, needs_id: bool = False) -> str | None:
        """Return if a member may join; the group keeps only the id that it gives to a new member.

        Returns the member that has the instance id. Raises what `join` does.
        """
        holder = None if said.instance_id is None else self.id_of_instance(said.instance_id)
        if member and said.instance_id is not None:
            self._check_instance(member, said.instance_id)
        self._check_joining(member or holder or "", said)
        if not member and needs_id and said.instance_id is None:
            self._given[new_id] = now_ms + said.session_ms
            raise MemberError(f"join as member {new_id}", code="member_id_required")
        return holder

    def _check_joining(self, member: str, said: Joining) -> None:
        if not self._session_ms_min <= said.session_ms <= SESSION_MS_MAX:
            bounds = f"from {self._session_ms_min} to {SESSION_MS_MAX} ms"
            detail = f"session timeout must be {bounds} (service.kafka_session_min_ms), not {said.session_ms}"
            raise Refused(detail, code="invalid_session_timeout")
        if member and member not in self.members and member not in self._given:
            raise MemberError(f"member {member} is not in the group", code="unknown_member")
        if not member and len(self.members) + len(self._given) >= MEMBERS_MAX:
            raise Refused(f"the group has {MEMBERS_MAX} members", code="group_full")
        others = [other for other in self.members.values() if other.id != member]
        common = self._common([other.said.protocols for other in others] + [said.protocols])
        is_other = said.protocol_type != self.protocol_type if others else not said.protocol_type
        if not said.protocols or not common or is_other:
            raise MemberError("the group's members plan in other ways", code="inconsistent_protocol")

    def _come_back(self, now_ms: int, former: Member, new_id: str, said: Joining) -> str:
        """Let a static member take over its old membership; if its protocols are the same, the others need not join."""
        goes_on = self.phase is Phase.STABLE and former.said.protocols == said.protocols
        returned = Member(new_id, said, now_ms, former.assignment)
        self.members = {
            entry.id: entry for entry in (returned if entry is former else entry for entry in self.members.values())
        }
        self._fenced[former.id] = None
        if len(self._fenced) > MEMBERS_MAX:
            del self._fenced[next(iter(self._fenced))]
        self._joined += [former.id] * former.joins
        self._synced += [former.id] * former.syncs
        if self.leader == former.id:
            self.leader = new_id
            returned.skips = said.may_skip
            returned.named_leader = "" if said.may_skip else former.id
        if goes_on:
            self._joined.append(new_id)
            return new_id
        returned.joins = True
        self.protocol_type = said.protocol_type
        self._begin(now_ms)
        self.tick(now_ms)
        return new_id

    def _check_instance(self, member: str, instance_id: str | None) -> None:
        """Raise `MemberError` if another member has the instance id (`fenced_instance`), or none has."""
        if instance_id is None:
            return
        holder = self.id_of_instance(instance_id)
        if holder is None:
            raise MemberError(f"no member of the group is instance {instance_id}", code="unknown_member")
        if holder != member:
            raise _fenced(member)

    def _is_repeat(self, member: Member) -> bool:
        """Whether a repeated join changes nothing; the leader's asks for a new plan."""
        return self.phase is Phase.SYNCING or (self.phase is Phase.STABLE and member.id != self.leader)

    def sync(
        self,
        now_ms: int,
        member: str,
        generation: int,
        plan: Mapping[str, bytes],
        instance: str | None = None,
        *,
        by: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Let a member ask for its part, the leader with the plan; the answer is in `take_synced`.

        `by` are the type and the name of its protocol; None for what it does not say.

        Raises
        ------
        MemberError
            `unknown_member`, `fenced_instance`, `illegal_generation`, `rebalance_in_progress`;
            `inconsistent_protocol`: it plans in another way than the group.
        """
        self._check_instance(member, instance)
        entry = self._member(member, generation)
        if any(said not in (None, own) for said, own in zip(by, (self.protocol_type, self.protocol), strict=True)):
            raise MemberError("the group plans in another way", code="inconsistent_protocol")
        entry.heard_ms = now_ms
        if self.phase is Phase.JOINING:
            raise _rebalancing()
        if self.phase is Phase.STABLE:
            self._synced.append(member)
            return
        assert self.phase is Phase.SYNCING, "a group with members joins, syncs, or is stable"
        entry.syncs = True
        if member == self.leader:
            for assignee in self.members.values():
                assignee.assignment = plan.get(assignee.id, b"")
            self.phase = Phase.STABLE
            self._tell_synced(now_ms)

    def heartbeat(self, now_ms: int, member: str, generation: int, instance: str | None = None) -> None:
        """Note that a member lives; raises what `sync` does."""
        self._check_instance(member, instance)
        self._member(member, generation).heard_ms = now_ms
        if self.phase is Phase.JOINING:
            raise _rebalancing()

    def leave(self, now_ms: int, member: str, instance: str | None = None) -> None:
        """Remove a member; raise `MemberError` (`unknown_member`, `fenced_instance`).

        An administrator names a static member only by its instance.
        """
        if instance is not None and not member:
            member = self.id_of_instance(instance) or ""
        self._check_instance(member, instance)
        if self._given.pop(member, None) is not None:
            return
        if member not in self.members:
            raise MemberError(f"member {member} is not in the group", code="unknown_member")
        self._removed(member)
        self._changed(now_ms)

    def id_of_instance(self, instance_id: str) -> str | None:
        """Return the id of the member with an instance id."""
        return next((entry.id for entry in self.members.values() if entry.said.instance_id == instance_id), None)

    def check_commit(self, now_ms: int, member: str, generation: int, instance: str | None = None) -> None:
        """Return if a commit counts: a member's, or any client's (no member, generation -1) while there are no members.

        Raises
        ------
        MemberError
            As for `sync`; a commit while the others join is taken.
        """
        if not member and generation < 0:
            if self.members:
                raise MemberError("only members commit while the group has any", code="unknown_member")
            return
        self._check_instance(member, instance)
        self._member(member, generation).heard_ms = now_ms
        if self.phase is Phase.SYNCING:
            raise _rebalancing()

    def _member(self, member: str, generation: int) -> Member:
        entry = self.members.get(member)
        if entry is None and member in self._fenced:
            raise _fenced(member)
        if entry is None:
            raise MemberError(f"member {member} is not in the group", code="unknown_member")
        if generation != self.generation:
            detail = f"generation {generation} is over, {self.generation} has begun"
            raise MemberError(detail, code="illegal_generation")
        return entry

    # Time.

    def tick(self, now_ms: int) -> None:
        """Do what is due: remove silent members, and complete a join whose time is over."""
        silent = [
            entry.id
            for entry in self.members.values()
            if not entry.is_answered_later and now_ms - entry.heard_ms > entry.said.session_ms
        ]
        for member in silent:
            self._removed(member)
        if silent:
            self._changed(now_ms)
        self._given = {member: until_ms for member, until_ms in self._given.items() if now_ms <= until_ms}
        if self.phase is not Phase.JOINING:
            return
        all_here = all(entry.joins for entry in self.members.values())
        if now_ms >= self._deadline_ms or (all_here and not self._waits_for_more):
            self._complete(now_ms)

    def next_ms(self) -> int | None:
        """Return when `tick` has something to do next; None for never."""
        due = [
            entry.heard_ms + entry.said.session_ms + 1 for entry in self.members.values() if not entry.is_answered_later
        ]
        due += [until_ms + 1 for until_ms in self._given.values()]
        if self.phase is Phase.JOINING:
            due.append(self._deadline_ms)
        return min(due, default=None)

    # Answers.

    def take_joined(self) -> list[str]:
        """Return the members whose joins are decided since the last call."""
        taken, self._joined = self._joined, []
        return taken

    def take_synced(self) -> list[str]:
        """Return the members whose syncs are decided since the last call."""
        taken, self._synced = self._synced, []
        return taken

    def joined(self, member: str) -> Joined:
        """Return the answer to a member's join; raise `MemberError` if it is not a member any more."""
        entry = self._member(member, self.generation)
        leader = entry.named_leader or self.leader
        listed: Sequence[Member] = list(self.members.values()) if member == leader else []
        members = tuple((peer.id, peer.said.instance_id, peer.data_of(self.protocol)) for peer in listed)
        return Joined(self.generation, self.protocol_type, self.protocol, leader, member, members, entry.skips)

    def synced(self, member: str) -> Synced:
        """Return the answer to a member's sync; raise `MemberError` if there is a new generation to join."""
        entry = self._member(member, self.generation)
        if self.phase is not Phase.STABLE:
            raise _rebalancing()
        return Synced(self.protocol_type, self.protocol, entry.assignment)

    # Changes.

    def _begin(self, now_ms: int) -> None:
        """Ask all members to join again."""
        if self.phase is Phase.JOINING:
            return
        self._waits_for_more = self.phase is Phase.EMPTY
        self.phase = Phase.JOINING
        wait_ms = max(entry.said.rebalance_ms for entry in self.members.values())
        self._deadline_ms = now_ms + (min(INITIAL_DELAY_MS, wait_ms) if self._waits_for_more else wait_ms)
        self._tell_synced(now_ms)

    def _changed(self, now_ms: int) -> None:
        """Plan again without a member that is gone."""
        if self.members:
            self._begin(now_ms)
            self.tick(now_ms)
        elif self.phase is not Phase.EMPTY:
            self._end()

    def _complete(self, now_ms: int) -> None:
        assert self.phase is Phase.JOINING, "only a group that joins is complete"
        for absent in [entry.id for entry in self.members.values() if not entry.joins]:
            self._removed(absent)
        if not self.members:
            self._end()
            return
        self.generation += 1
        self.phase = Phase.SYNCING
        self.protocol = self._chosen()
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        for member in self.members.values():
            member.joins, member.heard_ms, member.assignment = False, now_ms, b""
            member.named_leader, member.skips = "", False
            self._joined.append(member.id)

    def _end(self) -> None:
        self.generation += 1
        self.phase = Phase.EMPTY
        self.protocol = self.leader = ""

    def _removed(self, member: str) -> None:
        entry = self.members.pop(member)
        if entry.joins:
            self._joined.append(member)
        if entry.syncs:
            self._synced.append(member)

    def _tell_synced(self, now_ms: int) -> None:
        for entry in self.members.values():
            if entry.syncs:
                entry.syncs, entry.heard_ms = False, now_ms
                self._synced.append(entry.id)

    def _common(self, said: Sequence[Sequence[tuple[str, bytes]]]) -> set[str]:
        return set.intersection(*({name for name, _ in protocols} for protocols in said))

    def _chosen(self) -> str:
        said = [entry.said.protocols for entry in self.members.values()]
        common = self._common(said)
        votes = Counter(next(name for name, _ in protocols if name in common) for protocols in said)
        return votes.most_common(1)[0][0]


def _fenced(member: str) -> MemberError:
    return MemberError(f"member {member} was replaced by another with its instance id", code="fenced_instance")


def _rebalancing() -> MemberError:
    return MemberError("members join again", code="rebalance_in_progress")
