"""The functions of GSS-API (RFC 2744) by which a service takes a client's Kerberos ticket, in MIT's library.

    Keytab    the keys of this service in a file        Context    one client's ticket, message by message

The library is the system's (Debian: `libgssapi-krb5-2`), loaded when a keytab is named. Its calls may read files, and
release the interpreter's lock meanwhile: they belong into threads. A context may be used by one thread at a time.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final, NamedTuple

LIBRARY: Final = "libgssapi_krb5.so.2"
#: A lifetime without an end, in seconds.
_INDEFINITE: Final = 2**32 - 1
_ACCEPT: Final = 2
_CONTINUE_NEEDED: Final = 1
#: Bits of a status that say that a call failed; the ones below say more about a call that did not.
_ERRORS: Final = 0xFFFF0000
#: Kinds of a status' code: of GSS-API, and of the mechanism.
_GSS_CODE, _MECHANISM_CODE = 1, 2


class GssapiError(Exception):
    """A call of the library failed, or a message was not its context's next; the text is for the log alone."""


class Peers(NamedTuple):
    """Who speaks in an established context, as `primary[/instance]@REALM`, and for how long."""

    client: str
    service: str
    #: Seconds until the ticket ends; None without an end.
    seconds: int | None


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("elements", ctypes.c_char_p))


class _OidSet(ctypes.Structure):
    _fields_ = (("count", ctypes.c_size_t), ("elements", ctypes.POINTER(_Oid)))


class _Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


class _Pair(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Pairs(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("elements", ctypes.POINTER(_Pair)))


def _oid(elements: str) -> _Oid:
    encoded = bytes.fromhex(elements)
    return _Oid(len(encoded), encoded)


#: 1.2.840.113554.1.2.2
_KERBEROS: Final = _oid("2a864886f712010202")
#: Names: `primary/instance@REALM`, and the name of a service on any host.
_PRINCIPAL: Final = _oid("2a864886f71201020201")
_SERVICE: Final = _oid("2a864886f71201020104")

_HANDLE, _HANDLE_OUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_NUMBER, _NUMBER_OUT = ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)
_FLAG, _FLAG_OUT = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
_BYTES, _OID_IN, _UNUSED = ctypes.POINTER(_Buffer), ctypes.POINTER(_Oid), ctypes.c_void_p
#: The parameters of each function behind the first, the mechanism's own code.
_PARAMETERS: Final[dict[str, tuple[Any, ...]]] = {
    "gss_import_name": (_BYTES, _OID_IN, _HANDLE_OUT),
    "gss_acquire_cred_from": (
        *(_HANDLE, _NUMBER, ctypes.POINTER(_OidSet), _FLAG, ctypes.POINTER(_Pairs)),
        *(_HANDLE_OUT, _UNUSED, _UNUSED),
    ),
    "gss_accept_sec_context": (
        *(_HANDLE_OUT, _HANDLE, _BYTES, _UNUSED, _UNUSED, _UNUSED, _BYTES),
        *(_UNUSED, _UNUSED, _UNUSED),
    ),
    "gss_inquire_context": (_HANDLE, _HANDLE_OUT, _HANDLE_OUT, _NUMBER_OUT, _UNUSED, _UNUSED, _UNUSED, _UNUSED),
    "gss_display_name": (_HANDLE, _BYTES, _UNUSED),
    "gss_wrap": (_HANDLE, _FLAG, _NUMBER, _BYTES, _UNUSED, _BYTES),
    "gss_unwrap": (_HANDLE, _BYTES, _BYTES, _UNUSED, _UNUSED),
    "gss_display_status": (_NUMBER, _FLAG, _OID_IN, _NUMBER_OUT, _BYTES),
    "gss_release_buffer": (_BYTES,),
    "gss_release_name": (_HANDLE_OUT,),
    "gss_release_cred": (_HANDLE_OUT,),
    "gss_delete_sec_context": (_HANDLE_OUT, _UNUSED),
}


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    for name, parameters in _PARAMETERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = (_NUMBER_OUT, *parameters), _NUMBER
    return library


