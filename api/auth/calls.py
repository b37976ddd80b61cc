"""What each call needs: one table for all of them, from which check, audit, document and tests are made (SEC-4).

    METHOD /path/{topic}  ->  "topic publish"          `publish` on the topic that the path names
                              "topic create|alter"     one of the two; the call itself looks which
                              "group subscribe, topic subscribe"
                              "cluster admin"
                              "any"                    a principal with any grant; the answer is filtered
                              "open"                   no key
                              "...; audited"           an administrative act: recorded before it is confirmed (SEC-40)
                              "...; not audited"       it may change something else; calls that only read say nothing

A path is matched as it is routed: split at its slashes first, and each segment decoded once. A path or a method that is
not in the table needs `cluster admin`: no other caller learns whether it exists. Names in bodies and
queries are checked where they are read (`api.auth.caller`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from deltamq.mq.auth.principals import CLUSTER, Resource, Verb
from deltamq.mq.names import split_member
from deltamq.mq.schemas.registry import topic_of_subject

#: What each call needs, by method and path template.
CALLS: Final[Mapping[str, str]] = {
    # messages
    "POST /v1/topics/{topic}/messages": "topic publish; not audited",
    "GET /v1/topics/{topic}/partitions/{partition}/messages": "topic subscribe",
    "DELETE /v1/topics/{topic}/messages/{message_id:path}": "topic publish; not audited",
    "GET /v1/topics/{topic}/partitions/{partition}/messages/{offset}/deliveries": "topic subscribe",
    "GET /v1/topics/{topic}/delayed": "topic subscribe",
    "DELETE /v1/topics/{topic}/delayed/{message_id:path}": "topic publish; not audited",
    "POST /v1/groups/{group}/topics/{topic}/pop": "group subscribe, topic subscribe; not audited",
    "POST /v1/groups/{group}/ack": "group subscribe; not audited",
    "POST /v1/groups/{group}/invisible": "group subscribe; not audited",
    "POST /v1/groups/{group}/nack": "group subscribe; not audited",
    "POST /v1/groups/{group}/dead": "group subscribe; not audited",
    # topics
    "GET /v1/topics": "any",
    "GET /v1/topics/{topic}": "topic describe",
    "GET /v1/topics/{topic}/retention": "topic describe",
    "PUT /v1/topics/{topic}": "topic create|alter; audited",
    "DELETE /v1/topics/{topic}": "topic delete; audited",
    "GET /v1/topics/{topic}/offsets": "topic describe",
    "GET /v1/topics/{topic}/search": "topic subscribe",
    "GET /v1/topics/{topic}/latest/{key:path}": "topic subscribe",
    "GET /v1/topics/{topic}/quarantine": "topic subscribe",
    "POST /v1/topics/{topic}/quarantine/replay": "topic publish; audited",
    "DELETE /v1/topics/{topic}/quarantine": "topic alter; audited",
    "POST /v1/topics/{topic}/erase": "topic delete; audited",
    "POST /v1/topics/{topic}/remap": "topic alter; audited",
    "POST /v1/topics/{topic}/check": "topic describe; not audited",
    "POST /v1/topics/{topic}/repair": "topic alter; audited",
    "PUT /v1/topics/{topic}/partitions/{partition}": "topic alter; audited",
    # topics of several clusters: the clusters' calls among each other
    "GET /v1/topics/{topic}/global": "cluster admin",
    "PUT /v1/topics/{topic}/global": "cluster admin; audited",
    "GET /v1/topics/{topic}/global/producers/{producer_id}": "cluster admin",
    # groups
    "GET /v1/groups": "any",
    "GET /v1/groups/{group}": "group describe",
    "PUT /v1/groups/{group}": "group alter; audited",
    "POST /v1/groups/{group}/pause": "group alter; audited",
    "POST /v1/groups/{group}/resume": "group alter; audited",
    "DELETE /v1/groups/{group}": "group delete; audited",
    "GET /v1/groups/{group}/topics/{topic}/offsets": "group describe, topic describe",
    "PUT /v1/groups/{group}/topics/{topic}/offsets": "group subscribe, topic subscribe; not audited",
    "POST /v1/groups/{group}/topics/{topic}/offsets/reset": "group reset, topic describe; audited",
    "GET /v1/groups/{group}/statistics": "group describe",
    "GET /v1/groups/{group}/in-flight": "group describe",
    "GET /v1/groups/{group}/retries": "group describe",
    "POST /v1/groups/{group}/clients/{client_id}/heartbeat": "group subscribe; not audited",
    "GET /v1/groups/{group}/topics/{topic}/locks": "group subscribe, topic subscribe",
    "POST /v1/groups/{group}/topics/{topic}/locks": "group subscribe, topic subscribe; not audited",
    "DELETE /v1/groups/{group}/topics/{topic}/locks": "group subscribe, topic subscribe; not audited",
    "POST /v1/groups/{group}/topics/{topic}/aside": "group subscribe, topic subscribe; not audited",
    "GET /v1/groups/{group}/dead-letters": "group subscribe",
    "GET /v1/groups/{group}/dead-letters/counts": "group subscribe",
    "POST /v1/groups/{group}/dead-letters/replay": "group subscribe; audited",
    "DELETE /v1/groups/{group}/dead-letters": "group subscribe; audited",
    # schemas, under Confluent's paths; a subject has the access rules of its topic
    "GET /schemas": "any",
    "GET /schemas/contexts": "any",
    "GET /schemas/associations/resources/{namespace}/{topic}": "topic describe",
    "GET /schemas/subjects": "any",
    "POST /schemas/subjects/{subject}": "topic describe; not audited",
    "DELETE /schemas/subjects/{subject}": "topic delete; audited",
    "GET /schemas/subjects/{subject}/versions": "topic describe",
    "POST /schemas/subjects/{subject}/versions": "topic alter|create; audited",
    "GET /schemas/subjects/{subject}/versions/{version}": "topic describe",
    "DELETE /schemas/subjects/{subject}/versions/{version}": "topic delete; audited",
    "GET /schemas/subjects/{subject}/versions/{version}/schema": "topic describe",
    "GET /schemas/subjects/{subject}/versions/{version}/referencedby": "topic describe",
    "GET /schemas/schemas": "any",
    "GET /schemas/schemas/types": "any",
    "GET /schemas/schemas/ids/{id}": "any",
    "GET /schemas/schemas/ids/{id}/schema": "any",
    "GET /schemas/schemas/ids/{id}/subjects": "any",
    "GET /schemas/schemas/ids/{id}/versions": "any",
    "POST /schemas/compatibility/subjects/{subject}/versions": "topic describe; not audited",
    "POST /schemas/compatibility/subjects/{subject}/versions/{version}": "topic describe; not audited",
    "GET /schemas/config": "any",
    "PUT /schemas/config": "cluster admin; audited",
    "DELETE /schemas/config": "cluster admin; audited",
    "GET /schemas/config/{subject}": "topic describe",
    "PUT /schemas/config/{subject}": "topic alter; audited",
    "DELETE /schemas/config/{subject}": "topic alter; audited",
    "GET /schemas/mode": "any",
    "PUT /schemas/mode": "cluster admin; audited",
    "GET /schemas/mode/{subject}": "topic describe",
    "PUT /schemas/mode/{subject}": "topic alter; audited",
    "DELETE /schemas/mode/{subject}": "topic alter; audited",
    # who may do what
    "GET /v1/auth/principals": "cluster admin",
    "GET /v1/auth/principals/{principal}": "cluster admin",
    "PUT /v1/auth/principals/{principal}": "cluster admin; audited",
    "DELETE /v1/auth/principals/{principal}": "cluster admin; audited",
    "POST /v1/auth/principals/{principal}/disable": "cluster admin; audited",
    "POST /v1/auth/principals/{principal}/enable": "cluster admin; audited",
    "DELETE /v1/auth/principals/{principal}/passwords/{mechanism}": "cluster admin; audited",
    "GET /v1/auth/keys": "cluster admin",
    "POST /v1/auth/keys": "cluster admin; audited",
    "DELETE /v1/auth/keys/{key_id}": "cluster admin; audited",
    "GET /v1/auth/acls": "cluster admin",
    "POST /v1/auth/acls": "cluster admin; audited",
    "DELETE /v1/auth/acls/{acl_id}": "cluster admin; audited",
    "GET /v1/auth/quotas": "cluster admin",
    "PUT /v1/auth/quotas/{principal}": "cluster admin; audited",
    "GET /v1/auth/may": "any",
    "GET /v1/auth/sign-in": "open",
    "GET /v1/auth/explain": "cluster admin",
    # who did what
    "GET /v1/audit": "cluster audit",
    "GET /v1/audit/refusals": "cluster audit",
    # the service
    "GET /v1/cluster": "any",
    "GET /v1/cluster/upgrade": "cluster metrics",
    "POST /v1/cluster/upgrade": "cluster admin; audited",
    "PUT /v1/brokers/{broker}": "cluster admin; audited",
    "GET /v1/jobs": "cluster metrics",
    "GET /v1/exports": "any",
    "GET /v1/erasures/{erasure}": "any",
    "GET /v1/settings": "cluster metrics",
    "GET /v1/applied": "cluster admin",
    "PUT /v1/applied": "cluster admin; audited",
    "GET /v1/history": "any",
    "PUT /v1/log-level": "cluster admin; audited",
    "GET /metrics": "cluster metrics",
    # the console: its files show nothing, and ask for a key
    "GET /": "any",
    "GET /console/{file:path}": "open",
    "GET /openapi.json": "any",
    "HEAD /openapi.json": "any",
    "GET /healthz": "open",
    "GET /readyz": "open",
}
#: What another cluster may call in its own name, with a proof (SPEC SEC-6).
BY_CLUSTERS: Final = frozenset(
    {
        "GET /v1/topics/{topic}/global",
        "PUT /v1/topics/{topic}/global",
        "GET /v1/topics/{topic}/global/producers/{producer_id}",
        "DELETE /v1/topics/{topic}",
    }
)
#: The first segment of paths whose parameters may have slashes, since the paths are split as they were sent.
_SPLIT_AS_SENT: Final = "schemas"
#: The entry of a call that needs no key.
OPEN: Final = "open"
_ANY: Final = "any"
_AUDITED: Final = "audited"
#: An entry of a call that may change something ends with one of these.
_AUDITS: Final = (_AUDITED, "not audited")
#: Methods of calls that only read.
_READING: Final = ("GET", "HEAD")


class CallsDisagree(Exception):
    """A call has no entry in the table, or an entry has no call: a fault of this release."""


class Need(NamedTuple):
    """One of `verbs` on a topic or group that the path names, or on the cluster."""

    resource: Resource
    verbs: tuple[Verb, ...]


class CallNeeds(NamedTuple):
    """What one call needs. Without `needs` it needs any grant, unless it is `is_open`.

    Other clusters may send it in their own name if it `is_clusters`.
    """

    needs: tuple[Need, ...] = ()
    is_open: bool = False
    is_clusters: bool = False


class FoundCall(NamedTuple):
    """The call that a path and method are for, with the names in the path."""

    #: Method and path template.
    name: str
    entry: CallNeeds
    values: Mapping[str, str]

    @property
    def is_audited(self) -> bool:
        """Whether it is an administrative act."""
        return is_audited(self.name)


class Required(NamedTuple):
    """What one request needs: the call, and the name for each of its needs."""

    call: CallNeeds
    names: tuple[str, ...] = ()


#: What a request without an entry needs.
_UNKNOWN: Final = Required(CallNeeds((Need("cluster", ("admin",)),)), (CLUSTER,))


def access_of(name: str) -> str:
    """Return what a call needs by the table, without its word on the audit."""
    return CALLS[name].partition("; ")[0]


def is_audited(name: str) -> bool:
    """Whether a call is an administrative act, which is recorded before it is confirmed."""
    return CALLS[name].partition("; ")[2] == _AUDITED


def needs_of(text: str) -> CallNeeds:
    """Return what a call needs by its entry in the table."""
    text = text.partition("; ")[0]
    if text in (OPEN, _ANY):
        return CallNeeds(is_open=text == OPEN)
    parts = [part.split(" ") for part in text.split(", ")]
    return CallNeeds(
        tuple(Need(cast(Resource, what), tuple(cast(list[Verb], verbs.split("|")))) for what, verbs in parts)
    )


class _Call(NamedTuple):
    name: str
    entry: CallNeeds


class _Node(msgspec.Struct):
    """The calls whose paths begin with the same segments."""

    literal: dict[str, _Node] = msgspec.field(default_factory=dict)
    #: The name of the parameter that comes next, and the node behind it.
    parameter: tuple[str, _Node] | None = None
    #: The calls that end here, and the calls whose last parameter takes the rest of the path, slashes and all.
    calls: dict[str, _Call] = msgspec.field(default_factory=dict)
    rest: dict[str, _Call] = msgspec.field(default_factory=dict)

    def add(self, segments: list[str], method: str, call: _Call) -> None:
        if not segments:
            self.calls[method] = call
        elif segments[0].endswith(":path}"):
            self.rest[method] = call
        elif segments[0].startswith("{"):
            name = segments[0].strip("{}")
            if self.parameter is None:
                self.parameter = name, _Node()
            if self.parameter[0] != name:
                raise CallsDisagree(f"{method}: {{{name}}} and {{{self.parameter[0]}}} are at one place")
            self.parameter[1].add(segments[1:], method, call)
        else:
            self.literal.setdefault(segments[0], _Node()).add(segments[1:], method, call)

    def check(self) -> None:
        """Refuse a literal beside a parameter: routes are tried in another order than this tree."""
        if self.parameter is not None and self.literal:
            raise CallsDisagree(f"{sorted(self.literal)} may be taken for {{{self.parameter[0]}}}")
        for node in (*self.literal.values(), *([self.parameter[1]] if self.parameter else [])):
            node.check()


def _tree(calls: Mapping[str, str]) -> _Node:
    root = _Node()
    for name, text in calls.items():
        method, _, path = name.partition(" ")
        needed = needs_of(text)._replace(is_clusters=name in BY_CLUSTERS)
        root.add(path.split("/")[1:], method, _Call(name, needed))
    root.check()
    return root


_ROOT: Final = _tree(CALLS)


def required_by(method: str, raw_path: bytes) -> Required:
    """Return what a request needs, by its method and its raw path."""
    call = call_of(method, raw_path)
    return _UNKNOWN if call is None else _named(call.entry, call.values)


def call_of(method: str, raw_path: bytes) -> FoundCall | None:
    """Return the call that a request is for; None if the table has none."""
    try:
        segments = _segments(raw_path)
    except UnicodeDecodeError:
        return None
    node, values = _ROOT, dict[str, str]()
    for at, segment in enumerate(segments):
        if node.rest and at < len(segments):
            call = node.rest.get(method)
            return None if call is None else FoundCall(*call, values)
        if "/" in segment and segments[0] != _SPLIT_AS_SENT:  # it would be routed as two
            return None
        if segment in node.literal:
            node = node.literal[segment]
        elif node.parameter is not None and segment:
            values[node.parameter[0]] = segment
            node = node.parameter[1]
        else:
            return None
    call = node.calls.get(method)
    return None if call is None else FoundCall(*call, values)


def _segments(raw_path: bytes) -> list[str]:
    if b"%" not in raw_path:  # most
        return raw_path.decode().split("/")[1:]
    return [unquote_to_bytes(segment).decode() for segment in raw_path.split(b"/")[1:]]


def _named(call: CallNeeds, values: Mapping[str, str]) -> Required:
    return Required(call, tuple([_name(need.resource, values) for need in call.needs]))


def _name(resource: Resource, values: Mapping[str, str]) -> str:
    if resource == "cluster":
        return CLUSTER
    if resource == "topic" and "subject" in values:
        return topic_of_subject(values["subject"])
    return named_by(resource, values[resource])


def named_by(resource: Resource, name: str) -> str:
    """Return the name for access rules: for a client of a broadcast group, `GROUP@CLIENT`, its group."""
    member = split_member(name) if resource == "group" else None
    return name if member is None else member[0]


def check_complete(served: Iterable[str], calls: Mapping[str, str] = CALLS) -> None:
    """Raise `CallsDisagree` unless `calls` has an entry for each `served` call, and no other.

    It also raises if a call that may change something does not say whether it is audited: a service with a call that
    was not decided about must not start.
    """
    undecided = [name for name, text in calls.items() if not _says_of_audit(name, text)]
    if undecided:
        raise CallsDisagree(f"api/auth/calls.py: say `audited` or `not audited` of {sorted(undecided)}")
    missing, extra = set(served) - calls.keys(), calls.keys() - set(served)
    if missing or extra:
        raise CallsDisagree(f"api/auth/calls.py: no entry for {sorted(missing)}; nothing serves {sorted(extra)}")


def _says_of_audit(name: str, text: str) -> bool:
    """Whether an entry ends with its word on the audit; only a call that reads may leave it out."""
    said = text.partition("; ")[2]
    return said in _AUDITS or (not said and name.startswith(_READING))
