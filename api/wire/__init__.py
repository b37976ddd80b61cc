"""Requests and answers: bodies are decoded and checked, answers and problem documents are built."""

from __future__ import annotations

from deltamq.api.wire.access_fields import AccessAsked, AccessFields
from deltamq.api.wire.answer import SECURITY_HEADERS, WRITE_WHOLE, Answer, Header, send_answer
from deltamq.api.wire.arrow_body import decode_arrow
from deltamq.api.wire.arrow_pieces import ArrowPieces
from deltamq.api.wire.dead_letter_json import dead_letters
from deltamq.api.wire.decoded import Decoded, Named
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.json_rows import decode_json, decode_ndjson
from deltamq.api.wire.message_filter import message_filter
from deltamq.api.wire.message_json import json_columns, stored_messages
from deltamq.api.wire.openapi_parts import (
    GROUP_PATTERN,
    PROBLEM,
    REF,
    TOPIC_PATTERN,
    Json,
    header,
    name_in_path,
    problem,
    problems,
    query,
    schema_of,
    whole,
)
from deltamq.api.wire.paging import After, Limit, page
from deltamq.api.wire.pop_request import BODY_BYTES_MAX, decode, decode_pop
from deltamq.api.wire.problem_documents import answer_of, as_deltamq_error, install, method_not_allowed
from deltamq.api.wire.repeated_calls import RepeatedCalls
from deltamq.api.wire.request import (
    ALSO_NEEDS,
    HALF_CLOSED,
    REFUSAL,
    WATCH,
    Admission,
    Client,
    ClientDisconnected,
    Headers,
    Receive,
    Scope,
    Send,
    Ticket,
    accepts,
    body_too_slow,
    header_text,
    headers_of,
    integer,
    media_type,
    one_of,
    parse_query,
    read_body,
    unquoted,
)
from deltamq.api.wire.route_batch import (
    PartitionShare,
    bound_to,
    check_named,
    check_same_request,
    first_held_back,
    replayed,
    rerouted,
    route_messages,
)
from deltamq.api.wire.rows import ArrowRows, Indexes, Rows, to_record_batch
from deltamq.api.wire.shown_rows import shown_offsets, shown_origins
from deltamq.api.wire.times import parse_time, rfc3339

__all__ = [
    "ALSO_NEEDS",
    "BODY_BYTES_MAX",
    "GROUP_PATTERN",
    "HALF_CLOSED",
    "PROBLEM",
    "REF",
    "REFUSAL",
    "SECURITY_HEADERS",
    "TOPIC_PATTERN",
    "WATCH",
    "WRITE_WHOLE",
    "AccessAsked",
    "AccessFields",
    "Admission",
    "After",
    "Answer",
    "ArrowPieces",
    "ArrowRows",
    "Client",
    "ClientDisconnected",
    "Decoded",
    "Header",
    "Headers",
    "Indexes",
    "Json",
    "JsonBody",
    "Limit",
    "Named",
    "PartitionShare",
    "Receive",
    "RepeatedCalls",
    "Rows",
    "Scope",
    "Send",
    "Ticket",
    "accepts",
    "answer_of",
    "as_deltamq_error",
    "body_too_slow",
    "bound_to",
    "check_named",
    "check_same_request",
    "dead_letters",
    "decode",
    "decode_arrow",
    "decode_json",
    "decode_ndjson",
    "decode_pop",
    "first_held_back",
    "header",
    "header_text",
    "headers_of",
    "install",
    "integer",
    "json_columns",
    "media_type",
    "message_filter",
    "method_not_allowed",
    "name_in_path",
    "one_of",
    "page",
    "parse_query",
    "parse_time",
    "problem",
    "problems",
    "query",
    "read_body",
    "replayed",
    "rerouted",
    "rfc3339",
    "route_messages",
    "schema_of",
    "send_answer",
    "shown_offsets",
    "shown_origins",
    "stored_messages",
    "to_record_batch",
    "unquoted",
    "whole",
]
