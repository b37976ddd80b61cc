"""Whether the caller may do what a call of Kafka's clients needs (SPEC KAFKA-11); `messages/apis.py` says what that is.

A call that names several topics is checked for each of them, and refused topic by topic. Lists show what the caller may
describe. What administrators do is recorded as by REST's calls (SPEC SEC-40).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

from deltamq.api.audit.acts import Asking
from deltamq.api.audit.audit import Audit
from deltamq.api.auth.caller import EVERYBODY, Caller
from deltamq.api.auth.calls import named_by, needs_of
from deltamq.api.auth.forwarded import caller_header
from deltamq.api.host.peers import Call
from deltamq.api.kafka.messages.apis import APIS
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.wire.answer import Header
from deltamq.api.wire.steps import CallTrace
from deltamq.mq.audit import ANONYMOUS
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.principals import CLUSTER, Resource, Verb
from deltamq.mq.errors import Forbidden

_NEEDS: Final = {api.request: needs_of(api.needs) for api in APIS.values()}

#: What the offsets that all groups have committed show.
_EVERYTHING: Final[Sequence[tuple[Resource, Verb]]] = (("topic", "describe"), ("group", "describe"))
#: No topic or group is called so: rules about all names cover it, and no others do.
_ANY_NAME: Final = "*"


class Asker:
    """The sender of a request, and what it was allowed so far: if that is revoked while the request waits, it ends."""

    __slots__ = ("_allowed", "_on_refused", "address", "call", "caller", "headers", "trace")

    def __init__(self, caller: Caller, credential: Credential | None = None) -> None:
        self.caller = caller
        #: The headers of requests that this process sends to others for the caller.
        self.headers: Sequence[Header] = () if credential is None else [caller_header(credential)]
        self._allowed: set[tuple[Resource, str, Verb]] = set()
        #: The call's name and where it comes from, for the audit.
        self.call = self.address = ""
        self._on_refused: Callable[[Forbidden, str], None] | None = None
        #: What traces the call; None if the service traces nothing.
        self.trace: CallTrace | None = None

    def set_call(self, call: str, address: str, on_refused: Callable[[Forbidden, str], None] | None) -> None:
        """Set the call's name and the client's address; `on_refused` gets each refusal, and the call's name."""
        self.call, self.address, self._on_refused = call, address, on_refused

    def _refused(self, error: Forbidden) -> Forbidden:
        if self._on_refused is not None:
            self._on_refused(error, self.call)
        return error

    @property
    def is_anybody(self) -> bool:
        """Whether the service has no authentication."""
        return self.caller is EVERYBODY

    def check(self, call: type[Message], *, topic: str | None = None, group: str | None = None) -> None:
        """Return if the caller may do this to the topic, to the group, and to the cluster if the call is about that.

        A call that needs nothing is allowed to a caller with any grant.

        Raises
        ------
        Forbidden
            The caller may not.
        """
        if self.is_anybody:
            return
        needs = _NEEDS[call].needs
        if not needs and not self.caller.has_grants:
            raise self._refused(Forbidden(f"principal {self.caller.name} has no access to anything", field="cluster"))
        names = {"topic": topic, "group": group, "cluster": CLUSTER}
        for resource, verbs in needs:
            name = names[resource]
            if name is not None:
                self.require(resource, name, verbs[0])

    def require(self, resource: Resource, name: str, verb: Verb) -> None:
        """Return if the caller may do this, else raise `Forbidden`."""
        if self.is_anybody:
            return
        name = named_by(resource, name)
        try:
            self.caller.require(resource, name, verb)
        except Forbidden as error:
            raise self._refused(error) from None
        self._allowed.add((resource, name, verb))

    @property
    def to_others(self) -> Call:
        """The call by which other processes are told, for the caller, of a change."""
        return Call.on_behalf("POST", "/v1", self.headers)

    @property
    def sees_all(self) -> bool:
        """Whether the caller may describe every topic and every group."""
        return all(self.caller.filter(*grant) is None for grant in _EVERYTHING)

    def require_all(self) -> None:
        """Return if the caller `sees_all`, else raise `Forbidden`, about a topic."""
        if self.is_anybody:
            return
        if not self.sees_all:
            detail = f"principal {self.caller.name} may not describe all topics and groups"
            raise self._refused(Forbidden(detail, field="topic"))
        self._allowed.update((resource, _ANY_NAME, verb) for resource, verb in _EVERYTHING)

    def shown(self, resource: Resource) -> Callable[[str], bool]:
        """Return a function that says of a topic's or group's name whether the caller sees it in lists."""
        may = self.caller.filter(resource, "describe")
        return (lambda _: True) if may is None else (lambda name: may(named_by(resource, name)))

    def is_allowed_still(self) -> bool:
        """Whether all that was allowed is allowed by the newest rules."""
        return all(self.caller.allows(*grant) for grant in self._allowed)


#: Kafka's numbers of the operations that each verb allows.
_OPERATIONS: Final[Mapping[Resource, Mapping[Verb, Sequence[int]]]] = {
    "topic": {
        "subscribe": (3,),
        "publish": (4,),
        "create": (5,),
        "delete": (6,),
        "alter": (7, 11),  # 11 is for settings
        "describe": (8, 10),
    },
    "group": {"subscribe": (3,), "delete": (6,), "describe": (8,)},
    "cluster": {"admin": (5, 7, 8, 10, 11, 12)},
}


def operations(asker: Asker, resource: Resource, name: str) -> int:
    """Return a bit for each operation that the caller may do to a topic, a group or the cluster (`CLUSTER`)."""
    name, entries = named_by(resource, name), _OPERATIONS[resource].items()
    return sum(1 << bit for verb, bits in entries if asker.caller.allows(resource, name, verb) for bit in bits)


def recorded(
    audit: Audit | None, asker: Asker, resource: str, name: str, asked: Mapping[str, Any]
) -> AbstractAsyncContextManager[object]:
    """Return a context whose block is one act: it is begun when it is recorded, and confirmed when its end is.

    Without an `audit` nothing is recorded.

    Raises
    ------
    Unavailable
        `audit_unavailable`: it cannot be recorded, and is not begun.
    Unknown
        `audit_incomplete`: it was carried out, and its end cannot be recorded.
    """
    if audit is None:
        return nullcontext()
    principal = asker.caller.name or ANONYMOUS
    return audit.acts.carried_out(Asking(principal, asker.address, asker.call, resource, name, asked))
