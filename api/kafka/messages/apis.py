"""The calls that the door answers, the versions that it offers, and the frames around them.

    frame     length (4)  key (2)  version (2)  correlation id (4)  client id  [tags]  request
    answer    length (4)                        correlation id (4)             [tags]  response

For most calls, the newest version is the newest one of Kafka 4.3.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from deltamq.api.kafka.messages import cluster_messages as cluster
from deltamq.api.kafka.messages import group_messages as group
from deltamq.api.kafka.messages import log_messages as log
from deltamq.api.kafka.messages import user_messages as user
from deltamq.api.kafka.messages.codec import Message, Parts, Reader, malformed, read_message, write_message
from deltamq.api.kafka.messages.errors import ErrorCode

_HEAD: Final = struct.Struct(">hhi")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


class Api(msgspec.Struct, frozen=True):
    """One call: its number, the versions that the door has, the first flexible one, its request, and what it needs.

    `needs` has the words of `api/auth/calls.py`: "any" is a principal with any grant, "open" needs no authentication.
    """

    key: int
    low: int
    high: int
    flexible: int
    request: type[Message]
    needs: str

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible


API_VERSIONS: Final = 18
#: Of calls whose flexible versions are not offered.
_NEVER: Final = 1 << 15
APIS: Final = {
    api.key: api
    for api in (
        Api(0, 3, 13, 9, log.ProduceRequest, "topic publish"),
        Api(1, 4, 18, 12, log.FetchRequest, "topic subscribe"),
        Api(2, 1, 11, 6, log.ListOffsetsRequest, "topic describe"),
        Api(3, 0, 13, 9, cluster.MetadataRequest, "topic describe"),  # a topic that is made meanwhile needs `create`
        Api(8, 2, 10, 8, group.OffsetCommitRequest, "group subscribe, topic subscribe"),
        Api(9, 1, 10, 6, group.OffsetFetchRequest, "group describe, topic describe"),
        Api(10, 0, 6, 3, group.FindCoordinatorRequest, "group describe"),
        Api(11, 0, 9, 6, group.JoinGroupRequest, "group subscribe"),
        Api(12, 0, 4, 4, group.HeartbeatRequest, "group subscribe"),
        Api(13, 0, 5, 4, group.LeaveGroupRequest, "group subscribe"),
        Api(14, 0, 5, 4, group.SyncGroupRequest, "group subscribe"),
        Api(15, 0, 6, 5, group.DescribeGroupsRequest, "group describe"),
        Api(16, 0, 5, 3, group.ListGroupsRequest, "any"),
        # Version 0 is refused (`Session.handshake`); librdkafka 2.0 takes a service without it for one without SASL.
        Api(17, 0, 1, _NEVER, user.SaslHandshakeRequest, "open"),
        Api(API_VERSIONS, 0, 4, 3, cluster.ApiVersionsRequest, "open"),
        Api(19, 2, 7, 5, cluster.CreateTopicsRequest, "topic create"),
        Api(20, 1, 6, 4, cluster.DeleteTopicsRequest, "topic delete"),
        Api(21, 0, 2, 2, log.DeleteRecordsRequest, "topic delete"),
        Api(22, 0, 6, 2, log.InitProducerIdRequest, "any"),
        Api(23, 2, 4, 4, log.OffsetForLeaderEpochRequest, "topic describe"),
        Api(32, 1, 4, 4, cluster.DescribeConfigsRequest, "topic describe"),
        Api(33, 0, 2, 2, cluster.AlterConfigsRequest, "topic alter"),
        Api(34, 1, 2, 2, log.AlterReplicaLogDirsRequest, "topic alter"),
        Api(35, 1, 5, 2, cluster.DescribeLogDirsRequest, "any"),  # it shows what may be described
        Api(36, 0, 2, 2, user.SaslAuthenticateRequest, "open"),
        Api(37, 0, 3, 2, cluster.CreatePartitionsRequest, "topic alter"),
        Api(42, 0, 2, 2, group.DeleteGroupsRequest, "group delete"),
        Api(43, 0, 2, 2, log.ElectLeadersRequest, "topic alter"),
        Api(44, 0, 1, 1, cluster.IncrementalAlterConfigsRequest, "topic alter"),
        Api(45, 0, 1, 0, log.AlterPartitionReassignmentsRequest, "topic alter"),
        Api(46, 0, 0, 0, log.ListPartitionReassignmentsRequest, "any"),
        Api(47, 0, 0, _NEVER, group.OffsetDeleteRequest, "group reset, topic describe"),
        Api(48, 0, 1, 1, user.DescribeClientQuotasRequest, "cluster admin"),
        Api(49, 0, 1, 1, user.AlterClientQuotasRequest, "cluster admin"),
        Api(50, 0, 0, 0, user.DescribeUserScramCredentialsRequest, "cluster admin"),
        Api(51, 0, 0, 0, user.AlterUserScramCredentialsRequest, "cluster admin"),
        Api(55, 0, 2, 0, cluster.DescribeQuorumRequest, "any"),
        Api(60, 0, 2, 0, cluster.DescribeClusterRequest, "any"),
        Api(74, 0, 1, 0, cluster.ListConfigResourcesRequest, "any"),  # it shows what may be described
        Api(75, 0, 0, 0, cluster.DescribeTopicPartitionsRequest, "topic describe"),
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
        """Whether the version is offered."""
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
            return Frame(api, version, correlation_id, None, cluster.ApiVersionsRequest())
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


def offered() -> cluster.ApiVersionsResponse:
    """Return the calls and versions that the door has."""
    return cluster.ApiVersionsResponse(
        ErrorCode.NONE, [cluster.ApiVersion(api.key, api.low, api.high) for api in APIS.values()]
    )


def unknown_version() -> cluster.ApiVersionsResponse:
    """Return the answer, in version 0, to a version of ApiVersions that is not known."""
    return cluster.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, offered().api_keys)
