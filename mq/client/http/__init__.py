"""Calls to the service: connections, attempts, the cluster's processes, errors."""

from __future__ import annotations

from deltamq.mq.client.http.after_failure import REQUEST_SIZE, TIMED_OUT, AfterFailure, certainly_not_applied, judge
from deltamq.mq.client.http.calls import Calls, ClientAccess, decoded, read_answer
from deltamq.mq.client.http.closing import Closing
from deltamq.mq.client.http.credentials import TOKEN_ENV
from deltamq.mq.client.http.endpoint import (
    CONNECT_FAILED,
    CONNECTION_LOST,
    NO_ANSWER,
    Answer,
    Body,
    Endpoint,
    Query,
    is_cut_short,
    lost_connection,
    path_of,
)
from deltamq.mq.client.http.forks import Birthplace, ForkedClient, in_child
from deltamq.mq.client.http.hosts import META, Hosts
from deltamq.mq.client.http.inside import Inside
from deltamq.mq.client.http.oidc import OidcClientCredentials
from deltamq.mq.client.http.problems import error_of
from deltamq.mq.client.http.retries import Attempts, Patience, asked_s, is_worth_retrying
from deltamq.mq.client.http.tls import CA_ENV, CERT_ENV, KEY_ENV
from deltamq.mq.client.http.typed_json import decode_as
from deltamq.mq.client.http.workers import Workers

__all__ = [
    "CA_ENV",
    "CERT_ENV",
    "CONNECTION_LOST",
    "CONNECT_FAILED",
    "KEY_ENV",
    "META",
    "NO_ANSWER",
    "REQUEST_SIZE",
    "TIMED_OUT",
    "TOKEN_ENV",
    "AfterFailure",
    "Answer",
    "Attempts",
    "Birthplace",
    "Body",
    "Calls",
    "ClientAccess",
    "Closing",
    "Endpoint",
    "ForkedClient",
    "Hosts",
    "Inside",
    "OidcClientCredentials",
    "Patience",
    "Query",
    "Workers",
    "asked_s",
    "certainly_not_applied",
    "decode_as",
    "decoded",
    "error_of",
    "in_child",
    "is_cut_short",
    "is_worth_retrying",
    "judge",
    "lost_connection",
    "path_of",
    "read_answer",
]
