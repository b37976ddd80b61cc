"""Examples of answers, by the name of their schema; all are about one topic and group."""

from __future__ import annotations

from typing import Final

from deltamq.api.wire.openapi_parts import Json

_HOST: Final = "f3e0651d4eb84674b28923555c349ead"
_ADDRESS: Final = "http://10.0.0.7:8080"
_DEAD: Final = "%DLQ%billing@broker-a"

_OPEN: Final[Json] = {"readable": True, "writable": True, "reason": None, "until": None}
_CLOSED: Final[Json] = {
    "readable": True,
    "writable": False,
    "reason": "new disk",
    "until": "2030-01-01T12:00:00.000000Z",
}
_PARTITION: Final[Json] = {
    "partition": "flights@broker-a",
    "broker": "broker-a",
    "state": "serving",
    "logical_partitions": [[0, 1024]],
    "location": "/var/lib/deltamq/topics/flights/flights@broker-a",
    "min_offset": 0,
    "max_offset": 123,
    "messages": 123,
    "bytes": 9_840,
    "files": 2,
    "last_append_time": "2013-01-01T05:15:00.123000Z",
    "version": 41,
    "quarantined": None,
    **_OPEN,
}
_TOPIC: Final[Json] = {
    "topic": "flights",
    "id": "4bd4725d-5bec-43f4-be8a-bc5a186729a2",
    "order_strategy": "best_tried",
    "retention_ms": 259_200_000,
    "retention_bytes": -1,
    "message_type": "normal",
    "flush": None,
    "commit_window_ms": 1_000,
    "created_time": "2013-01-01T05:00:00.000000Z",
    "routes_epoch": 1,
    "partitioner": "lp",
    "logical_partitions": 1024,
    "static": False,
    "total_queues": None,
    "partitions": [_PARTITION],
    "logical_queues": None,
}
_ACT: Final[Json] = {
    "id": "5f2b8c1d9e3a4f60",
    "time": "2013-01-01T05:15:00.123000Z",
    "principal": "ada",
    "address": "10.0.0.7:51234",
    "process": "f200793a0916439eac7c8d8630c8039a",
    "call": "PUT /v1/topics/{topic}",
    "resource": "topic",
    "name": "flights",
    "asked": {"retention_ms": 86_400_000, "topic": "flights"},
    "outcome": "done",
    "status": 200,
    "code": None,
    "detail": None,
    "before": {"topic/flights": {"settings": {"retention_ms": 259_200_000}}},
    "after": {"topic/flights": {"settings": {"retention_ms": 86_400_000}}},
}
_REFUSAL: Final[Json] = {
    "minute": "2013-01-01T05:15:00.000000Z",
    "principal": "reports",
    "call": "DELETE /v1/topics/{topic}",
    "status": 403,
    "code": "forbidden",
    "count": 3,
    "address": "10.0.0.7:51234",
    "process": "f200793a0916439eac7c8d8630c8039a",
}
_FAULT: Final[Json] = {
    "kind": "missing",
    "broker": "broker-b",
    "queue": None,
    "detail": "broker broker-b has no mapping",
}
_REMAPPED: Final[Json] = {
    "topic": "orders",
    "plan": False,
    "mode": "strict",
    "moved": [
        {
            "queue": 0,
            "from": "broker-a",
            "to": "broker-b",
            "old_partition": "orders@broker-a",
            "new_partition": "orders#2@broker-b",
            "end_offset": 120,
            "logic_offset": 120,
        }
    ],
    "seal_ms": 4.2,
}
_CHECKED: Final[Json] = {
    "topic": "orders",
    "epoch": 1_700_000_000_000,
    "total_queues": 2,
    "complete": False,
    "faults": [_FAULT],
    "mappings": [{"broker": "broker-a", "epoch": 1_700_000_000_000, "total_queues": 2, "hosted": 1, "copies": 1}],
}
_BY_TIME: Final[Json] = {
    "topic": "flights",
    "time": "2013-01-01T05:15:00.000000Z",
    "offsets": [{"partition": "flights@broker-a", "offset": 120}],
}

