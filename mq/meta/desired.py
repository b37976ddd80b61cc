"""What a warehouse should hold, said by names, and the changes from what there is: pure (SPEC LOOK-14, LOOK-19).

    Desired (files) -------------------.
    Desired (the service, or `held_by`) +--plan--> [Change, ...]
                      prune: also what files do not name

A setting that is not said stays. Nothing is deleted without `prune`, and nothing shrinks: partitions only grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from deltamq.mq.auth.changes import is_last_administrator
from deltamq.mq.auth.principals import AccessRule, rule_of
from deltamq.mq.auth.state import AuthState
from deltamq.mq.limits import JSON_INTEGER_MAX
from deltamq.mq.meta.allocation import Strategy
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import ConsumeStrategy, Ordering
from deltamq.mq.meta.topic_settings import FlushMode, OrderStrategy, limit_of, schema_of, window_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import policy_from_json, policy_to_json
from deltamq.mq.schemas.avro_form import avro_form
from deltamq.mq.schemas.registry import RegistryState
from deltamq.mq.schemas.setting import Format, OnInvalid, Wire

#: -1 for none.
Number = Annotated[int, msgspec.Meta(ge=-1, le=JSON_INTEGER_MAX)]


class SchemaWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a topic's messages are written in; a part that is not said stays. `schema` is the text of the newest one."""

    format: Format | None = None
    schema: str | None = None
    subject: str | None = None
    message: str | None = None
    wire: Wire | None = None
    on_invalid: OnInvalid | None = None
    unwrap: Literal["", "debezium"] | None = None

    def is_in(self, there: SchemaWanted | None) -> bool:
        """Whether all that is said is so already; texts may be spaced, and those of Avro written, in another way."""
        if there is None:
            return False
        said = {name: one for name in self.__struct_fields__ if (one := getattr(self, name)) is not None}
        text = said.pop("schema", None)
        read = _avro if there.format == "avro" else _spaced
        is_same = text is None or (there.schema is not None and read(text) == read(there.schema))
        return is_same and all(getattr(there, name) == one for name, one in said.items())


def _avro(text: str) -> object:
    try:
        return avro_form(_spaced(text), normalize=False)
    except RecursionError:
        return text


