"""A client of the Kafka door that sends one call after another, for what no other client would send."""

from __future__ import annotations

import functools
import hashlib
import hmac
import socket
import ssl
from base64 import b64decode, b64encode
from typing import Any

from deltamq.api.kafka.messages.apis import APIS, Frame, answer_frame
from deltamq.api.kafka.messages.codec import Message, Parts, Reader, read_message, write_message
from deltamq.api.kafka.messages.user_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.api.kafka.responses import RESPONSES

__all__ = ["RawClient", "framed"]

_KEYS = {api.request: api.key for api in APIS.values()}
#: The newest version of those calls whose later ones name topics by their ids alone, or several groups (OffsetFetch).
_BY_NAME = {0: 12, 1: 12, 8: 9, 9: 7, 20: 5}


@functools.cache
def _context(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def framed(request: Message, version: int | None = None, client_id: str | None = None) -> tuple[Frame, bytes]:
    """Return a call, by default in the newest version that names topics, as a frame and as the bytes that are sent."""
    api = APIS[_KEYS[type(request)]]
    name = b"" if client_id is None else client_id.encode()
    named = (-1 if client_id is None else len(name)).to_bytes(2, "big", signed=True) + name
    frame = Frame(api, _BY_NAME.get(api.key, api.high) if version is None else version, 7, client_id, request)
    flexible = api.is_flexible(frame.version)
    parts: Parts = [b"\x00" if flexible else b""]
    write_message(parts, request, frame.version, flexible=flexible)
    head = api.key.to_bytes(2, "big") + frame.version.to_bytes(2, "big") + b"\0\0\0\7" + named
    body = head + b"".join(bytes(part) for part in parts)
    return frame, len(body).to_bytes(4, "big") + body


class RawClient:
    """One connection; `ask` sends a call and returns its answer."""

    def __init__(self, port: int, ca: str | None = None, client_id: str | None = None) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if ca is not None:
            self.socket = _context(ca).wrap_socket(self.socket, server_hostname="127.0.0.1")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: Message, version: int | None = None) -> Frame:
        """Send a call, by default in the newest version that names topics."""
        frame, data = framed(request, version, self.client_id)
        self.socket.sendall(data)
        return frame

    def receive(self, frame: Frame) -> Any:
        """Return the answer to a call."""
        size = int.from_bytes(self._exactly(4), "big")
        reader = Reader(memoryview(self._exactly(size)))
        head = len(b"".join(bytes(part) for part in answer_frame(frame, _Nothing()))) - 4
        flexible = frame.api.is_flexible(frame.version)
        reader.take(head - (1 if flexible else 0))  # an empty message has its tags
        return read_message(RESPONSES[frame.api.key], reader, frame.version, flexible=flexible)

    def ask(self, request: Message, version: int | None = None) -> Any:
        """Send a call and return its answer."""
        return self.receive(self.send(request, version))

    def is_closed(self, within_s: float) -> bool:
        """Whether the service closes the connection within this time, without another answer."""
        self.socket.settimeout(within_s)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            if not more:
                raise ConnectionResetError("the service has closed the connection")
            found += more
        return found

    # Authentication.

    def plain(self, user: str, token: str) -> Any:
        """Authenticate by PLAIN; return the last answer."""
        self.ask(SaslHandshakeRequest("PLAIN"))
        return self.ask(SaslAuthenticateRequest(f"\0{user}\0{token}".encode()))

    def bearer(self, token: str) -> Any:
        """Authenticate by OAUTHBEARER; return the last answer."""
        self.ask(SaslHandshakeRequest("OAUTHBEARER"))
        return self.ask(SaslAuthenticateRequest(f"n,,\1auth=Bearer {token}\1\1".encode()))

    def scram(self, user: str, token: str, hash_name: str = "sha256") -> Any:
        """Authenticate by SCRAM; return the last answer, after the service's proof was checked."""
        self.ask(SaslHandshakeRequest(f"SCRAM-SHA-{hash_name[3:]}"))
        bare = f"n={user},r=abc"
        first = self.ask(SaslAuthenticateRequest(f"n,,{bare}".encode()))
        if first.error_code:
            return first
        challenge = bytes(first.auth_bytes).decode()
        said = dict(pair.split("=", 1) for pair in challenge.split(","))
        salted = hashlib.pbkdf2_hmac(hash_name, token.encode(), b64decode(said["s"]), int(said["i"]))
        message = f"{bare},{challenge},c=biws,r={said['r']}".encode()
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), message, hash_name)
        proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
        last = self.ask(SaslAuthenticateRequest(f"c=biws,r={said['r']},p={proof}".encode()))
        if not last.error_code:
            server = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), message, hash_name)
            assert bytes(last.auth_bytes) == b"v=" + b64encode(server)
        return last


class _Nothing(Message):
    """An answer without fields, to see how long an answer's header is."""