_LANE: Final[Json] = {
    "partition": "flights@broker-a",
    "retry": False,
    "committed_offset": 120,
    "min_offset": 0,
    "end_offset": 123,
    "lag": 3,
    "in_flight": 0,
    "last_consume_time": "2013-01-01T05:15:00.456000Z",
    "epoch": 1,
    "metadata": "worker-1 at 05:15",
}
_GROUP: Final[Json] = {
    "group": "billing",
    "epoch": 1,
    "consume_strategy": "exclusive",
    "allocation_strategy": "sticky",
    "order": False,
    "consume_from": "first",
    "max_attempts": 5,
    "retry_policy": {"fixed_ms": 1_000},
    "invisible_ms": 60_000,
    "created_time": "2013-01-01T05:00:00.000000Z",
    "clients": [
        {
            "client_id": "worker-1",
            "online": True,
            "topics": {"flights": {"order": True, "tags": "*"}},
            "since_time": "2013-01-01T05:10:00.000000Z",
            "authorized_ms": 29_000,
        }
    ],
    "allocation": {"flights": {"epoch": 2, "clients": {"worker-1": ["flights@broker-a"]}}},
    "topics": [{"topic": "flights", "lag": 3, "partitions": [_LANE]}],
    "members": [],
}
_COMMITTED: Final[Json] = {
    "group": "billing",
    "topic": "flights",
    "topic_id": _TOPIC["id"],
    "offsets": {"flights@broker-a": 120},
    "epochs": {"flights@broker-a": 1},
}

_DEAD_LETTER: Final[Json] = {
    "offset": 0,
    "message_id": "7d3f0d9b5e6a4c1200000000",
    "append_time": "2013-01-01T05:20:00.000000Z",
    "body": '{"flight": "UA1545"}',
    "key": "N14228",
    "tag": "departure",
    "headers": {"mq-dead-reason": "cannot be parsed"},
    "born_time": "2013-01-01T05:15:00.000000Z",
    "reconsume_times": 5,
    "origin": {"topic": "flights", "partition": "flights@broker-a", "offset": 120},
    "partition": _DEAD,
    "topic": "flights",
    "reason": "cannot be parsed",
    "attempts": 5,
    "state": "new",
    "sent_back_time": None,
    "sent_back_by": None,
}
_REPLAYED: Final[Json] = {
    "replayed": 1,
    "duplicates": 0,
    "failed": [{"partition": _DEAD, "offset": 7, "code": "offset_out_of_range"}],
    "failed_total": 1,
}
_COUNTS: Final[Json] = {"new": 3, "sent_back": 2, "deleted": 1}

_CLUSTER: Final[Json] = {
    "warehouse": "/var/lib/deltamq",
    "version": "0.1.0",
    "host": _HOST,
    "routes_epoch": 1,
    "topics": 1,
    "brokers": [
        {
            "broker": "broker-a",
            "address": _ADDRESS,
            "host": _HOST,
            "roles": ["broker", "meta"],
            "epoch": 1,
            "partitions": 1,
            "online": True,
            **_OPEN,
        }
    ],
    "meta": {"address": _ADDRESS, "host": _HOST, "epoch": 2},
    "hosts": [{"host": _HOST, "address": _ADDRESS, "brokers": ["broker-a"], "load": 17, "auth": True}],
    "auth": True,
    "missing_jobs": [{"job": "delay", "ok_at": None, "means": "delayed messages do not come"}],
    "stopped": [
        {
            "space": "topics",
            "topic": "flights",
            "partition": "flights@broker-a",
            "queue": None,
            "code": "corrupt",
            "detail": "topics/flights/flights@broker-a/_delta_log/00000000000000000007.json: the commit file is empty "
            "or cut off (0 bytes)",
        }
    ],
    "disk": {"size_bytes": 107374182400, "free_bytes": 64424509440},
    "store": None,
}
_FEATURE: Final[Json] = {"feature": "signed-names", "says": "names of topics are signed", "lacking": []}
_JOB: Final[Json] = {
    "name": "revive",
    "engine": "spark",
    "every_s": 1.0,
    "started_at": "2013-01-01T05:15:00.123000Z",
    "seconds": 0.4,
    "ok": True,
    "ok_at": "2013-01-01T05:15:00.123000Z",
    "running_since": None,
    "detail": "",
    "facts": {"rows": 3, "behind_ms": 0},
    "failures": 0,
    "missing": None,
    "shards": [
        {
            "shard": "broker-a",
            "owner": "b83c2f0e",
            "last_run_time": "2013-01-01T05:15:00.123000Z",
            "behind_ms": 0,
            "error": None,
        }
    ],
}

