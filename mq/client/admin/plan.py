"""From what there is to what there should be: the changes, as a pure function, and carrying them out (SPEC LOOK-14).

    Desired (files) --.
    Desired (service) +--> [Change, ...] --print, or carry out one after another--> the service
                      prune: also what files do not name

A setting that is not said stays. Nothing is deleted without `prune`, and nothing shrinks: partitions only grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from deltamq.mq.auth.principals import rule_of
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.desired import (
    Desired,
    GroupWanted,
    PrincipalWanted,
    QuotaWanted,
    RuleWanted,
    TopicWanted,
)
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import policy_from_json, policy_to_json
from deltamq.mq.wire.auth import PrincipalInfo, QuotaInfo
from deltamq.mq.wire.groups import GroupInfo
from deltamq.mq.wire.topics import TopicInfo

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
            ("principal", wanted.principals, present.principals),
            ("group", wanted.groups, present.groups),
            ("topic", wanted.topics, present.topics),
        )
        for kind, named, there in kinds:
            changes += [Change("delete", kind, name, {}) for name in sorted(there.keys() - named.keys())]
    return changes


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
        field: (getattr(present, field), value) for field, value in said.items() if getattr(present, field) != value
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
        yield from (Change("delete", "rule", f"{name}/{rule}", {}) for rule in has.keys() - should.keys())
    if wanted.quota is not None and wanted.quota != (before.quota or QuotaWanted()):
        yield Change("change", "quota", name, _fields(wanted.quota))


def _rules(principal: str, its: PrincipalWanted) -> dict[str, RuleWanted]:
    """Return the rules by their ids."""
    return {
        rule_of(
            principal=principal, effect=one.effect, resource=one.resource, pattern=one.pattern, verbs=one.verbs
        ).id: one
        for one in its.rules
    }


def _fields(said: msgspec.Struct) -> dict[str, tuple[Any, Any]]:
    return {field: (None, value) for field, value in msgspec.structs.asdict(said).items() if value not in (None, "")}


def present(admin: Admin, *, only: Desired | None = None, principals: bool = True) -> Desired:
    """Return what there is, with every setting: of what `only` names, or of everything.

    `principals` False leaves them out, as a service without authentication has none.
    """
    topics = [name for name in admin.list_topics() if only is None or name in only.topics]
    groups = [name for name in admin.list_groups() if only is None or name in only.groups]
    found = Desired(
        topics={name: _topic(admin.get_topic(name)) for name in topics},
        groups={name: _group(admin.get_group(name)) for name in groups},
    )
    if principals:
        quotas = {one.principal: one for one in admin.list_quotas()}
        for name in admin.list_principals():
            if only is None or name in only.principals:
                found.principals[name] = _present_principal(admin.get_principal(name), quotas.get(name))
    return found


def _topic(info: TopicInfo) -> TopicWanted:
    settings = {
        field: getattr(info, field)
        for field in ("order_strategy", "retention_ms", "retention_bytes", "message_type", "flush", "partitioner")
    }
    if info.static:
        return TopicWanted(total_queues=info.total_queues, **settings)
    return TopicWanted(partitions=len(info.partitions), **settings)


def _group(info: GroupInfo) -> GroupWanted:
    return GroupWanted(**{field: getattr(info, field) for field in GroupWanted.__struct_fields__})


def _present_principal(info: PrincipalInfo, quota: QuotaInfo | None) -> PrincipalWanted:
    rates = None if quota is None else {name: getattr(quota, name) for name in QuotaWanted.__struct_fields__}
    return PrincipalWanted(
        note=info.note,
        rules=[
            RuleWanted(resource=one.resource, verbs=one.verbs, pattern=one.pattern, effect=one.effect)  # type: ignore[arg-type] # the service checks them
            for one in info.acls
        ],
        quota=None if rates is None or not any(rates.values()) else QuotaWanted(**rates),
        disabled=info.disabled_time is not None,
    )


def carry_out(admin: Admin, change: Change, wanted: Desired) -> None:
    """Carry one change out; repeated it does no harm."""
    to = {field: after for field, (_, after) in change.fields.items()}
    match change.does, change.kind:
        case "delete", kind:
            _delete(admin, kind, change.name)
        case _, "topic":
            total_queues = wanted.topics[change.name].total_queues
            to.pop("total_queues", None)
            if total_queues is None:
                admin.put_topic(change.name, **to)
            else:
                admin.put_static_topic(change.name, total_queues, **to)
        case _, "group":
            admin.put_group(change.name, **to)
        case _, "principal":
            said = wanted.principals[change.name]
            admin.put_principal(change.name, note=said.note)
            if "disabled" in to:
                (admin.disable_principal if said.disabled else admin.enable_principal)(change.name)
        case _, "rule":
            admin.add_acl(
                change.name.partition("/")[0],
                to["resource"],
                to["verbs"],
                pattern=to.get("pattern", ""),
                effect=to["effect"],
            )
        case _:
            admin.set_quota(change.name, **to)


def _delete(admin: Admin, kind: Kind, name: str) -> None:
    if kind == "topic":
        admin.delete_topic(name)
    elif kind == "group":
        admin.delete_group(name)
    elif kind == "principal":
        admin.delete_principal(name)
    else:
        admin.remove_acl(name.partition("/")[2])
