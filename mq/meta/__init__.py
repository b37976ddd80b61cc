"""The metadata log's events and their fold: topics, groups, brokers, moved keys, online clients, retention."""

from __future__ import annotations

from mq.meta.allocation import STRATEGIES, Strategy
from mq.meta.brokers import (
    META_ROLE,
    BrokersState,
    Host,
    LeaseWatch,
    OwnLease,
    check_role,
    decide_give_back,
    decide_leave,
    decide_register,
    decide_renew,
    decide_takeover,
)
from mq.meta.fold import AnyEvent, Meta, event_from_json, event_to_json, parts_told
from mq.meta.group import (
    Group,
    GroupEvent,
    GroupsState,
    decide_begin,
    decide_delete_group,
    decide_put_group,
    decide_reset_offsets,
)
from mq.meta.group_settings import ConsumeStrategy, GroupRequest, GroupSettings, InvisibleBounds, Ordering
from mq.meta.lane_keys import lanes_of
from mq.meta.moved_keys import Blocked, MovedKeys, MoveEvent, decide_seal, first_blocked, moves_of
from mq.meta.online import Member, Seat, TopicPartitions, decide_heartbeat, decide_scan
from mq.meta.online_events import OnlineEvent, Subscription
from mq.meta.reset import decide_reset
from mq.meta.retention import (
    Dated,
    Hold,
    Lag,
    Readers,
    Verdict,
    checkpoint_holds,
    decide_removal,
    group_holds,
    is_old,
    lags_of,
    lease_holds,
    progress_of,
    readers_of,
)
from mq.meta.snapshot import Snapshot
from mq.meta.topic_settings import TopicRequest, TopicSettings
from mq.meta.topics import Event, MetaState, Topic, TopicPut, brokers_for, decide_delete_topic, decide_put_topic

__all__ = [
    "META_ROLE",
    "STRATEGIES",
    "AnyEvent",
    "Blocked",
    "BrokersState",
    "ConsumeStrategy",
    "Dated",
    "Event",
    "Group",
    "GroupEvent",
    "GroupRequest",
    "GroupSettings",
    "GroupsState",
    "Hold",
    "Host",
    "InvisibleBounds",
    "Lag",
    "LeaseWatch",
    "Member",
    "Meta",
    "MetaState",
    "MoveEvent",
    "MovedKeys",
    "OnlineEvent",
    "Ordering",
    "OwnLease",
    "Readers",
    "Seat",
    "Snapshot",
    "Strategy",
    "Subscription",
    "Topic",
    "TopicPartitions",
    "TopicPut",
    "TopicRequest",
    "TopicSettings",
    "Verdict",
    "brokers_for",
    "check_role",
    "checkpoint_holds",
    "decide_begin",
    "decide_delete_group",
    "decide_delete_topic",
    "decide_give_back",
    "decide_heartbeat",
    "decide_leave",
    "decide_put_group",
    "decide_put_topic",
    "decide_register",
    "decide_removal",
    "decide_renew",
    "decide_reset",
    "decide_reset_offsets",
    "decide_scan",
    "decide_seal",
    "decide_takeover",
    "event_from_json",
    "event_to_json",
    "first_blocked",
    "group_holds",
    "is_old",
    "lags_of",
    "lanes_of",
    "lease_holds",
    "moves_of",
    "parts_told",
    "progress_of",
    "readers_of",
]