_WORLD: Final[Json] = {
    "id": _TOPIC["id"],
    "home": "east",
    "here": "west",
    "epoch": 1_356_998_400_000,
    "clusters": ["east", "west"],
    "queues": [
        [
            {
                "cluster": "west",
                "local_start": 0,
                "logic_offset": 0,
                "local_end": -1,
                "at_once": False,
                "start_ms": 1_356_998_400_000,
                "end_ms": -1,
            }
        ]
    ],
    "held_by": ["east", "west"],
}
_STATE: Final[Json] = {"cluster": "west", "id": _TOPIC["id"], "epoch": 1_356_998_400_000, "ends": {"1": 400}}
_COPY: Final[Json] = {
    "world": _WORLD,
    "settings": {
        "order_strategy": "best_tried",
        "retention_ms": 604_800_000,
        "retention_bytes": -1,
        "message_type": "normal",
        "flush": None,
        "partitioner": "lp",
    },
}
_KEY: Final[Json] = {
    "key_id": "9f86d081884c7d65",
    "principal": "reports",
    "created_time": "2026-01-01T00:00:00.000000Z",
    "until_time": "2030-01-01T00:00:00.000000Z",
    "live": True,
}
_ACL: Final[Json] = {
    "acl_id": "5b1f0c2a9d3e4f60",
    "principal": "reports",
    "effect": "allow",
    "resource": "topic",
    "pattern": "orders.*",
    "verbs": ["subscribe"],
    "matches": 2,
    "matched": ["orders.eu", "orders.us"],
}
_QUOTA: Final[Json] = {
    "principal": "reports",
    "requests_per_s": 100,
    "bytes_in_per_s": 1_048_576,
    "bytes_out_per_s": None,
}
_PRINCIPAL: Final[Json] = {
    "principal": "reports",
    "note": "nightly reports, team blue",
    "created_time": "2026-01-01T00:00:00.000000Z",
    "disabled_time": None,
    "keys": [_KEY],
    "acls": [_ACL],
}

