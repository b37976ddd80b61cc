"""Kafka's numbers for errors, and which of ours becomes which."""

from __future__ import annotations

import enum
from typing import Final

from deltamq.mq.errors import (
    Corrupt,
    DeltaMQError,
    Fenced,
    Forbidden,
    NotFound,
    Overloaded,
    Refused,
    StorageFull,
    TooLarge,
    Unavailable,
)


class ErrorCode(enum.IntEnum):
    """The errors that the door answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


_BY_CODE: Final = {
    "corrupt_records": ErrorCode.CORRUPT_MESSAGE,
    "unsupported_records": ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    "invalid_record": ErrorCode.INVALID_RECORD,
    "sequence_gap": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "producer_epoch_old": ErrorCode.INVALID_PRODUCER_EPOCH,
    "transactions_unsupported": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "invalid_topic_name": ErrorCode.INVALID_TOPIC,
    "system_name": ErrorCode.INVALID_TOPIC,
    "topic_name_case": ErrorCode.INVALID_TOPIC,
    "topic_id_unknown": ErrorCode.UNKNOWN_TOPIC_ID,
    "leader_epoch_unknown": ErrorCode.UNKNOWN_LEADER_EPOCH,
    "offset_name_unknown": ErrorCode.UNSUPPORTED_VERSION,
    "invalid_assignment": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    "invalid_replication_factor": ErrorCode.INVALID_REPLICATION_FACTOR,
    "log_dir_not_found": ErrorCode.LOG_DIR_NOT_FOUND,
    "no_reassignment": ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    "invalid_principal_name": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    "unacceptable_password": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    "mechanism_unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    "password_not_found": ErrorCode.RESOURCE_NOT_FOUND,
    "user_twice": ErrorCode.DUPLICATE_RESOURCE,
    "resource_type_unknown": ErrorCode.UNSUPPORTED_VERSION,
    "principal_not_found": ErrorCode.RESOURCE_NOT_FOUND,
    "endpoint_type": ErrorCode.MISMATCHED_ENDPOINT_TYPE,
    "endpoint_type_unknown": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
    "strict_topic": ErrorCode.POLICY_VIOLATION,
    "unknown_member": ErrorCode.UNKNOWN_MEMBER_ID,
    "illegal_generation": ErrorCode.ILLEGAL_GENERATION,
    # The group's offsets were reset: a client that sends the same commit again would undo that.
    "epoch_over": ErrorCode.ILLEGAL_GENERATION,
    "rebalance_in_progress": ErrorCode.REBALANCE_IN_PROGRESS,
    "inconsistent_protocol": ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    "invalid_session_timeout": ErrorCode.INVALID_SESSION_TIMEOUT,
    "member_id_required": ErrorCode.MEMBER_ID_REQUIRED,
    "fenced_instance": ErrorCode.FENCED_INSTANCE_ID,
    "group_subscribed": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    "group_full": ErrorCode.GROUP_MAX_SIZE_REACHED,
    "group_not_found": ErrorCode.GROUP_ID_NOT_FOUND,
    "group_name_case": ErrorCode.INVALID_GROUP_ID,
    "group_not_shared": ErrorCode.INVALID_GROUP_ID,
    "invalid_group_name": ErrorCode.INVALID_GROUP_ID,
    "not_coordinator": ErrorCode.NOT_COORDINATOR,
    "offset_out_of_range": ErrorCode.OFFSET_OUT_OF_RANGE,
    "commit_metadata_too_large": ErrorCode.OFFSET_METADATA_TOO_LARGE,
    "invalid_acks": ErrorCode.INVALID_REQUIRED_ACKS,
    "invalid_config": ErrorCode.INVALID_CONFIG,
    "topic_exists": ErrorCode.TOPIC_ALREADY_EXISTS,
    "topic_static": ErrorCode.POLICY_VIOLATION,
    "topic_global": ErrorCode.POLICY_VIOLATION,
    "logic_offset_undecided": ErrorCode.LEADER_NOT_AVAILABLE,
    "partitions_out_of_range": ErrorCode.INVALID_PARTITIONS,
    "partitions_cannot_shrink": ErrorCode.INVALID_PARTITIONS,
    "partitions_cannot_grow": ErrorCode.INVALID_PARTITIONS,
    "partitioner_fixed": ErrorCode.INVALID_CONFIG,
}
#: The error for a principal without the right, by the kind of resource.
_FORBIDDEN: Final = {
    "topic": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "cluster": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
#: The classes whose errors have one meaning, the narrowest first. A client tries again after those from `Corrupt` on.
_BY_CLASS: Final = (
    (TooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (Refused, ErrorCode.INVALID_REQUEST),
    (Corrupt, ErrorCode.KAFKA_STORAGE_ERROR),
    (StorageFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (Fenced, ErrorCode.LEADER_NOT_AVAILABLE),
    (Overloaded, ErrorCode.REQUEST_TIMED_OUT),
    (Unavailable, ErrorCode.LEADER_NOT_AVAILABLE),
)


def error_code_of(error: DeltaMQError) -> ErrorCode:
    """Return Kafka's number for an error. An outcome that is not known makes the client repeat the request."""
    if error.code == "system_name" and isinstance(error, Refused) and error.field == "group":
        return ErrorCode.INVALID_GROUP_ID
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    if isinstance(error, Forbidden):
        return _FORBIDDEN.get(error.field or "", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    by_class = next((code for kind, code in _BY_CLASS if isinstance(error, kind)), None)
    return ErrorCode.REQUEST_TIMED_OUT if by_class is None else by_class


def group_code_of(error: DeltaMQError) -> ErrorCode:
    """Return the number of an error in the answer to a call of a group (SPEC KAFKA-9).

    Java's consumers end at a number that they do not expect there. After this one they look up the coordinator, and try
    again.
    """
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if _passes(error) else error_code_of(error)


def offset_code_of(error: DeltaMQError) -> ErrorCode:
    """Return the number of an error in the answer for a partition whose offsets are fetched."""
    return ErrorCode.UNSTABLE_OFFSET_COMMIT if _passes(error) else error_code_of(error)


def _passes(error: DeltaMQError) -> bool:
    """Whether the call may be answered later, by this process or by another."""
    code = error_code_of(error)
    return code in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT) or isinstance(error, StorageFull)
