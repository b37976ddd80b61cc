"""What `api.http_protocol` uses of uvicorn's inside: a new version that has it no more, or means something else by it,
must fail here and not under load."""

from __future__ import annotations

import ast
import contextlib
import http.client
import inspect
import json
import textwrap

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tests.api.running import Api


def _assigned(method: object) -> dict[str, str]:
    """The attributes of self that a method sets, with the source of their values."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))  # type: ignore[arg-type] # a function of uvicorn's
    return {
        target.attr: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute)
    }


def test_a_request_begins_in_the_state_that_an_answer_in_one_write_expects() -> None:
    cycle = _assigned(RequestResponseCycle.__init__)
    begins = {"disconnected": "False", "response_started": "False", "response_complete": "False"}
    assert {name: cycle[name] for name in begins} == begins
    assert {"keep_alive", "transport", "flow", "waiting_for_100_continue", "chunked_encoding"} <= cycle.keys()
    assert _assigned(FlowControl.__init__)["write_paused"] == "False"


def test_a_protocol_has_what_ours_builds_on() -> None:
    protocol = _assigned(HttpToolsProtocol.__init__) | _assigned(HttpToolsProtocol.connection_made)
    assert {"connections", "loop", "cycle", "scope", "transport"} <= protocol.keys()
    assert all(callable(getattr(HttpToolsProtocol, name)) for name in ("on_headers_complete", "send_400_response"))
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


def test_after_an_answer_in_one_write_the_connection_serves_the_next_request(api: Api, topic: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    with contextlib.closing(connection):
        for offset in range(3):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/v1/topics/{topic}/messages", b'{"messages":[{"body":"x"}]}', headers)
            socket = connection.sock
            answer = connection.getresponse()
            found = json.loads(answer.read())
            assert answer.status == 200 and found["ranges"][0]["count"] == 1, found
            assert connection.sock is socket is not None, f"closed after {offset} answers"
