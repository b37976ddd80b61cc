"""A real Kerberos realm in a folder, and clients of it: MIT's KDC on a port of its own.

Debian has the programs in `krb5-kdc`, `krb5-admin-server` and `krb5-user`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from deltamq.api.kafka.access import gssapi
from deltamq.api.kafka.messages.user_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.api.kafka.raw_client import RawClient
from tests.free_ports import free_port

__all__ = ["MISSING", "Client", "Realm", "show_ticket", "the_realm"]

_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
#: The programs that are not there; empty if a realm can be made here.
MISSING: Final = ", ".join(one for one in _PROGRAMS if shutil.which(one, path=_PATH) is None)

_CONFIG: Final = """\
[libdefaults]
    default_realm = {realm}
    clockskew = {skew_s}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {realm}
"""
_KDC: Final = """\
[kdcdefaults]
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {folder}/principals
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
    }}
"""
_INITIATE, _MUTUAL = 1, 2


class Realm(msgspec.Struct, frozen=True):
    """A realm; `env` is the environment of programs that use it.

    With `strict.conf` in its folder as `KRB5_CONFIG` clocks may differ by 2 s, not 5 minutes, until a ticket is over.
    """

    name: str
    folder: Path
    env: dict[str, str]

    def keytab(self, file: str, *principals: str) -> str:
        """Make principals with new keys, or new keys of theirs; return the keytab that has them."""
        path = self.folder / file
        for principal in principals:
            self._admin(f"addprinc -randkey {principal}")
            self._admin(f"ktadd -k {path} {principal}")
        return str(path)

    def tickets(self, keytab: str, principal: str, *, seconds: int = 3_600) -> str:
        """Return a new cache with a ticket of a client."""
        cache = self.folder / f"tickets-{time.monotonic_ns()}"
        self.run("kinit", "-l", f"{seconds}s", "-k", "-t", keytab, "-c", str(cache), principal)
        return str(cache)

    def _admin(self, query: str) -> None:
        self.run("kadmin.local", "-r", self.name, "-q", query)

    def run(self, *command: str) -> None:
        """Run a program."""
        env = {**os.environ, **self.env, "PATH": _PATH}
        subprocess.run(command, env=env, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def the_realm(folder: Path, name: str = "EXAMPLE") -> Iterator[Realm]:
    """Run a KDC until the block ends; this process' own calls are of its realm meanwhile."""
    port = free_port()
    for file, skew_s in (("krb5.conf", 300), ("strict.conf", 2)):
        (folder / file).write_text(_CONFIG.format(realm=name, port=port, skew_s=skew_s))
    (folder / "kdc.conf").write_text(_KDC.format(realm=name, port=port, folder=folder))
    env = {"KRB5_CONFIG": str(folder / "krb5.conf"), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
    realm = Realm(name, folder, {**env, "KRB5RCACHEDIR": str(folder)})
    realm.run("kdb5_util", "create", "-s", "-r", name, "-P", "master")
    with (folder / "kdc.log").open("wb") as log, mock.patch.dict(os.environ, realm.env):
        command = [str(shutil.which("krb5kdc", path=_PATH)), "-n", "-r", name]
        kdc = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PATH": _PATH})
        try:
            while b"starting" not in (folder / "kdc.log").read_bytes():
                assert kdc.poll() is None, (folder / "kdc.log").read_text()
                time.sleep(0.02)
            yield realm
        finally:
            kdc.terminate()
            kdc.wait()


class Client(gssapi.Context):
    """The other end of a context: it shows the tickets of a cache to a service, `kafka@HOST`."""

    def __init__(self, tickets: str, service: str = "kafka@localhost", *, flags: int = _MUTUAL) -> None:
        pair = gssapi._Pair(b"ccache", tickets.encode())
        self._handle, self._flags = ctypes.c_void_p(), flags
        self._own, self._target = ctypes.c_void_p(), ctypes.c_void_p()
        store = gssapi._Pairs(1, ctypes.pointer(pair))
        gssapi._call("gss_acquire_cred_from", None, 0, None, _INITIATE, store, self._own, None, None)
        gssapi._call("gss_import_name", gssapi._buffer(service.encode()), gssapi._SERVICE, self._target)
        self.is_complete = False

    def accept(self, token: bytes = b"") -> bytes:
        """Take the service's next message; return the client's."""
        answer, minor = gssapi._Buffer(), ctypes.c_uint32()
        function: Any = gssapi._library().gss_init_sec_context
        function.restype = ctypes.c_uint32
        status = function(
            *(ctypes.byref(minor), self._own, ctypes.byref(self._handle), self._target),
            *(ctypes.byref(gssapi._KERBEROS), ctypes.c_uint32(self._flags), ctypes.c_uint32(0), None),
            *(ctypes.byref(gssapi._buffer(token)), None, ctypes.byref(answer), None, None),
        )
        assert not status & 0xFFFF0000, gssapi._texts(minor.value, 2)
        self.is_complete = not status
        return gssapi._taken(answer)


def show_ticket(client: RawClient, ticket: Client, last: bytes = b"\x01\0\0\0") -> Any:
    """Authenticate by GSSAPI; return the last answer. `last` says which layer, and for whom the client acts."""
    client.ask(SaslHandshakeRequest("GSSAPI"))
    answer = client.ask(SaslAuthenticateRequest(ticket.accept()))
    if answer.error_code:
        return answer
    if not ticket.is_complete:
        said = ticket.accept(bytes(answer.auth_bytes))
        assert said == b""
        answer = client.ask(SaslAuthenticateRequest(b""))
    assert ticket.unwrap(bytes(answer.auth_bytes)) == b"\x01\0\0\0"
    return client.ask(SaslAuthenticateRequest(ticket.wrap(last)))
