"""The calls that the door answers, the versions that it offers, and the frames around them.

    frame     length (4)  key (2)  version (2)  correlation id (4)  client id  [tags]  request
    answer    length (4)                        correlation id (4)             [tags]  response

Versions end where those of Kafka 4.3 do, for most calls.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from deltamq.api.kafka.messages.cluster_messages import (
    AlterConfigsRequest,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    MetadataRequest,
)
from deltamq.api.kafka.messages.codec import Message, Parts, Reader, malformed, read_message, write_message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from deltamq.api.kafka.messages.log_messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DeleteRecordsRequest,
    ElectLeadersRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

_HEAD: Final = struct.Struct(">hhi")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Api:
    """One call: its number, the versions that the door has, the first flexible one, its request."""

    key: int
    low: int
    high: int
    flexible: int
    request: type[Message]

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible


API_VERSIONS: Final = 18
#: Of calls whose flexible versions are not offered.
_NEVER: Final = 1 << 15
APIS: Final = {
    api.key: api
    for api in (
        Api(0, 3, 13, 9, ProduceRequest),
        Api(1, 4, 18, 12, FetchRequest),
        Api(2, 1, 11, 6, ListOffsetsRequest),
        Api(3, 0, 13, 9, MetadataRequest),
        Api(8, 2, 10, 8, OffsetCommitRequest),
        Api(9, 1, 10, 6, OffsetFetchRequest),
        Api(10, 0, 6, 3, FindCoordinatorRequest),
        Api(11, 0, 9, 6, JoinGroupRequest),
        Api(12, 0, 4, 4, HeartbeatRequest),
        Api(13, 0, 5, 4, LeaveGroupRequest),
        Api(14, 0, 5, 4, SyncGroupRequest),
        Api(15, 0, 6, 5, DescribeGroupsRequest),
        Api(16, 0, 5, 3, ListGroupsRequest),
        # Version 0 would be followed by messages without frames of their own.
        Api(17, 1, 1, _NEVER, SaslHandshakeRequest),
        Api(API_VERSIONS, 0, 4, 3, ApiVersionsRequest),
        Api(19, 2, 7, 5, CreateTopicsRequest),
        Api(20, 1, 6, 4, DeleteTopicsRequest),
        Api(21, 0, 2, 2, DeleteRecordsRequest),
        Api(22, 0, 6, 2, InitProducerIdRequest),
        Api(23, 2, 4, 4, OffsetForLeaderEpochRequest),
        Api(32, 1, 4, 4, DescribeConfigsRequest),
        Api(33, 0, 2, 2, AlterConfigsRequest),
        Api(34, 1, 2, 2, AlterReplicaLogDirsRequest),
        Api(35, 1, 5, 2, DescribeLogDirsRequest),
        Api(36, 0, 2, 2, SaslAuthenticateRequest),
        Api(37, 0, 3, 2, CreatePartitionsRequest),
        Api(42, 0, 2, 2, DeleteGroupsRequest),
        Api(43, 0, 2, 2, ElectLeadersRequest),
        Api(44, 0, 1, 1, IncrementalAlterConfigsRequest),
        Api(45, 0, 1, 0, AlterPartitionReassignmentsRequest),
        Api(46, 0, 0, 0, ListPartitionReassignmentsRequest),
        Api(47, 0, 0, _NEVER, OffsetDeleteRequest),
        Api(48, 0, 1, 1, DescribeClientQuotasRequest),
        Api(49, 0, 1, 1, AlterClientQuotasRequest),
        Api(50, 0, 0, 0, DescribeUserScramCredentialsRequest),
        Api(51, 0, 0, 0, AlterUserScramCredentialsRequest),
        Api(60, 0, 2, 0, DescribeClusterRequest),
        Api(74, 0, 1, 0, ListConfigResourcesRequest),
        Api(75, 0, 0, 0, DescribeTopicPartitionsRequest),
    )
}


class Frame(NamedTuple):
    """A request with its header."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    request: Message

    @property
    def is_known(self) -> bool:
        """Whether the version is one of those that are offered."""
        return self.api.low <= self.version <= self.api.high


def read_frame(data: bytes | memoryview) -> Frame:
    """Return the request in a frame, without the frame's length.

    A version of ApiVersions that is not known is read as an empty request of that version: the answer says which ones
    there are (KIP-511).

    Raises
    ------
    Refused
        `malformed_request`: it is no request, or of a call or version that was not offered.
    """
    reader = Reader(memoryview(data))
    key, version, correlation_id = _HEAD.unpack(reader.take(_HEAD.size))
    api = APIS.get(key)
    if api is None:
        raise malformed(f"call {key} is not offered")
    if not api.low <= version <= api.high:
        if key == API_VERSIONS:
            return Frame(api, version, correlation_id, None, ApiVersionsRequest())
        raise malformed(f"version {version} of call {key} is not offered")
    client_id = _client_id(reader)
    flexible = api.is_flexible(version)
    if flexible:
        reader.tags()
    return Frame(api, version, correlation_id, client_id, read_message(api.request, reader, version, flexible=flexible))


def _client_id(reader: Reader) -> str | None:
    """Return the client's id; its length has two bytes in every version."""
    size = reader.number(_SHORT)
    return None if size < 0 else str(reader.take(size), "utf-8", "replace")


def answer_frame(frame: Frame, response: Message) -> Parts:
    """Return an answer in pieces, with its length in front."""
    version = frame.version if frame.is_known else 0
    flexible = frame.api.is_flexible(version)
    parts: Parts = [b"", _INT.pack(frame.correlation_id)]
    if flexible and frame.api.key != API_VERSIONS:  # whose reader does not know yet what the service understands
        parts.append(b"\x00")
    write_message(parts, response, version, flexible=flexible)
    parts[0] = _INT.pack(sum(map(len, parts)))
    return parts


def offered() -> ApiVersionsResponse:
    """Return the calls and versions that the door has."""
    return ApiVersionsResponse(ErrorCode.NONE, [ApiVersion(api.key, api.low, api.high) for api in APIS.values()])


def unknown_version() -> ApiVersionsResponse:
    """Return the answer, in version 0, to a version of ApiVersions that is not known."""
    return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, offered().api_keys)