def _call(name: str, *arguments: Any) -> int:
    """Call a function; return the bits that say more about a call that did not fail."""
    minor = _NUMBER()
    major: int = getattr(_library(), name)(minor, *arguments)
    if major & _ERRORS:
        raise GssapiError("; ".join((*_texts(major, _GSS_CODE), *_texts(minor.value, _MECHANISM_CODE))))
    return major


def _texts(code: int, kind: int) -> list[str]:
    """Return what a status means, in the library's words."""
    more = _NUMBER()
    found: list[str] = []
    while not found or more.value:
        text = _Buffer()
        if _library().gss_display_status(_NUMBER(), code, kind, _KERBEROS, more, text):
            break
        found.append(_taken(text).decode(errors="replace"))
    return found


def _buffer(data: bytes) -> _Buffer:
    """Return bytes as the library takes them; they must live as long."""
    return _Buffer(len(data), ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p))


def _taken(buffer: _Buffer) -> bytes:
    """Return what the library has put into a buffer, and release that."""
    data = ctypes.string_at(buffer.value, buffer.length) if buffer.value else b""
    _library().gss_release_buffer(_NUMBER(), buffer)
    return data


class Keytab:
    """The keys of one service in a keytab, which the library reads again whenever a client comes."""

    def __init__(self, keytab: str, principal: str) -> None:
        """Find the keys of `principal`, or of the service `kafka` on any host if it is empty.

        Raises
        ------
        OSError
            The library is not there.
        GssapiError
            There is no such keytab, or no such key in it.
        """
        #: A `gss_cred_id_t`.
        self.handle, name = _HANDLE(), _HANDLE()
        text, kind = (principal.encode(), _PRINCIPAL) if principal else (b"kafka", _SERVICE)
        _call("gss_import_name", _buffer(text), kind, name)
        place = _Pairs(1, ctypes.pointer(_Pair(b"keytab", f"FILE:{keytab}".encode())))
        mechanisms = _OidSet(1, ctypes.pointer(_KERBEROS))
        try:
            _call("gss_acquire_cred_from", name, _INDEFINITE, mechanisms, _ACCEPT, place, self.handle, None, None)
        finally:
            _call("gss_release_name", name)

    def __del__(self) -> None:
        if self.handle.value:
            _call("gss_release_cred", self.handle)


class Context:
    """One client's ticket: `accept` its messages until it `is_complete`, then `wrap` and `unwrap` by its key."""

    def __init__(self, keys: Keytab) -> None:
        self._keys = keys
        self._handle = _HANDLE()
        self.is_complete = False

    def __del__(self) -> None:
        if self._handle.value:
            _call("gss_delete_sec_context", self._handle, None)

    def accept(self, token: bytes) -> bytes:
        """Take the client's next message; return the answer, which may be empty."""
        answer = _Buffer()
        try:
            status = _call(
                "gss_accept_sec_context",
                *(self._handle, self._keys.handle, _buffer(token), None, None, None, answer, None, None, None),
            )
        finally:
            said = _taken(answer)
        if status & ~_CONTINUE_NEEDED:
            raise GssapiError("the message came before")
        self.is_complete = not status
        return said

    def wrap(self, data: bytes) -> bytes:
        """Return bytes with a checksum by the context's key, not encrypted."""
        wrapped = _Buffer()
        _call("gss_wrap", self._handle, 0, 0, _buffer(data), None, wrapped)
        return _taken(wrapped)

    def unwrap(self, token: bytes) -> bytes:
        """Return what the client has wrapped, if its checksum is right and it is the client's next message."""
        data = _Buffer()
        status = _call("gss_unwrap", self._handle, _buffer(token), data, None, None)
        said = _taken(data)
        if status:
            raise GssapiError("the message came before, or out of turn")
        return said

    def peers(self) -> Peers:
        """Return who speaks in a context that is complete."""
        client, service, seconds = _HANDLE(), _HANDLE(), _NUMBER()
        _call("gss_inquire_context", self._handle, client, service, seconds, None, None, None, None)
        end = None if seconds.value == _INDEFINITE else seconds.value
        return Peers(_shown(client), _shown(service), end)


def _shown(name: ctypes.c_void_p) -> str:
    """Return a name's text, and release the name."""
    text = _Buffer()
    try:
        _call("gss_display_name", name, text, None)
        return _taken(text).decode(errors="replace")
    finally:
        _call("gss_release_name", name)
