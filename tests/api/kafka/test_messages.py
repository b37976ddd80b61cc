"""Requests and answers against kio, which is generated from Kafka's own definitions (SPEC KAFKA-1)."""

from __future__ import annotations

import io
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from deltamq.api.kafka.messages.apis import (
    API_VERSIONS,
    APIS,
    Frame,
    answer_frame,
    offered,
    read_frame,
    unknown_version,
)
from deltamq.api.kafka.messages.cluster_messages import MetadataRequest
from deltamq.api.kafka.messages.codec import ELEMENTS_MAX, At, Message, Reader, Uuid, read_message, write_message
from deltamq.mq.errors import DeltaMQError
from tests.api.kafka.responses import RESPONSES

VERSIONS = [(key, version) for key, api in APIS.items() for version in range(api.low, api.high + 1)]
#: Numbers that kio turns into values of a kind of their own, which not every number is.
SMALL = {
    "error_code": 3,
    "throttle_ms": 5,
    "timeout_ms": 6,
    "log_append_time_ms": -1,
    "transaction_timeout_ms": 8,
    "session_timeout_ms": 4,
    "rebalance_timeout_ms": 4,
    "retention_time_ms": 4,
}


def _filled(kind: type[Message], version: int) -> Message:
    """Return a message with a value in every field that the version has."""
    return kind(
        **{
            name: _value(name, hint, version)
            for name, hint in get_type_hints(kind, include_extras=True).items()
            if _has(hint, version)
        }
    )


def _has(hint, version: int) -> bool:
    at = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, At)), At(0))
    return at.since <= version <= at.until


def _value(name: str, hint, version: int):
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if Uuid.__metadata__[0] in getattr(hint, "__metadata__", ()):
        return bytes(range(16))
    options = [one for one in get_args(plain) if one is not type(None)]
    if get_origin(plain) is list:
        return [_value(name, get_args(plain)[0], version) for _ in range(2)]
    if plain is bool:
        return True
    if plain is int:
        return SMALL.get(name, 7)
    if plain is float:
        return 7.5
    if plain is str or str in options:
        return f"the {name}"
    if bytes in options:
        return b"some bytes"
    return _value(name, options[0], version) if options else _filled(plain, version)


def _bytes(message: Message, version: int, flexible: bool) -> bytes:
    parts = []
    write_message(parts, message, version, flexible=flexible)
    return b"".join(parts)


def _by_kio(schema, data: bytes) -> bytes:
    """Return what kio writes of what it read; all of the data must be read."""
    entity, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    out = io.BytesIO()
    entity_writer(schema)(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("key", APIS)
def test_kafka_01_each_call_is_served_up_to_kafkas_newest_version(key: int) -> None:
    load_request_schema(key, APIS[key].high)
    with pytest.raises(KioIndexError):
        load_request_schema(key, APIS[key].high + 1)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_kafka_01_every_answer_of_every_version_is_what_kafkas_definitions_say(key, version) -> None:
    data = _bytes(_filled(RESPONSES[key], version), version, APIS[key].is_flexible(version))
    assert _by_kio(load_response_schema(key, version), data) == data


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_kafka_01_every_request_of_every_version_is_what_kafkas_definitions_say(key, version) -> None:
    flexible = APIS[key].is_flexible(version)
    request = _filled(APIS[key].request, version)
    data = _bytes(request, version, flexible)
    assert _by_kio(load_request_schema(key, version), data) == data
    reader = Reader(memoryview(data))
    assert read_message(APIS[key].request, reader, version, flexible=flexible) == request
    assert reader.at == len(data)


def _frame(key: int, version: int) -> bytes:
    flexible = APIS[key].is_flexible(version)
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x2a" + b"\x00\x03abc"
    return head + (b"\x00" if flexible else b"") + _bytes(_filled(APIS[key].request, version), version, flexible)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_kafka_06_a_request_that_is_cut_off_anywhere_is_malformed(key, version) -> None:
    data = _frame(key, version)
    assert read_frame(data).client_id == "abc"
    for end in range(len(data)):
        with pytest.raises(DeltaMQError) as error:
            read_frame(data[:end])
        assert error.value.code == "malformed_request"


@given(st.sampled_from(VERSIONS), st.data())
def test_kafka_06_lies_in_a_request_are_found_or_harmless(of, data) -> None:
    raw = bytearray(_frame(*of))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_frame(bytes(raw))
    except DeltaMQError as error:
        assert error.code == "malformed_request"


@given(st.binary(max_size=200))
def test_kafka_06_any_bytes_are_a_request_or_malformed(data) -> None:
    try:
        read_frame(data)
    except DeltaMQError as error:
        assert error.code == "malformed_request"


def test_kafka_06_an_array_that_says_it_is_huge_is_refused_before_it_is_made() -> None:
    head = b"\x00\x03\x00\x01\x00\x00\x00\x2a\xff\xff"  # Metadata 1
    for count in (b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"):
        with pytest.raises(DeltaMQError, match="too many"):
            read_frame(head + count + b"\x00" * (2 << 20))


def test_kafka_06_tagged_fields_count_among_the_elements_of_a_frame() -> None:
    head = b"\x00\x03\x00\x09\x00\x00\x00\x2a\xff\xff"  # Metadata 9

    def tags(count: int) -> bytes:
        return bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14]) + b"\x00\x00" * count

    request = b"\x00" + b"\x00\x00\x00"  # all topics
    half = ELEMENTS_MAX // 2
    assert read_frame(head + tags(half) + request + tags(half)).request == MetadataRequest(None, False, False, False)
    with pytest.raises(DeltaMQError, match="too many tagged fields"):
        read_frame(head + tags(half) + request + tags(half + 1))


def test_kafka_01_an_unknown_version_of_api_versions_is_told_the_known_ones_in_version_0() -> None:
    frame = read_frame(API_VERSIONS.to_bytes(2, "big") + b"\x00\x63\x00\x00\x00\x2a\xff\xff")
    assert not frame.is_known
    data = b"".join(answer_frame(frame, unknown_version()))
    assert data[4:8] == b"\x00\x00\x00\x2a"
    answer, _ = entity_reader(load_response_schema(API_VERSIONS, 0))(data[8:], 0)
    assert int(answer.error_code) == 35
    assert {int(one.api_key) for one in answer.api_keys} == set(APIS)


def test_kafka_01_the_answer_to_api_versions_has_no_tags_in_its_header() -> None:
    data = b"".join(answer_frame(Frame(APIS[API_VERSIONS], 3, 7, None, APIS[API_VERSIONS].request()), offered()))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    _, size = entity_reader(load_response_schema(API_VERSIONS, 3))(data[8:], 0)
    assert size == len(data) - 8