def _spaced(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.split()


class TopicWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic; with `total_queues` a static one."""

    partitions: Number | None = None
    total_queues: Number | None = None
    order_strategy: OrderStrategy | None = None
    retention_ms: Number | None = None
    retention_bytes: Number | None = None
    message_type: str | None = None
    flush: FlushMode | None = None
    commit_window_ms: Number | None = None
    partitioner: Partitioner | None = None
    schema: SchemaWanted | None = None


class GroupWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A consumer group."""

    consume_strategy: ConsumeStrategy | None = None
    allocation_strategy: Strategy | None = None
    order: Ordering | None = None
    consume_from: str | None = None
    max_attempts: Number | None = None
    retry_policy: list[Number] | dict[str, Any] | None = None
    invisible_ms: Number | None = None


class RuleWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An access rule; the cluster needs no pattern."""

    resource: Literal["topic", "group", "cluster"]
    verbs: list[str]
    pattern: str = ""
    effect: Literal["allow", "deny"] = "allow"


class QuotaWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a principal may use of each process, per second; what is left out has no bound."""

    requests_per_s: Number | None = None
    bytes_in_per_s: Number | None = None
    bytes_out_per_s: Number | None = None


class PrincipalWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A principal; `rules` are all that it should have."""

    note: str = ""
    rules: list[RuleWanted] = []
    quota: QuotaWanted | None = None
    disabled: bool = False


class Desired(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What there should be, by name."""

    topics: dict[str, TopicWanted] = {}
    groups: dict[str, GroupWanted] = {}
    principals: dict[str, PrincipalWanted] = {}


Kind = Literal["topic", "group", "principal", "rule", "quota"]
Does = Literal["create", "change", "delete"]


class Change(NamedTuple):
    """One call to the service: what is set, from what it is to what it should be."""

    does: Does
    kind: Kind
    name: str
    #: The fields that are set, each with its value before; None for what is made.
    fields: Mapping[str, tuple[Any, Any]]


def plan(wanted: Desired, present: Desired, *, prune: bool = False) -> list[Change]:
    """Return the changes that make `present` what is `wanted`, in an order in which they can be carried out."""
    wanted = normal(wanted)
    changes: list[Change] = []
    for topic, settings in sorted(wanted.topics.items()):
        changes += _set("topic", topic, settings, present.topics.get(topic))
    for group, said in sorted(wanted.groups.items()):
        changes += _set("group", group, said, present.groups.get(group))
    for principal, its in sorted(wanted.principals.items()):
        changes += _principal(principal, its, present.principals.get(principal), prune=prune)
    if prune:
        kinds: tuple[tuple[Kind, Mapping[str, Any], Mapping[str, Any]], ...] = (
            ("group", wanted.groups, present.groups),
            ("topic", wanted.topics, present.topics),
            # The last: who applies may be among them.
            ("principal", wanted.principals, present.principals),
        )
        for kind, named, there in kinds:
            changes += [Change("delete", kind, name, {}) for name in sorted(there.keys() - named.keys())]
    return changes


def refused(changes: Sequence[Change], wanted: Desired, present: Desired) -> list[Change]:
    """Return the changes that the service would refuse: those that leave nobody who may administer it (SPEC SEC-19).

    `present` has all principals, as with `prune`.
    """
    rules = {
        (name, one): _rule(name, its)
        for name, said in present.principals.items()
        for one, its in _rules(name, said).items()
    }
    disabled = {name for name, said in present.principals.items() if said.disabled}
    found = []
    for change in changes:
        name, _, rule = change.name.partition("/")
        if change.kind == "rule":
            rules.pop((name, rule), None)
            if change.does == "create":
                rules[name, rule] = _rule(name, _rules(name, wanted.principals[name])[rule])
        elif change.kind == "principal":
            before, after = change.fields.get("disabled", (None, False))
            goes = change.does == "delete" or after
            if goes and is_last_administrator(name, rules.values(), disabled.__contains__):
                found.append(change)
            elif change.does == "delete":
                rules = {key: its for key, its in rules.items() if key[0] != name}
            elif after:
                disabled.add(name)
            elif before:
                disabled.discard(name)
    return found


def normal(wanted: Desired) -> Desired:
    """Return the same in the form in which the service answers, so that a repeat changes nothing; refuses nonsense."""
    groups = {}
    for name, said in wanted.groups.items():
        policy, start = said.retry_policy, said.consume_from
        groups[name] = msgspec.structs.replace(
            said,
            retry_policy=None if policy is None else policy_to_json(policy_from_json(policy)),
            consume_from=None if start is None else Start.from_json(start, field="consume_from").to_json(),
        )
    return msgspec.structs.replace(wanted, groups=groups)


def _set(kind: Kind, name: str, wanted: msgspec.Struct, present: msgspec.Struct | None) -> Iterator[Change]:
    said = {field: value for field, value in msgspec.structs.asdict(wanted).items() if value is not None}
    if present is None:
        yield Change("create", kind, name, {field: (None, value) for field, value in said.items()})
        return
    differing = {
        field: (there, value)
        for field, value in said.items()
        for there in (getattr(present, field),)
        if not (value.is_in(there) if isinstance(value, SchemaWanted) else there == value)
    }
    if differing:
        yield Change("change", kind, name, differing)


def _principal(name: str, wanted: PrincipalWanted, present: PrincipalWanted | None, *, prune: bool) -> Iterator[Change]:
    before = present or PrincipalWanted()
    fields = {
        field: (None if present is None else getattr(before, field), getattr(wanted, field))
        for field in ("note", "disabled")
        if getattr(before, field) != getattr(wanted, field)
    }
    if present is None or fields:
        yield Change("create" if present is None else "change", "principal", name, fields)
    has, should = _rules(name, before), _rules(name, wanted)
    for rule, said in should.items():
        if rule not in has:
            yield Change("create", "rule", f"{name}/{rule}", _fields(said))
    if prune:
        for rule in sorted(has.keys() - should.keys()):
            its = {field: (value, None) for field, (_, value) in _fields(has[rule]).items()}
            yield Change("delete", "rule", f"{name}/{rule}", its)
    has_quota, quota = msgspec.structs.asdict(before.quota or QuotaWanted()), wanted.quota
    if quota is not None:
        bounds = {
            field: (has_quota[field], bound)
            for field, bound in msgspec.structs.asdict(quota).items()
            if has_quota[field] != bound
        }
        if bounds:
            yield Change("change", "quota", name, bounds)


def _rules(principal: str, its: PrincipalWanted) -> dict[str, RuleWanted]:
    """Return the rules by their ids."""
    return {_rule(principal, one).id: one for one in its.rules}


def _rule(principal: str, its: RuleWanted) -> AccessRule:
    return rule_of(principal=principal, effect=its.effect, resource=its.resource, pattern=its.pattern, verbs=its.verbs)


def _fields(said: msgspec.Struct) -> dict[str, tuple[Any, Any]]:
    return {field: (None, value) for field, value in msgspec.structs.asdict(said).items() if value not in (None, "")}


def held_by(meta: Meta, only: Desired) -> Desired:
    """Return what the metadata hold of what `only` names, with every setting."""
    topics, groups, auth = meta.topics.topics, meta.groups.groups, meta.auth
    return Desired(
        topics={name: _topic(topics[name], meta.schemas) for name in only.topics if name in topics},
        groups={name: _group(groups[name]) for name in only.groups if name in groups},
        principals={name: _principal_of(auth, name) for name in only.principals if name in auth.principals},
    )


def _topic(topic: Topic, registry: RegistryState) -> TopicWanted:
    settings = topic.settings
    schema = schema_of(settings)
    versions = () if schema is None else registry.versions(schema.subject)
    return TopicWanted(
        partitions=len(topic.route.partitions) if topic.static is None else None,
        total_queues=None if topic.static is None else topic.static.total,
        order_strategy=settings.order_strategy,
        retention_ms=settings.retention_ms,
        retention_bytes=limit_of(settings),
        message_type=settings.message_type,
        flush=settings.flush,
        commit_window_ms=window_of(settings),
        partitioner=settings.partitioner,
        schema=None if schema is None else schema_wanted(schema, versions[-1].schema if versions else None),
    )


def schema_wanted(there: Any, text: str | None) -> SchemaWanted:
    """Return a topic's schema, its setting or what answers say of it, with the text of its newest version."""
    parts = ("format", "subject", "message", "wire", "on_invalid", "unwrap")
    return SchemaWanted(schema=text, **{name: getattr(there, name) for name in parts})


def _group(group: Group) -> GroupWanted:
    settings = group.settings
    return GroupWanted(
        consume_strategy=settings.consume_strategy,
        allocation_strategy=settings.allocation_strategy,
        order=settings.order,
        consume_from=settings.consume_from.to_json(),
        max_attempts=settings.max_attempts,
        retry_policy=policy_to_json(settings.retry_policy),
        invisible_ms=settings.invisible_ms,
    )


def _principal_of(auth: AuthState, name: str) -> PrincipalWanted:
    principal, quota = auth.principals[name], auth.quotas.get(name)
    return PrincipalWanted(
        note=principal.note,
        rules=[
            RuleWanted(resource=one.resource, verbs=list(one.verbs), pattern=one.pattern, effect=one.effect)
            for one in auth.rules_of(name)
        ],
        quota=None
        if quota is None
        else QuotaWanted(**{field: getattr(quota, field) for field in QuotaWanted.__struct_fields__}),
        disabled=principal.is_disabled,
    )


def joined(before: Desired, more: Desired) -> Desired:
    """Return what both say; what both name is as `more` says."""
    return Desired(
        topics=before.topics | more.topics,
        groups=before.groups | more.groups,
        principals=before.principals | more.principals,
    )