_EXAMPLES: Final[Json] = {
    "TopicList": {"topics": ["flights"], "next": "flights"},
    "TopicInfo": _TOPIC,
    "Remapping": _REMAPPED,
    "TopicCheck": _CHECKED,
    "TopicRepair": {"topic": "orders", "plan": True, "faults": [_FAULT], "repaired": ["broker-a", "broker-b"]},
    "ClusterCopy": {"held": _COPY, "state": _STATE},
    "ClusterState": _STATE,
    "RememberedNumbers": {"numbers": [7]},
    "OffsetsByTime": _BY_TIME,
    "SearchAnswer": {
        "messages": [
            {
                "offset": 120,
                "message_id": "7d3f0d9b5e6a4c1200000000",
                "append_time": "2013-01-01T05:15:00.000000Z",
                "body": '{"flight": "UA1545"}',
                "key": "N14228",
                "tag": "departure",
                "partition": "flights@broker-a",
            }
        ],
        "cursor": "4bd4725d-5bec-43f4-be8a-bc5a186729a2.121_1357017300000000",
        "looked_at": {"messages": 121, "bytes": 9_680, "through_time": "2013-01-01T05:15:00.000000Z"},
    },
    "Quarantine": {
        "topic": "flights",
        "messages": [
            {
                "offset": 120,
                "message_id": "7d3f0d9b5e6a4c1200000000",
                "append_time": "2013-01-01T05:15:00.000000Z",
                "body": '{"flight": 1545}',
                "partition": "flights@broker-a",
                "invalid": {"code": "wrong_type", "field": "flight", "reason": "is no string", "schema_id": 1},
            }
        ],
        "cursor": "4bd4725d-5bec-43f4-be8a-bc5a186729a2.121.flights@broker-a",
    },
    "QuarantineDone": {
        "done": 1,
        "failed": [{"partition": "flights@broker-a", "offset": 7, "code": "wrong_type", "field": "flight"}],
        "failed_total": 1,
    },
    "ErasureAsked": {"erasure": "4bd4725d5bec43f4be8abc5a186729a2"},
    "LatestValue": {
        "topic": "flights",
        "key": "N14228",
        "partition": "flights@broker-a",
        "offset": 120,
        "append_time": "2013-01-01T05:15:00.000000Z",
        "value": {"flight": "UA1545", "delay": 2.0},
    },
    "ErasureInfo": {
        "erasure": "4bd4725d5bec43f4be8abc5a186729a2",
        "topic": "flights",
        "state": "erased",
        "keys": 1,
        "rows": 12,
        "copies": {"dead_letters": 1, "exports": 12, "retries": 2},
        "exports": [{"name": "flights", "rows": 12, "gone_time": "2013-01-09T05:15:30.000000Z"}],
        "asked_time": "2013-01-01T05:15:00.000000Z",
        "gone_time": "2013-01-09T05:15:30.000000Z",
    },
    "GroupList": {"groups": ["billing"], "next": "billing"},
    "GroupInfo": _GROUP,
    "GroupOffsets": {**_COMMITTED, "partitions": [_LANE]},
    "CommittedOffsets": _COMMITTED,
    "ResetPlan": {
        "group": "billing",
        "topic": "flights",
        "plan": True,
        "offsets": {"flights@broker-a": {"from": 120, "to": 0, "messages": 120}},
    },
    "ResetOffsets": {"group": "billing", "topic": "flights", "epoch": 2, "offsets": {"flights@broker-a": 0}},
    "GroupStatistics": {
        "group": "billing",
        "since_time": "2013-01-01T05:15:00.000000Z",
        "seconds": 330.5,
        "processes": 2,
        "topics": [
            {
                "topic": "flights",
                "delivered": 1_200,
                "redelivered": 10,
                "succeeded": 1_180,
                "failed": 15,
                "dead": 5,
                "age_ms": 60_000,
                "age_max_ms": 900,
                "handling_ms": 24_000,
                "handling_max_ms": 250,
                "delivered_per_s": 3.631,
                "succeeded_per_s": 3.57,
                "failed_per_s": 0.061,
                "success_rate": 0.9833,
                "age_mean_ms": 50.0,
                "handling_mean_ms": 20.0,
            }
        ],
    },
    "LocksReturned": {"partitions": ["flights@broker-a"]},
    "AsideAnswer": {"moved": 1},
    "DeliveriesAnswer": {
        "topic": "flights",
        "partition": "flights@broker-a",
        "offset": 120,
        "deliveries": [
            {
                "group": "billing",
                "attempt": 1,
                "state": "held",
                "time": "2013-01-01T05:15:00.456000Z",
                "client_id": "worker-1",
                "due_time": "2013-01-01T05:16:00.456000Z",
                "moved_to": None,
                "reason": None,
            }
        ],
    },
    "DelayedList": {
        "topic": "flights",
        "now_time": "2013-01-01T05:15:00.000000Z",
        "messages": [
            {
                "offset": 7,
                "message_id": "reminder-17",
                "append_time": "2013-01-01T05:10:00.000000Z",
                "body": "boarding",
                "key": "N14228",
                "deliver_time": "2013-01-01T06:00:00.000000Z",
                "partition": "flights@broker-a",
            }
        ],
        "cursor": None,
    },
    "InFlightAnswer": {
        "group": "billing",
        "total": 1,
        "messages": [
            {
                "topic": "flights",
                "partition": "flights@broker-a",
                "offset": 120,
                "client_id": "worker-1",
                "since_time": "2013-01-01T05:15:00.456000Z",
                "visible_time": "2013-01-01T05:16:00.456000Z",
                "attempt": 1,
                "retry": False,
                "given_back": False,
            }
        ],
        "by_client": [{"client_id": "worker-1", "messages": 1, "since_time": "2013-01-01T05:15:00.456000Z"}],
    },
    "RetriesAnswer": {
        "group": "billing",
        "total": 1,
        "messages": [
            {
                "topic": "flights",
                "partition": "flights@broker-a",
                "offset": 120,
                "origin": {"topic": "flights", "partition": "flights@broker-a", "offset": 120},
                "attempt": 2,
                "state": "waiting",
                "due_time": "2013-01-01T05:15:10.456000Z",
                "handle": None,
            }
        ],
        "by_attempt": [{"attempt": 2, "state": "waiting", "messages": 1}],
    },
    "AppliedAnswer": {
        "applied_time": "2013-01-01T05:15:00.000000Z",
        "applied_by": "deployer",
        "names": 12,
        "differences": [
            {
                "kind": "topic",
                "name": "flights",
                "state": "changed",
                "fields": {"retention_ms": {"applied": 86_400_000, "present": 3_600_000}},
            }
        ],
    },
    "ExportList": {
        "exports": [
            {
                "name": "flights",
                "topic": "flights",
                "to": "lake.flights",
                "quarantine": "lake.flights_quarantine",
                "schema": "id BIGINT NOT NULL",
                "columns": ["append_time"],
                "rows": 118,
                "quarantined": 2,
                "offsets": {"flights@broker-a": 120},
                "behind": 3,
                "last_run_time": "2013-01-01T05:15:00.000000Z",
                "failure": None,
            }
        ]
    },
    "LocksGiven": {
        "partitions": ["flights@broker-a"],
        "locks": {"flights@broker-a": 12_884_901_889},
        "offsets": {"flights@broker-a": 120},
        "attempts": {"flights@broker-a": 1},
        "refused": [],
        "unanswered": [],
    },
    "LockAccount": {
        "holder": {"client": "worker-1", "joined": 7, "number": 12_884_901_889, "renewed_ms_ago": 8_200},
        "settles_in_ms": 0,
        "online_epoch": 12,
        "given": False,
        "void": False,
        "abandoned": False,
    },
    "HeartbeatAnswer": {
        "consume_strategy": "exclusive",
        "authorized_until_ms": 1_357_017_330_000,
        "authorized_ms": 30_000,
        "allocation": {"flights": ["flights@broker-a"]},
        "routes_epoch": 3,
        "allocation_epoch": 17,
    },
    "DeadLetters": {"group": "billing", "total": 1, "messages": [_DEAD_LETTER], "next_offset": None, "cursor": None},
    "Replayed": _REPLAYED,
    "DeletedLetters": {"deleted": 1, "duplicates": 0, "failed": _REPLAYED["failed"], "failed_total": 1},
    "DeadLetterCounts": {"group": "billing", **_COUNTS, "counts": [{"reason": "cannot be parsed", **_COUNTS}]},
    "ClusterInfo": _CLUSTER,
    "UpgradeInfo": {"on": [], "ready": [_FEATURE], "waiting": []},
    "RetentionInfo": {
        "topic": "flights",
        "retention_ms": 259_200_000,
        "retention_bytes": -1,
        "partitions": [
            {
                "partition": "flights@broker-a",
                "messages": 12_000,
                "bytes": 1_048_576,
                "due_messages": 0,
                "held_by": [],
                "next": {
                    "below": 4_000,
                    "messages": 4_000,
                    "bytes": 349_525,
                    "time": "2013-01-04T05:15:00Z",
                    "why": "age",
                },
            }
        ],
    },
    "HistoryAnswer": {
        "process": "0f6c1f6e",
        "metric": "lag",
        "step_ms": 15_000,
        "series": [
            {
                "metric": "lag",
                "labels": {"group": "billing", "topic": "flights"},
                "points": [["2013-01-01T05:15:00Z", 120.0], ["2013-01-01T05:15:15Z", 90.0]],
            }
        ],
    },
    "LogLevelInfo": {"logger": "deltamq.api", "level": "debug"},
    "SettingList": {
        "settings": [
            {
                "name": "service.port",
                "value": 8090,
                "default": 8080,
                "source": "environment variable DELTAMQ_SERVICE_PORT",
                "differs": True,
            }
        ]
    },
    "JobList": {"warehouse": "/var/lib/deltamq", "jobs": [_JOB]},
    "BrokerAccess": {"broker": "broker-a", **_CLOSED},
    "PrincipalList": {"principals": ["left", "reports"], "disabled": ["left"], "next": None},
    "PrincipalInfo": _PRINCIPAL,
    "KeyList": {"keys": [_KEY], "next": None},
    "NewKey": {**_KEY, "key": f"mqk_{_KEY['key_id']}_{'x' * 43}"},
    "AclList": {"acls": [_ACL], "next": None},
    "AclInfo": _ACL,
    "Explained": {
        "principal": "reports",
        "resource": "topic",
        "name": "orders.eu",
        "verb": "subscribe",
        "allowed": True,
        "rules": [_ACL],
        "disabled_time": None,
    },
    "QuotaInfo": _QUOTA,
    "SignInInfo": {
        "issuer": "https://idp.example.org",
        "client_id": "deltamq-console",
        "scope": "openid deltamq",
        "audience": None,
        "authorization_endpoint": "https://idp.example.org/authorize",
        "token_endpoint": "https://idp.example.org/token",
        "end_session_endpoint": "https://idp.example.org/logout",
    },
    "Allowed": {
        "principal": "reports",
        "cluster": [],
        "topic": ["subscribe", "describe"],
        "group": ["subscribe", "describe"],
    },
    "QuotaList": {"quotas": [_QUOTA], "next": None},
    "ActList": {"acts": [_ACT], "next": None},
    "RefusalList": {"refusals": [_REFUSAL], "next": 1_234},
    "PartitionAccess": {"topic": "flights", "partition": "flights@broker-a", **_CLOSED},
}


def add_examples(schemas: Json) -> None:
    """Add the examples to their schemas."""
    for name, example in _EXAMPLES.items():
        schemas[name]["examples"] = [example]
