"""What a service holds, as what files could say, and carrying out the changes of a plan (SPEC LOOK-14)."""

from __future__ import annotations

from typing import Any

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.meta.desired import (
    Change,
    Desired,
    GroupWanted,
    Kind,
    PrincipalWanted,
    QuotaWanted,
    RuleWanted,
    TopicWanted,
    schema_wanted,
)
from deltamq.mq.wire.auth import PrincipalInfo, QuotaInfo
from deltamq.mq.wire.groups import GroupInfo
from deltamq.mq.wire.topics import TopicInfo


def present(admin: Admin, *, only: Desired | None = None, principals: bool = True) -> Desired:
    """Return what there is, with every setting: of what `only` names, or of everything.

    `principals` False leaves them out, as a service without authentication has none.
    """
    topics = [name for name in admin.list_topics() if only is None or name in only.topics]
    groups = [name for name in admin.list_groups() if only is None or name in only.groups]
    found = Desired(
        topics={name: _topic(admin, admin.get_topic(name)) for name in topics},
        groups={name: _group(admin.get_group(name)) for name in groups},
    )
    if principals:
        quotas = {one.principal: one for one in admin.list_quotas()}
        for name in admin.list_principals():
            if only is None or name in only.principals:
                found.principals[name] = _present_principal(admin.get_principal(name), quotas.get(name))
    return found


def _topic(admin: Admin, info: TopicInfo) -> TopicWanted:
    settings: dict[str, Any] = {
        field: getattr(info, field)
        for field in (
            *("order_strategy", "retention_ms", "retention_bytes", "message_type", "flush", "commit_window_ms"),
            "partitioner",
        )
    }
    if info.schema is not None:
        text = None if info.schema.version is None else admin.get_schema(info.schema.subject).schema
        settings["schema"] = schema_wanted(info.schema, text)
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
            quota = wanted.principals[change.name].quota
            assert quota is not None, "a quota is changed to one that is wanted"
            admin.set_quota(
                change.name, **{name: bound for name in quota.__struct_fields__ if (bound := getattr(quota, name))}
            )


def _delete(admin: Admin, kind: Kind, name: str) -> None:
    if kind == "topic":
        admin.delete_topic(name)
    elif kind == "group":
        admin.delete_group(name)
    elif kind == "principal":
        admin.delete_principal(name)
    else:
        admin.remove_acl(name.partition("/")[2])
