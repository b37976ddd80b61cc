"""What a service makes of a Kerberos ticket, without a realm (SPEC KAFKA-29)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deltamq.api.kafka.access import gssapi
from deltamq.api.kafka.access.gssapi import GssapiError, Peers
from deltamq.api.kafka.access.kerberos import Kerberos, kerberos_of, principal_of
from deltamq.api.kafka.access.session import Step
from deltamq.mq.auth.callers import Credential
from deltamq.mq.errors import Unauthenticated
from deltamq.tables.config import ConfigInvalid, load
from deltamq.tables.config_sections import ServiceSettings

NO_LAYER = b"\x01\0\0\0"
NOW_MS = 1_000
PEERS = Peers("client/host@EXAMPLE", "kafka/localhost@EXAMPLE", 60)


@dataclass
class Ticket:
    """Stands for the library's context; what is wrapped begins with `W`."""

    answers: tuple[bytes, ...] = (b"proof",)
    seen: Peers = PEERS
    is_complete: bool = False

    def accept(self, token: bytes) -> bytes:
        if token != b"ticket":
            raise GssapiError("Request ticket server kafka/localhost kvno 3 not found in keytab")
        answer, *rest = self.answers
        self.answers, self.is_complete = tuple(rest), not rest
        return answer

    def wrap(self, data: bytes) -> bytes:
        assert self.is_complete
        return b"W" + data

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"W"):
            raise GssapiError("A token had an invalid signature")
        return token[1:]

    def peers(self) -> Peers:
        return self.seen


def _played(ticket: Ticket, *messages: bytes, realms: tuple[str, ...] = ()) -> list[Step]:
    async def play() -> list[Step]:
        kerberos = Kerberos(lambda: ticket, realms)
        exchange = kerberos.exchange(lambda: NOW_MS)
        found = [await exchange.step(message) for message in messages]
        kerberos.close()
        return found

    return asyncio.run(play())


def test_kafka_29_the_steps_are_those_of_the_rfc() -> None:
    known = Credential(principal="client", until_ms=61_000)
    proved = [Step(b"proof"), Step(b"W" + NO_LAYER), Step(b"", known)]
    assert _played(Ticket(), b"ticket", b"", b"W" + NO_LAYER) == proved
    without_proof = Ticket((b"",))
    assert _played(without_proof, b"ticket", b"W" + NO_LAYER) == proved[1:]
    in_two = Ticket((b"more", b"proof"))
    assert _played(in_two, b"ticket", b"ticket", b"", b"W" + NO_LAYER) == [Step(b"more"), *proved]
    endless = replace(Ticket(), seen=Peers("client@EXAMPLE", "kafka/localhost@EXAMPLE", None))
    assert _played(endless, b"ticket", b"", b"W" + NO_LAYER)[-1].credential == Credential(principal="client")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ((b"other",), "the ticket is wrong"),
        ((b"ticket", b"more"), "no message of GSSAPI"),
        ((b"ticket", b"", b"bare"), "the ticket is wrong"),
        ((b"ticket", b"", b"W\x02\0\xff\xff"), "only the layer auth"),
        ((b"ticket", b"", b"W\x01\0\0"), "only the layer auth"),
        ((b"ticket", b"", b"W\x01\0\0\0eve"), "only for itself"),
    ],
)
def test_kafka_29_every_refusal_says_little(messages, text) -> None:
    with pytest.raises(Unauthenticated, match=text) as refused:
        _played(Ticket(), *messages)
    assert "kvno" not in refused.value.detail


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("client@EXAMPLE", "client"),
        ("client/host.example.com@EXAMPLE", "client"),
        ("client@OTHER", None),
        ("client@example", None),
        ("client", None),
        ("client/a/b@EXAMPLE", None),
        ("/host@EXAMPLE", None),
        ("client@EXAMPLE@EXAMPLE", None),
        (r"client\/x@EXAMPLE", None),
        (r"client\@EXAMPLE@EXAMPLE", None),
        ("group:analysts@EXAMPLE", None),
        ("cl ient@EXAMPLE", None),
    ],
)
def test_kafka_29_a_principal_of_kerberos_is_ours_by_its_first_part(name, principal) -> None:
    try:
        assert principal_of(name, ("EXAMPLE",)) == principal
    except GssapiError:
        assert principal is None


def test_kafka_29_realms_are_the_services_own_or_those_of_the_settings() -> None:
    messages = b"ticket", b"", b"W" + NO_LAYER
    foreign = replace(Ticket(), seen=Peers("client@OTHER", "kafka/localhost@EXAMPLE", 60))
    with pytest.raises(Unauthenticated, match="the ticket is wrong"):
        _played(replace(foreign), *messages)
    assert _played(replace(foreign), *messages, realms=("OTHER",))[-1].credential is not None
    with pytest.raises(Unauthenticated, match="the ticket is wrong"):
        _played(Ticket(), *messages, realms=("OTHER",))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"KEYTAB": "x"}, "kafka_kerberos_keytab.*needs service.auth"),
        ({"PRINCIPAL": "kafka/a@B"}, "kafka_kerberos_principal.*needs service.kafka_kerberos_keytab"),
        ({"REALMS": '["B"]'}, "kafka_kerberos_realms.*needs service.kafka_kerberos_keytab"),
    ],
)
def test_kafka_29_settings_that_mean_nothing_are_refused(settings, text) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        load(environ={f"DELTAMQ_SERVICE_KAFKA_KERBEROS_{name}": value for name, value in settings.items()})


def test_kafka_29_a_service_without_the_library_or_a_keytab_does_not_start(monkeypatch, tmp_path: Path) -> None:
    assert kerberos_of(ServiceSettings()) is None
    settings = ServiceSettings(auth=True, kafka_kerberos_keytab=str(tmp_path / "service.keytab"))
    gssapi._library.cache_clear()
    monkeypatch.setattr(gssapi, "LIBRARY", "libnowhere.so.2")
    with pytest.raises(ConfigInvalid, match="apt-get install libgssapi-krb5-2"):
        kerberos_of(settings)
    monkeypatch.undo()
    try:
        gssapi._library()
    except OSError as error:
        pytest.skip(str(error))
    for content in (None, b"no keytab"):
        if content is not None:
            Path(settings.kafka_kerberos_keytab).write_bytes(content)
        with pytest.raises(ConfigInvalid, match=r"service\.keytab is no keytab that this process can read"):
            kerberos_of(settings)
